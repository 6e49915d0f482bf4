"""The Python package `e2b`, its asynchronous classes, against a live daemon."""

import asyncio
import unittest
from importlib.metadata import version

import e2b
from e2b import AsyncSandbox

VERSION = tuple(int(part) for part in version("e2b").split("."))


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.sandbox = await AsyncSandbox.create(timeout=120, metadata={"suite": "async"})

    async def asyncTearDown(self):
        await self.sandbox.kill()

    async def test_many_commands_at_once(self):
        results = await asyncio.gather(*(self.sandbox.commands.run(f"echo {n}; sleep 0.1") for n in range(16)))
        self.assertEqual([result.stdout for result in results], [f"{n}\n" for n in range(16)])

    async def test_failures_and_deadlines(self):
        with self.assertRaises(e2b.CommandExitException):
            await self.sandbox.commands.run("exit 1")
        with self.assertRaises(e2b.TimeoutException):
            await self.sandbox.commands.run("sleep 9", timeout=1)
        with self.assertRaises(e2b.NotFoundException):
            await self.sandbox.files.read("/missing")

    async def test_background_with_callbacks(self):
        seen = []
        command = await self.sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.05; done", background=True, on_stdout=seen.append)
        await command.wait()
        self.assertEqual("".join(seen), "1\n2\n3\n")

    async def test_files(self):
        files = self.sandbox.files
        await files.write("/tmp/a/b", "text")
        self.assertEqual(await files.read("/tmp/a/b"), "text")
        stream = await files.read("/tmp/a/b", format="stream")
        self.assertEqual(b"".join([piece async for piece in stream]), b"text")
        self.assertEqual([entry.name for entry in await files.list("/tmp/a")], ["b"])
        self.assertTrue(await files.exists("/tmp/a/b"))
        await files.remove("/tmp/a")
        self.assertFalse(await files.exists("/tmp/a/b"))

    async def test_watching(self):
        await self.sandbox.files.make_dir("/tmp/w")
        seen = asyncio.Event()
        events = []

        async def note(event):
            events.append((event.name, event.type.value))
            if event.type.value == "write":
                seen.set()

        watch = await self.sandbox.files.watch_dir("/tmp/w", on_event=note)
        await self.sandbox.files.write("/tmp/w/new", "1")
        await asyncio.wait_for(seen.wait(), 10)
        self.assertIn(("new", "create"), events)
        await watch.stop()

    async def test_terminal(self):
        seen = bytearray()
        done = asyncio.Event()

        async def note(data):
            seen.extend(data)

        pty = await self.sandbox.pty.create(e2b.PtySize(rows=24, cols=80), on_data=note)
        await self.sandbox.pty.send_stdin(pty.pid, b"echo $((6*7)); exit\n")
        await pty.wait()
        self.assertIn(b"42", bytes(seen))

    @unittest.skipUnless(VERSION >= (2, 60), "newer")
    async def test_input_as_a_stream(self):
        command = await self.sandbox.commands.run("cat", background=True, stdin=True)
        if not hasattr(self.sandbox.commands, "stream_input"):
            self.skipTest("this version has no stream_input")
        stream = self.sandbox.commands.stream_input(command.pid)
        await stream.send("one ")
        await stream.send("two")
        await stream.close()
        await self.sandbox.commands.close_stdin(command.pid)
        self.assertEqual((await command.wait()).stdout, "one two")

    async def test_life(self):
        sandbox = await AsyncSandbox.create(timeout=60)
        self.assertTrue(await sandbox.is_running())
        await sandbox.set_timeout(90)
        info = await sandbox.get_info()
        self.assertEqual(info.sandbox_id, sandbox.sandbox_id)
        pages = AsyncSandbox.list()
        self.assertIn(sandbox.sandbox_id, [one.sandbox_id for one in await pages.next_items()])
        self.assertTrue(await sandbox.kill())
        self.assertFalse(await sandbox.is_running())
        with self.assertRaises(e2b.TimeoutException):
            await sandbox.commands.run("true")


if __name__ == "__main__":
    unittest.main(verbosity=1)
