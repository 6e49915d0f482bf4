"""What no client sends: malformed, truncated, oversized and forged requests. Each must be refused in
words, and the daemon must go on."""

import base64
import json
import os
import random
import socket
import struct
import unittest
import urllib.parse

import http.client

BASE = urllib.parse.urlparse(os.environ["E2B_SANDBOX_URL"])
KEY = {"X-API-KEY": os.environ["E2B_API_KEY"]}


def call(method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=20)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(data):
    """Sends bytes as they are; what comes back until the server closes or nothing more comes."""
    with socket.create_connection((BASE.hostname, BASE.port), timeout=5) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        seen = b""
        try:
            while piece := connection.recv(65536):
                seen += piece
        except OSError:
            pass
        return seen


def frame(payload, flags=0, length=None):
    return struct.pack(">BI", flags, len(payload) if length is None else length) + payload


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        status, body = call("POST", "/v2/sandboxes", '{"templateID":"base","timeout":120}', KEY)
        assert status == 201, body
        made = json.loads(body)
        cls.id, cls.token = made["sandboxID"], made["envdAccessToken"]
        cls.route = {"E2b-Sandbox-Id": cls.id, "E2b-Sandbox-Port": "49983"}
        cls.head = {**cls.route, "X-Access-Token": cls.token}

    @classmethod
    def tearDownClass(cls):
        status, _ = call("DELETE", f"/sandboxes/{cls.id}", headers=KEY)
        assert status == 204, "the daemon goes on"

    def rpc(self, method, body, kind="application/connect+json"):
        return call("POST", f"/process.Process/{method}", body, {**self.head, "Content-Type": kind})

    def end(self, body):
        """The failure in a stream's last frame."""
        flags, length = struct.unpack(">BI", body[:5])
        self.assertEqual(flags & 2, 2, body)
        return json.loads(body[5:5 + length])["error"]["code"]

    def test_malformed_frames(self):
        start = json.dumps({"process": {"cmd": "true"}}).encode()
        for body, code in [
            (b"", "invalid_argument"),
            (b"\0\0", "invalid_argument"),
            (frame(b"{", 0), "invalid_argument"),
            (frame(b"[]"), "invalid_argument"),
            (frame(start, 1), "unimplemented"),
            (frame(start, 0, 0xFFFFFFFF), "resource_exhausted"),
            (frame(start, 0, len(start) + 7), "invalid_argument"),
            (frame(start) + frame(start), "invalid_argument"),
            (frame(b'{"process":{"cmd":5}}'), "invalid_argument"),
            (frame(b'{"process":{"cmd":"a\\u0000b"}}'), "invalid_argument"),
            (frame(b'{"process":{"cmd":""}}'), "invalid_argument"),
        ]:
            status, answer = self.rpc("Start", body)
            self.assertEqual((status, self.end(answer)), (200, code), body)
        for _ in range(200):
            junk = random.randbytes(random.randrange(60))
            status, _ = self.rpc("Start", junk, random.choice(["application/connect+json", "application/connect+proto"]))
            self.assertEqual(status, 200)
            status, _ = self.rpc("SendInput", junk, random.choice(["application/json", "application/proto"]))
            self.assertIn(status, (200, 400, 404, 501))

    def test_wrong_kinds_and_unknown_methods(self):
        self.assertEqual(self.rpc("Start", b"{}", "text/plain")[0], 415)
        self.assertEqual(self.rpc("List", b"{}", "application/connect+json")[0], 415)
        self.assertEqual(self.rpc("Nothing", b"{}", "application/json")[0], 404)

    def test_binary_messages_are_the_same_service(self):
        status, answer = self.rpc("List", b"", "application/proto")
        self.assertEqual((status, answer), (200, b""))
        config = b"\x0a\x09/bin/true"
        status, answer = self.rpc("Start", frame(b"\x0a" + bytes([len(config)]) + config), "application/connect+proto")
        self.assertEqual((status, answer[0]), (200, 0))
        self.assertIn(b"exit status 0", answer)
        self.assertTrue(answer.endswith(frame(b"{}", 2)))

    def test_truncated_and_odd_forms(self):
        for body, kind in [
            (b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/t\"\r\n\r\nhalf", "multipart/form-data; boundary=x"),
            (b"--x\r\n", "multipart/form-data; boundary=x"),
            (b"nothing", "multipart/form-data"),
            (b"x", "text/plain"),
            (b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nno name\r\n--x--\r\n", "multipart/form-data; boundary=x"),
        ]:
            status, answer = call("POST", "/files", body, {**self.head, "Content-Type": kind})
            self.assertEqual((status, json.loads(answer)["code"]), (400, 400), answer)
        twice = b"".join(
            b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/twice\"\r\n\r\n1\r\n" for _ in "12"
        ) + b"--x--\r\n"
        self.assertEqual(call("POST", "/files", twice, {**self.head, "Content-Type": "multipart/form-data; boundary=x"})[0], 400)
        head = "".join(f"{name}: {value}\r\n" for name, value in self.head.items())
        cut = f"POST /files?path=/tmp/cut HTTP/1.1\r\nHost: x\r\n{head}Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf"
        self.assertNotIn(b" 200 ", raw(cut.encode())[:20])
        bad_gzip = {**self.head, "Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
        self.assertEqual(call("POST", "/files?path=/tmp/gz", b"not gzip", bad_gzip)[0], 400)

    def test_paths_lead_nowhere_else(self):
        marker = "/etc/brood-host-marker"
        for path in ["/../../../../etc/shadow-none", "/proc/1/root/etc/hostname", "/proc/self/environ", "/sys/kernel/notes", "/dev/mem", "/tmp/a%00b", marker, "//../etc/none"]:
            status, answer = call("GET", "/files?path=" + urllib.parse.quote(path), headers=self.head)
            self.assertIn(status, (400, 404), (path, answer))
        for path in ["/proc/sys/kernel/hostname", "/sys/x", "/dev/null", "/", ""]:
            query = "/files?path=" + urllib.parse.quote(path)
            status, answer = call("POST", query, b"x", {**self.head, "Content-Type": "application/octet-stream"})
            self.assertIn(status, (400, 404), (path, answer))

    def test_heads_and_targets_out_of_bounds(self):
        giant = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * (1 << 20) + b"\r\n\r\n"
        self.assertNotIn(b" 200 ", raw(giant)[:20])
        many = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(5000)) + b"\r\n"
        self.assertNotIn(b" 200 ", raw(many)[:20])
        for junk in (b"\0" * 100, b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            self.assertNotIn(b" 200 ", raw(junk)[:20])
        for id, port in [("../../x", "49983"), ("a" * 100, "49983"), (self.id, "0"), (self.id, "99999"), (self.id, "x")]:
            self.assertEqual(call("GET", "/health", headers={"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": port})[0], 400)
        status, answer = call("GET", "/health", headers={"E2b-Sandbox-Id": "i0000000000000000000", "E2b-Sandbox-Port": "49983"})
        self.assertEqual((status, json.loads(answer)["message"]), (502, "The sandbox was not found"))

    def test_forged_tokens(self):
        for token in ["", "0" * 64, self.token[:-1], self.token + "0", self.token.upper()]:
            for path in ["/files?path=/etc/passwd", "/envs", "/metrics"]:
                self.assertEqual(call("GET", path, headers={**self.route, "X-Access-Token": token})[0], 401, token)
        for port in ("49999",):
            self.assertEqual(call("POST", "/execute", b"{}", {**self.route, "E2b-Sandbox-Port": port})[0], 403)
        for path in ["/init", "/freeze", "/upgrade"]:
            self.assertEqual(call("POST", path, b"{}", self.head)[0], 404)

    def test_the_control_plane_refuses_in_its_own_form(self):
        cases = [
            ("POST", "/v2/sandboxes", "{", 400), ("POST", "/v2/sandboxes", "[]", 400),
            ("POST", "/v2/sandboxes", '{"templateID":5}', 400), ("POST", "/v2/sandboxes", "{}", 400),
            ("POST", "/v2/sandboxes", '{"templateID":"none"}', 404),
            ("POST", "/v2/sandboxes", '{"templateID":"base","volumeMounts":[{"name":"a","path":"/b"}]}', 400),
            ("GET", "/v2/sandboxes?limit=0", None, 400), ("GET", "/v2/sandboxes?limit=x", None, 400),
            ("GET", "/v2/sandboxes?nextToken=%00", None, 400), ("GET", "/v2/sandboxes?state=dead", None, 400),
            ("GET", "/sandboxes/..%2f..%2fx", None, 404), ("DELETE", "/sandboxes/none", None, 404),
            ("PATCH", "/v2/sandboxes", None, 405), ("GET", "/nothing", None, 404),
            ("POST", f"/sandboxes/{self.id}/timeout", '{"timeout":99999999999}', 400),
            ("POST", f"/sandboxes/{self.id}/fork", '{"count":21}', 400),
            ("PUT", "/uploads/" + "0" * 64 + "?token=x", "x", 401),
            ("GET", "/templates/x/files/..%2f..%2fetc", None, 400),
        ]
        for method, path, body, status in cases:
            answered, answer = call(method, path, body, KEY)
            self.assertEqual((answered, json.loads(answer)["code"]), (status, status), (method, path, answer[:200]))
        for key in ({}, {"X-API-KEY": "e2b_" + "0" * 40}, {"X-API-KEY": "é".encode().decode("latin-1")}, {"Authorization": "Bearer x"}):
            self.assertEqual(call("GET", "/v2/sandboxes", headers=key)[0], 401)

    def test_a_giant_body_is_refused_before_it_is_read(self):
        try:
            self.assertEqual(call("POST", "/v2/sandboxes", b"a" * (5 << 20), KEY)[0], 413)
        except OSError:
            pass  # the refusal came, and the connection was closed, while we were still sending

    def test_what_is_sent_twice_is_made_once(self):
        headers = {**KEY, "Idempotency-Key": "hostile-1"}
        body = '{"templateID":"base","timeout":60}'
        first, second = (json.loads(call("POST", "/v2/sandboxes", body, headers)[1])["sandboxID"] for _ in "12")
        self.assertEqual(first, second)
        self.assertEqual(call("POST", "/v2/sandboxes", body.replace("60", "61"), headers)[0], 409)
        self.assertEqual(call("DELETE", f"/sandboxes/{first}", headers=KEY)[0], 204)

    def test_counts_are_served(self):
        status, text = call("GET", "/metrics", headers=KEY)
        self.assertEqual(status, 200)
        self.assertIn(b'brood_gateway_requests_total{plane="control",status="2xx"}', text)


if __name__ == "__main__":
    unittest.main(verbosity=1)
