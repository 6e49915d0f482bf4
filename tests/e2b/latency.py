"""usage: latency.py SOCKET   (with E2B_API_URL and E2B_API_KEY)

What the E2B interface adds to a tool call: `/bin/true` by its Start over TCP, and by the native interface over
the unix socket, in alternation, from the request to the end of the answer, on connections kept open.
Prints milliseconds."""

import http.client
import json
import os
import socket
import struct
import sys
import time
import urllib.parse

ROUNDS, WARM_UP = 1000, 50


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])


def tcp():
    url = urllib.parse.urlparse(os.environ["E2B_API_URL"])
    connection = http.client.HTTPConnection(url.hostname, url.port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def timed(connection, method, path, body, headers):
    begin = time.perf_counter()
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    took = (time.perf_counter() - begin) * 1000
    assert answer.status < 300, text
    return took, text


def quantile(samples, part):
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * part))]


control, native, gateway = tcp(), Unix("brood"), tcp()
key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
_, made = timed(control, "POST", "/v2/sandboxes", '{"templateID":"base","timeout":600}', key)
made = json.loads(made)
id = made["sandboxID"]
message = json.dumps({"process": {"cmd": "/bin/true"}, "stdin": False}).encode()
framed = struct.pack(">BI", 0, len(message)) + message
head = {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983", "X-Access-Token": made["envdAccessToken"],
        "Content-Type": "application/connect+json"}
plain = json.dumps({"arguments": ["/bin/true"]})
ours, theirs = [], []
for _ in range(ROUNDS + WARM_UP):
    took, text = timed(gateway, "POST", "/process.Process/Start", framed, head)
    assert b"exit status 0" in text
    theirs.append(took)
    took, text = timed(native, "POST", f"/brood/v1/sandboxes/{id}/processes?wait=true", plain, {})
    ours.append(took)
timed(control, "DELETE", f"/sandboxes/{id}", None, key)
figures = {}
for name, samples in (("gateway_true_ms", theirs[WARM_UP:]), ("native_true_ms", ours[WARM_UP:])):
    figures[name] = {"p50": round(quantile(samples, .5), 3), "p95": round(quantile(samples, .95), 3), "p99": round(quantile(samples, .99), 3), "n": ROUNDS}
added = figures["gateway_true_ms"]["p50"] - figures["native_true_ms"]["p50"]
print(json.dumps({**figures, "added_p50_ms": round(added, 3)}, indent=2))
