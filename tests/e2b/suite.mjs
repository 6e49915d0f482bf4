// The JavaScript package `e2b` against a live daemon, by node's own test runner.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { after, before, test } from 'node:test'

// The package lies in a directory of the caller's choice, one for each version.
const load = createRequire(process.env.E2B_PACKAGES + '/')
const e2b = load('e2b')
const { Sandbox } = e2b
const [major, minor] = load('e2b/package.json').version.split('.').map(Number)
const since = (least) => ({ skip: major === 2 && minor < least ? `older than 2.${least}` : false })

let sandbox
before(async () => { sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { suite: 'js' } }) })
after(async () => { await sandbox.kill() })

test('output, exit codes, environment', async () => {
  const result = await sandbox.commands.run('echo out $A; echo err >&2', { envs: { A: 'b' } })
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [0, 'out b\n', 'err\n'])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 9', { timeoutMs: 1000 }), e2b.TimeoutError)
})

test('background, input, lists, kill', async () => {
  const command = await sandbox.commands.run('read x; echo got $x', { background: true, stdin: true })
  assert.ok((await sandbox.commands.list()).some((process) => process.pid === command.pid))
  await sandbox.commands.sendStdin(command.pid, 'abc\n')
  assert.equal((await command.wait()).stdout, 'got abc\n')
  const other = await sandbox.commands.run('sleep 100', { background: true })
  assert.equal(await sandbox.commands.kill(other.pid), true)
  assert.equal(await sandbox.commands.kill(other.pid), false)
  await assert.rejects(sandbox.commands.connect(4_000_000), e2b.NotFoundError)
})

test('files in all forms', async () => {
  const files = sandbox.files
  const text = 'é€😀'.repeat(20_000)
  await files.write('/tmp/js/a.txt', text)
  assert.equal(await files.read('/tmp/js/a.txt'), text)
  assert.equal((await files.read('/tmp/js/a.txt', { format: 'bytes' })).length, Buffer.byteLength(text))
  await files.write('/tmp/js/empty', '')
  assert.equal(await files.read('/tmp/js/empty'), '')
  await files.write([{ path: '/tmp/js/1', data: 'one' }, { path: '/tmp/js/2', data: 'two' }])
  assert.equal(await files.read('/tmp/js/2'), 'two')
  for (const name of ['a "quoted" name', 'blank é€', '%41']) {
    await files.write(`/tmp/js/odd/${name}`, name)
    assert.equal(await files.read(`/tmp/js/odd/${name}`), name)
  }
  assert.deepEqual((await files.list('/tmp/js')).map((entry) => entry.name).sort(), ['1', '2', 'a.txt', 'empty', 'odd'])
})

test('directories and what is missing', async () => {
  const files = sandbox.files
  assert.equal(await files.makeDir('/tmp/d/e'), true)
  assert.equal(await files.makeDir('/tmp/d/e'), false)
  assert.equal(await files.exists('/tmp/none'), false)
  await files.write('/tmp/d/f', 'x')
  assert.equal((await files.rename('/tmp/d/f', '/tmp/d/g')).path, '/tmp/d/g')
  assert.equal((await files.getInfo('/tmp/d/g')).size, 1)
  await files.remove('/tmp/d')
  await assert.rejects(files.read('/tmp/none'), e2b.NotFoundError)
  await assert.rejects(files.list('/tmp/none'), e2b.NotFoundError)
})

test('watching', async () => {
  await sandbox.files.makeDir('/tmp/w')
  const seen = []
  let told
  const written = new Promise((resolve) => { told = resolve })
  const watch = await sandbox.files.watchDir('/tmp/w', (event) => {
    seen.push(`${event.type} ${event.name}`)
    if (event.type === 'write') told()
  })
  await sandbox.files.write('/tmp/w/new', '1')
  await written
  assert.ok(seen.includes('create new'))
  await watch.stop()
})

test('terminals', async () => {
  let seen = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { seen += Buffer.from(data).toString() } })
  await sandbox.pty.resize(pty.pid, { cols: 101, rows: 30 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait()
  assert.match(seen, /30 101/)
})

test('signed addresses', async () => {
  await sandbox.files.write('/tmp/signed file', 'signed')
  const url = await sandbox.downloadUrl('/tmp/signed file')
  assert.equal(await (await fetch(url)).text(), 'signed')
  assert.equal((await fetch(url.replace('signed', 'other'))).status, 401)
  const up = await sandbox.uploadUrl('/tmp/up')
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up')
  assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('/tmp/up'), 'uploaded')
})

test('life', async () => {
  const one = await Sandbox.create({ timeoutMs: 60_000, metadata: { 'k y': 'v&=1' } })
  assert.equal(await one.isRunning(), true)
  await one.setTimeout(90_000)
  assert.equal((await one.getInfo()).sandboxId, one.sandboxId)
  const pages = Sandbox.list({ query: { metadata: { 'k y': 'v&=1' } } })
  assert.ok((await pages.nextItems()).some((info) => info.sandboxId === one.sandboxId))
  const again = await Sandbox.connect(one.sandboxId)
  assert.equal((await again.commands.run('echo hi')).stdout, 'hi\n')
  assert.equal(await one.kill(), true)
  assert.equal(await Sandbox.kill(one.sandboxId), false)
  assert.equal(await one.isRunning(), false)
  await assert.rejects(Sandbox.connect(one.sandboxId))
})

test('pause and resume', since(28), async () => {
  const one = await Sandbox.create({ timeoutMs: 60_000 })
  await one.files.write('/tmp/x', 'kept')
  assert.equal(await (one.pause ?? one.betaPause).call(one), true)
  assert.equal(await (one.pause ?? one.betaPause).call(one), false)
  const again = await Sandbox.connect(one.sandboxId)
  assert.equal(await again.files.read('/tmp/x'), 'kept')
  await one.kill()
})

test('failures', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), /brood template build/)
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), e2b.AuthenticationError)
})
