"""The Python package `e2b`, its synchronous classes, against a live daemon.

Which tests run depends on what the installed version has; what it lacks is skipped by name.
"""

import datetime
import http.client
import io
import os
import socket
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import e2b
from e2b import Sandbox

VERSION = tuple(int(part) for part in e2b.__version__.split(".")) if hasattr(e2b, "__version__") else None
if VERSION is None:
    from importlib.metadata import version

    VERSION = tuple(int(part) for part in version("e2b").split("."))

LONG = "é€😀" * 20_000


def since(*least):
    """Skips a test for packages older than this version."""
    return unittest.skipUnless(VERSION >= least, f"e2b {VERSION} is older than {least}")


class OneSandbox(unittest.TestCase):
    """Tests that share a sandbox."""

    @classmethod
    def setUpClass(cls):
        cls.sandbox = Sandbox.create(timeout=240, metadata={"suite": "python"}, envs={"FROM_CREATE": "yes"})
        cls.commands, cls.files = cls.sandbox.commands, cls.sandbox.files

    @classmethod
    def tearDownClass(cls):
        cls.sandbox.kill()


SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "echo":
            self.connection.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n")
            while data := self.connection.recv(4096):
                self.connection.sendall(data)
            self.close_connection = True
            return
        self.answer(repr(sorted(self.headers.keys())).lower().encode() + self.headers["Host"].encode())

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"]))[::-1])

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


