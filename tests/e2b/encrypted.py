"""usage: encrypted.py CERTIFICATE PORT

A daemon that speaks TLS, and ports of sandboxes by host name."""

import http.client
import json
import socket
import ssl
import sys
import time
import unittest

CERTIFICATE, PORT = sys.argv[1], int(sys.argv[2])


class Named(http.client.HTTPConnection):
    """Connects to the daemon and asks it for a host that no resolver knows."""

    def connect(self):
        context = ssl.create_default_context(cafile=CERTIFICATE)
        plain = socket.create_connection(("127.0.0.1", PORT), timeout=10)
        self.sock = context.wrap_socket(plain, server_hostname=self.host)


def call(host, method, path, body=None):
    connection = Named(host)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Encrypted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for _ in range(100):
            try:
                return socket.create_connection(("127.0.0.1", PORT)).close()
            except OSError:
                time.sleep(0.1)

    def test_the_control_plane_answers(self):
        self.assertEqual(call("api.sandboxes.test", "GET", "/health"), (200, b"OK"))
        status, body = call("api.sandboxes.test", "GET", "/v2/sandboxes")
        self.assertEqual((status, json.loads(body)), (200, []))

    def test_upload_links_are_encrypted(self):
        status, body = call("api.sandboxes.test", "GET", "/templates/x/files/" + "0" * 64)
        self.assertEqual(status, 201)
        self.assertTrue(json.loads(body)["url"].startswith("https://api.sandboxes.test/uploads/"))

    def test_a_host_name_means_a_port_of_a_sandbox(self):
        status, body = call("49983-i0000000000000000000.sandboxes.test", "GET", "/health")
        self.assertEqual((status, json.loads(body)["code"]), (502, 502))

    def test_who_speaks_plainly_gets_no_answer(self):
        with socket.create_connection(("127.0.0.1", PORT), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertNotIn(b"200 OK", connection.recv(1000))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