class Ports(OneSandbox):
    """Servers inside, reached as a browser would: by the host name that get_host gives."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.files.write("/tmp/server.py", SERVER)
        cls.commands.run("python3 /tmp/server.py", background=True)
        cls.address = os.environ["E2B_SANDBOX_URL"].removeprefix("http://")
        wait = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 1)' 2>/dev/null; do :; done"
        cls.commands.run(wait)

    def ask(self, method, body=None, port=8000, headers={}):
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, "/a?b=c", body, {"Host": self.sandbox.get_host(port), **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def test_requests_arrive_without_tokens(self):
        secrets = {"X-Access-Token": "a", "E2b-Traffic-Access-Token": "b", "X-Mine": "c"}
        status, body = self.ask("GET", headers=secrets)
        self.assertEqual(status, 200)
        self.assertIn(b"x-mine", body)
        self.assertNotIn(b"token", body)
        self.assertIn(self.sandbox.get_host(8000).encode(), body)

    def test_big_bodies_pass_both_ways(self):
        body = os.urandom(3_000_000)
        self.assertEqual(self.ask("POST", body), (200, body[::-1]))

    def test_a_closed_port_is_told(self):
        status, body = self.ask("GET", port=8001)
        self.assertEqual(status, 502)
        self.assertIn(b"port is not open", body)

    def test_connections_change_their_protocol(self):
        host, port = self.address.split(":")
        request = f"GET / HTTP/1.1\r\nHost: {self.sandbox.get_host(8000)}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(request.encode())
            stream = connection.makefile("rb")
            self.assertIn(b" 101 ", stream.readline())
            while stream.readline() != b"\r\n":
                pass
            for text in (b"one\n", b"two\n"):
                connection.sendall(text)
                self.assertEqual(stream.readline(), text)


class Commands(OneSandbox):
    def test_output_and_environment(self):
        result = self.commands.run("echo out; echo err >&2; echo $FROM_CREATE $MINE", envs={"MINE": "too"})
        self.assertEqual((result.exit_code, result.stdout, result.stderr), (0, "out\nyes too\n", "err\n"))

    def test_the_sandbox_is_named_inside(self):
        result = self.commands.run("echo $E2B_SANDBOX $E2B_SANDBOX_ID")
        self.assertEqual(result.stdout.split(), ["true", self.sandbox.sandbox_id])

    def test_callbacks_get_split_characters_whole(self):
        seen = []
        script = "import sys,time; t=('é€😀'*20000).encode(); [sys.stdout.buffer.write(t[i:i+4097]) for i in range(0,len(t),4097)]"
        result = self.commands.run(f'python3 -c "{script}"', on_stdout=seen.append)
        self.assertEqual(result.stdout, LONG)
        self.assertEqual("".join(seen), LONG)

    def test_exit_codes_and_signals(self):
        with self.assertRaises(e2b.CommandExitException) as caught:
            self.commands.run("echo why >&2; exit 3")
        self.assertEqual((caught.exception.exit_code, caught.exception.stderr), (3, "why\n"))
        with self.assertRaises(e2b.CommandExitException) as caught:
            self.commands.run("kill -9 $$")
        self.assertEqual((caught.exception.exit_code, caught.exception.error), (-1, "signal: killed"))

    def test_a_command_out_of_time_is_killed(self):
        with self.assertRaises(e2b.TimeoutException):
            self.commands.run("sleep 7.25", timeout=1)
        # The client gives up a moment before the server.
        for _ in range(40):
            left = [process for process in self.commands.list() if "sleep 7.25" in " ".join(process.args)]
            if not left:
                break
            time.sleep(0.05)
        self.assertEqual(left, [])

    def test_background_list_connect_and_input(self):
        command = self.commands.run("read line; echo got $line; sleep 0.3; echo end", background=True, stdin=True) \
            if VERSION >= (2, 26) else self.commands.run("read line; echo got $line; sleep 0.3; echo end", background=True)
        self.assertIn(command.pid, [process.pid for process in self.commands.list()])
        follower = self.commands.connect(command.pid)
        self.commands.send_stdin(command.pid, "abc\n")
        self.assertEqual(command.wait().stdout, "got abc\nend\n")
        self.assertEqual(follower.wait().exit_code, 0)

    def test_kill(self):
        command = self.commands.run("sleep 100", background=True)
        self.assertTrue(self.commands.kill(command.pid))
        self.assertFalse(self.commands.kill(command.pid))
        with self.assertRaises(e2b.CommandExitException):
            command.wait()

    def test_disconnecting_does_not_kill(self):
        command = self.commands.run("sleep 100", background=True)
        command.disconnect()
        self.assertIn(command.pid, [process.pid for process in self.commands.list()])
        self.assertTrue(command.kill())

    @since(2, 60)
    def test_standard_input_can_be_closed(self):
        command = self.commands.run("cat", background=True, stdin=True)
        self.commands.send_stdin(command.pid, "x")
        self.commands.close_stdin(command.pid)
        self.assertEqual(command.wait().stdout, "x")

    def test_users_and_directories(self):
        result = self.commands.run("id -un; pwd", user="user", cwd="/tmp")
        self.assertEqual(result.stdout, "user\n/tmp\n")
        self.assertEqual(self.commands.run("pwd", user="user").stdout, "/home/user\n")
        with self.assertRaises(e2b.InvalidArgumentException):
            self.commands.run("true", cwd="/missing")
        with self.assertRaises(e2b.AuthenticationException):
            self.commands.run("true", user="nobody-here")

    def test_unknown_processes(self):
        with self.assertRaises(e2b.NotFoundException):
            self.commands.connect(4_000_000)
        with self.assertRaises(e2b.NotFoundException):
            self.commands.send_stdin(4_000_000, "x")
        self.assertFalse(self.commands.kill(4_000_000))

    def test_terminals(self):
        seen = bytearray()
        pty = self.sandbox.pty.create(e2b.PtySize(rows=24, cols=80), timeout=20)
        self.sandbox.pty.resize(pty.pid, e2b.PtySize(rows=30, cols=101))
        self.sandbox.pty.send_stdin(pty.pid, b"stty size; echo $((6*7)); exit 0\n")
        pty.wait(on_pty=seen.extend)
        self.assertIn(b"30 101", bytes(seen))
        self.assertIn(b"42", bytes(seen))
        other = self.sandbox.pty.create(e2b.PtySize(rows=24, cols=80))
        self.assertTrue(self.sandbox.pty.kill(other.pid))

    def test_many_at_once(self):
        outputs = {}

        def run(number):
            outputs[number] = self.commands.run(f"echo {number}").stdout

        threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(outputs, {number: f"{number}\n" for number in range(12)})


class Files(OneSandbox):
    def test_text_bytes_and_streams(self):
        info = self.files.write("/tmp/text/deep/a.txt", LONG)
        self.assertEqual((info.path, info.name), ("/tmp/text/deep/a.txt", "a.txt"))
        self.assertEqual(self.files.read(info.path), LONG)
        self.assertEqual(bytes(self.files.read(info.path, format="bytes")), LONG.encode())
        self.assertEqual(b"".join(self.files.read(info.path, format="stream")), LONG.encode())
        self.files.write(info.path, "shorter")
        self.assertEqual(self.files.read(info.path), "shorter")
        self.files.write("/tmp/empty", "")
        self.assertEqual(self.files.read("/tmp/empty"), "")

    def test_big_streamed_upload(self):
        piece = os.urandom(1 << 20)
        self.files.write("/tmp/big", io.BytesIO(piece * 24))
        result = self.commands.run("stat -c %s /tmp/big; sha256sum < /tmp/big | cut -c1-64")
        import hashlib

        self.assertEqual(result.stdout.split(), [str(24 << 20), hashlib.sha256(piece * 24).hexdigest()])

    def test_several_at_once(self):
        entries = [{"path": "/tmp/several/1", "data": "one"}, {"path": "/tmp/several/2", "data": b"two"}]
        infos = self.files.write_files(entries) if VERSION >= (2, 0) else self.files.write(entries)
        self.assertEqual([info.path for info in infos], ["/tmp/several/1", "/tmp/several/2"])
        self.assertEqual(self.files.read("/tmp/several/2"), "two")

    @since(2, 60)
    def test_compressed_uploads_and_metadata(self):
        self.files.write("/tmp/gz", "q" * 100_000, gzip=True)
        self.assertEqual(self.files.read("/tmp/gz", gzip=True), "q" * 100_000)
        info = self.files.write("/tmp/meta", "m", metadata={"kind": "test"})
        self.assertEqual(info.metadata, {"kind": "test"})
        self.assertEqual(self.files.get_info("/tmp/meta").metadata, {"kind": "test"})
        self.files.write("/tmp/meta", "m")
        self.assertFalse(self.files.get_info("/tmp/meta").metadata)

    def test_odd_names(self):
        for name in ['a "quoted" name', "blank é€", "%41", "back\\slash", "semi;colon", "-dash"]:
            path = f"/tmp/odd/{name}"
            self.files.write(path, name)
            self.assertEqual(self.files.read(path), name)
            self.assertIn(name, [entry.name for entry in self.files.list("/tmp/odd")])

    def test_directories(self):
        self.assertTrue(self.files.make_dir("/tmp/made/deep"))
        self.assertFalse(self.files.make_dir("/tmp/made/deep"))
        self.files.write("/tmp/made/deep/f", "1")
        self.assertEqual([entry.path for entry in self.files.list("/tmp/made", depth=2)],
                         ["/tmp/made/deep", "/tmp/made/deep/f"])
        moved = self.files.rename("/tmp/made/deep/f", "/tmp/made/other/g")
        self.assertEqual(moved.path, "/tmp/made/other/g")
        self.assertTrue(self.files.exists("/tmp/made/other/g"))
        self.files.remove("/tmp/made")
        self.files.remove("/tmp/made")
        self.assertFalse(self.files.exists("/tmp/made"))
        with self.assertRaises(e2b.InvalidArgumentException):
            self.files.write("/tmp/plain", "x")
            self.files.list("/tmp/plain")

    def test_information(self):
        self.files.write("/tmp/info", "12345", user="user")
        info = self.files.get_info("/tmp/info")
        self.assertEqual((info.size, info.mode, info.permissions), (5, 0o644, "-rw-r--r--"))
        self.assertEqual((info.owner, info.group), ("user", "user"))
        age = datetime.datetime.now(datetime.timezone.utc) - info.modified_time
        self.assertLess(abs(age.total_seconds()), 60)
        self.commands.run("ln -sf /tmp/info /tmp/link")
        self.assertEqual(self.files.get_info("/tmp/link").symlink_target, "/tmp/info")

    def test_missing_files(self):
        for call in (self.files.read, self.files.list, self.files.get_info):
            with self.assertRaises(e2b.NotFoundException):
                call("/tmp/missing")
        with self.assertRaises(e2b.NotFoundException):
            self.files.rename("/tmp/missing", "/tmp/x")
        with self.assertRaises((e2b.InvalidArgumentException, e2b.SandboxException)):
            self.files.read("/tmp")

    def test_relative_paths_are_in_the_home(self):
        self.files.write("mine.txt", "x", user="user")
        self.assertEqual(self.files.read("/home/user/mine.txt"), "x")
        self.assertTrue(self.files.exists("~/mine.txt", user="user"))

    def test_a_link_leads_no_further_than_the_sandbox(self):
        self.commands.run("ln -sfn / /tmp/root; ln -sf ../../../../../../etc/passwd /tmp/up")
        self.assertEqual(self.files.read("/tmp/root/etc/passwd"), self.files.read("/etc/passwd"))
        self.assertEqual(self.files.read("/tmp/up"), self.files.read("/etc/passwd"))
        with self.assertRaises(Exception):
            self.files.read("/proc/1/environ")

    def test_watching(self):
        self.files.make_dir("/tmp/watched")
        watch = self.files.watch_dir("/tmp/watched", recursive=True)
        self.files.write("/tmp/watched/new", "1")
        self.commands.run("mkdir /tmp/watched/sub; sleep 0.2; echo 1 > /tmp/watched/sub/inner; rm /tmp/watched/new")
        events = []
        for _ in range(50):
            events += [(event.name, event.type.value) for event in watch.get_new_events()]
            if ("new", "remove") in events:
                break
            time.sleep(0.05)
        for wanted in [("new", "create"), ("new", "write"), ("sub", "create"), ("sub/inner", "create"), ("new", "remove")]:
            self.assertIn(wanted, events)
        watch.stop()
        with self.assertRaises(e2b.NotFoundException):
            self.files.watch_dir("/tmp/missing")

    def test_signed_addresses(self):
        self.files.write("/tmp/signed file", "signed é")
        url = self.sandbox.download_url("/tmp/signed file")
        self.assertEqual(urllib.request.urlopen(url).read().decode(), "signed é")
        ranged = urllib.request.Request(url, headers={"Range": "bytes=2-4"})
        answer = urllib.request.urlopen(ranged)
        self.assertEqual((answer.status, answer.read()), (206, b"gne"))
        for forged in (url.replace("signed", "other"), url[:-3] + "abc"):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(forged)
            self.assertEqual(caught.exception.code, 401)
        expired = self.sandbox.download_url("/tmp/signed file", use_signature_expiration=-10)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(expired)
        self.assertEqual(caught.exception.code, 401)


class Lifecycle(unittest.TestCase):
    def setUp(self):
        self.made = []

    def tearDown(self):
        for sandbox in self.made:
            sandbox.kill()

    def create(self, **options):
        sandbox = Sandbox.create(**{"timeout": 60, **options})
        self.made.append(sandbox)
        return sandbox

    def test_kill_and_what_follows(self):
        sandbox = self.create()
        self.assertTrue(sandbox.is_running())
        self.assertTrue(sandbox.kill())
        self.assertFalse(sandbox.kill())
        self.assertFalse(Sandbox.kill("i0000000000000000000"))
        self.assertFalse(sandbox.is_running())
        with self.assertRaises(e2b.TimeoutException):
            sandbox.commands.run("true")
        with self.assertRaises(e2b.NotFoundException if VERSION < (2, 25) else e2b.SandboxException):
            Sandbox.connect(sandbox.sandbox_id)

    def test_time_runs_out(self):
        sandbox = self.create(timeout=300)
        before = sandbox.get_info().end_at
        sandbox.set_timeout(1)
        self.assertLess(sandbox.get_info().end_at, before)
        for _ in range(60):
            if not sandbox.is_running():
                break
            time.sleep(0.1)
        self.assertFalse(sandbox.is_running())

    def test_information_and_metrics(self):
        sandbox = self.create(metadata={"a": "1"})
        info = sandbox.get_info()
        self.assertEqual((info.sandbox_id, info.metadata, info.template_id), (sandbox.sandbox_id, {"a": "1"}, "base"))
        self.assertEqual(info.state.value, "running")
        metrics = sandbox.get_metrics()
        self.assertGreater(metrics[-1].mem_total, 0)

    def test_lists_filters_and_pages(self):
        mark = str(time.time_ns())
        made = [self.create(metadata={"k y": f"v&=1 {mark}", "n": str(n)}) for n in range(3)]
        query = e2b.SandboxQuery(metadata={"k y": f"v&=1 {mark}"})
        pages = Sandbox.list(query=query, limit=2)
        first = pages.next_items()
        self.assertTrue(pages.has_next)
        second = pages.next_items()
        self.assertFalse(pages.has_next)
        found = [info.sandbox_id for info in first + second]
        self.assertEqual(found, [sandbox.sandbox_id for sandbox in reversed(made)])
        self.assertEqual(Sandbox.list(query=e2b.SandboxQuery(metadata={"n": "no"})).next_items(), [])

    def test_a_second_client(self):
        sandbox = self.create()
        sandbox.files.write("/tmp/x", "shared")
        other = Sandbox.connect(sandbox.sandbox_id)
        self.assertEqual(other.files.read("/tmp/x"), "shared")

    @since(2, 40)
    def test_pause_and_resume(self):
        sandbox = self.create()
        sandbox.files.write("/tmp/x", "kept")
        ticker = sandbox.commands.run("i=0; while :; do i=$((i+1)); echo $i > /tmp/tick; sleep 0.05; done", background=True, timeout=0)
        for _ in range(100):
            if sandbox.files.exists("/tmp/tick"):
                break
            time.sleep(0.02)
        self.assertTrue(sandbox.pause())
        self.assertFalse(sandbox.pause())
        self.assertFalse(sandbox.is_running())
        self.assertEqual(sandbox.get_info().state.value, "paused")
        paused = Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items()
        self.assertIn(sandbox.sandbox_id, [info.sandbox_id for info in paused])
        sandbox.connect()
        self.assertEqual(sandbox.files.read("/tmp/x"), "kept")
        before = int(sandbox.files.read("/tmp/tick").strip() or 0)
        for _ in range(60):
            now = int(sandbox.files.read("/tmp/tick").strip() or 0)
            if now > before:
                break
            time.sleep(0.05)
        self.assertGreater(now, before)
        self.assertIn(ticker.pid, [process.pid for process in sandbox.commands.list()])

    @since(2, 60)
    def test_time_runs_out_into_a_pause(self):
        sandbox = self.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
        sandbox.files.write("/tmp/x", "kept")
        for _ in range(80):
            if sandbox.get_info().state.value == "paused":
                break
            time.sleep(0.1)
        self.assertEqual(sandbox.get_info().state.value, "paused")
        self.assertEqual(sandbox.files.read("/tmp/x"), "kept")

    @since(2, 60)
    def test_forks(self):
        sandbox = self.create()
        sandbox.files.write("/tmp/x", "common")
        forks = [fork for fork in sandbox.fork(count=2)]
        forks = [getattr(fork, "sandbox", fork) for fork in forks]
        self.made += forks
        forks[0].files.write("/tmp/x", "changed")
        self.assertEqual([s.files.read("/tmp/x") for s in (sandbox, *forks)], ["common", "changed", "common"])

    @since(2, 60)
    def test_snapshots(self):
        sandbox = self.create()
        sandbox.files.write("/tmp/x", "in the snapshot")
        snapshot = sandbox.create_snapshot()
        sandbox.files.write("/tmp/x", "later")
        again = self.create(template=snapshot.snapshot_id, envs={"LATE": "1"})
        self.assertEqual(again.files.read("/tmp/x"), "in the snapshot")
        self.assertEqual(again.commands.run("echo $LATE").stdout, "1\n")
        self.assertIn(snapshot.snapshot_id, [s.snapshot_id for s in sandbox.list_snapshots().next_items()])
        self.assertTrue(Sandbox.delete_snapshot(snapshot.snapshot_id))
        self.assertFalse(Sandbox.delete_snapshot(snapshot.snapshot_id))

    @since(2, 60)
    def test_network_rules(self):
        sandbox = self.create(allow_internet_access=False)
        sandbox.update_network({"deny_out": ["10.0.0.0/8"]})
        sandbox.update_network({"allow_internet_access": False})
        with self.assertRaises(e2b.SandboxException):
            sandbox.update_network({"deny_out": ["not an address!"]})

    def test_failures(self):
        with self.assertRaises(e2b.SandboxException) as caught:
            Sandbox.create(template="no-such-template")
        self.assertIn("brood template build", str(caught.exception))
        with self.assertRaises(e2b.AuthenticationException):
            Sandbox.create(api_key="e2b_" + "0" * 40)
        with self.assertRaises(e2b.SandboxException):
            Sandbox.create(timeout=10 ** 9)

    def test_the_token_of_another_sandbox_opens_nothing(self):
        one, two = self.create(), self.create()
        headers = {"E2b-Sandbox-Id": one.sandbox_id, "E2b-Sandbox-Port": "49983"}
        base = os.environ["E2B_SANDBOX_URL"]
        token = two._envd_access_token if hasattr(two, "_envd_access_token") else two.connection_config.sandbox_headers["X-Access-Token"]
        for given in ({}, {"X-Access-Token": token}, {"X-Access-Token": "0" * 64}):
            request = urllib.request.Request(f"{base}/files?path=/etc/passwd", headers={**headers, **given})
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            self.assertEqual(caught.exception.code, 401)


@since(2, 40)
class Templates(unittest.TestCase):
    def test_build_use_tag_and_delete(self):
        name = f"suite-{time.time_ns()}"
        with tempfile.TemporaryDirectory() as directory:
            os.makedirs(f"{directory}/app/inner")
            for path, text in {"one.txt": "one", "app/two.txt": "two", "app/inner/three.txt": "three"}.items():
                with open(f"{directory}/{path}", "w") as file:
                    file.write(text)
            template = (
                e2b.Template(file_context_path=directory)
                .from_template("base")
                .set_envs({"BUILT": "it's so"})
                .set_workdir("/srv/app")
                .copy("one.txt", "/srv/one.txt")
                .copy("app", "/srv/app/", user="user", mode=0o640)
                .run_cmd("echo \"$BUILT\" > built.txt && test -e two.txt")
                .set_user("user")
                .run_cmd("id -un > /tmp/who")
            )
            lines = []
            e2b.Template.build(template, alias=name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
        self.assertTrue(any("echo" in str(line.message) for line in lines))
        self.assertTrue(e2b.Template.alias_exists(name) if hasattr(e2b.Template, "alias_exists") else e2b.Template.exists(name))
        sandbox = Sandbox.create(template=name, timeout=60)
        try:
            result = sandbox.commands.run("pwd; id -un; cat /srv/one.txt built.txt two.txt inner/three.txt /tmp/who; echo $BUILT")
            self.assertEqual(result.stdout, "/srv/app\nuser\noneit's so\ntwothreeuser\nit's so\n")
            self.assertEqual(sandbox.commands.run("stat -c '%U %a' two.txt").stdout, "user 640\n")
            info = sandbox.get_info()
            self.assertEqual((info.cpu_count, info.memory_mb), (1, 512))
        finally:
            sandbox.kill()
        if hasattr(e2b.Template, "assign_tags"):
            e2b.Template.assign_tags(name, ["v1", "v2"])
            self.assertEqual({tag.tag for tag in e2b.Template.get_tags(name)}, {"default", "v1", "v2"})
            e2b.Template.remove_tags(name, ["v1"])
            with self.assertRaises(e2b.SandboxException):
                Sandbox.create(template=f"{name}:v1")
            Sandbox.create(template=f"{name}:v2", timeout=5).kill()

    def test_a_failing_step_is_told(self):
        template = e2b.Template().from_template("base").run_cmd("echo so be it >&2; exit 7")
        with self.assertRaises(e2b.BuildException) as caught:
            e2b.Template.build(template, alias=f"failing-{time.time_ns()}")
        self.assertIn("7", str(caught.exception))


if __name__ == "__main__":
    unittest.main(verbosity=1)
