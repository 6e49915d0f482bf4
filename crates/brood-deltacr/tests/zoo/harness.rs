//! Test sandboxes: fresh namespaces with a tiny PID 1 and one zoo program between two pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use brood_deltacr::address_space::ObjectIdentity;
use brood_deltacr::descriptors::{Endpoint, EndpointKind, ExternalKey, Externals};
use brood_deltacr::{
    PageStore, ProcessTreeImage, RestoreTarget, RollbackRequest, RollbackStatistics, SandboxRoot, Seed, Tree,
};
use brood_pager::{Pager, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

/// How long a zoo program may take to answer.
const ANSWER_SECONDS: i64 = 20;

/// Compiles a C source of this folder once; returns the program.
pub fn program(name: &str) -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zoo");
    let (source, header) = (folder.join(format!("{name}.c")), folder.join("zoo.h"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("zoo-{name}"));
    // Tests run in processes of their own: one compiles, the others wait, or a program that runs
    // already would be replaced, and its mapping could not be captured any more.
    let turn = std::fs::File::create(target.with_extension("lock")).unwrap();
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let newer = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let is_fresh = newer(&target).is_some_and(|time| Some(time) > newer(&source) && Some(time) > newer(&header));
    if !is_fresh {
        // Aside first, so that a compilation that was interrupted leaves no half of a program.
        let aside = target.with_extension(std::process::id().to_string());
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&aside)
            .arg(&source)
            .arg("-lpthread")
            .status()
            .unwrap();
        assert!(compiled.success(), "{name}.c does not compile");
        std::fs::rename(aside, &target).unwrap();
    }
    target
}

/// The engine's side of a sandbox's pipes, by the inode of the pipe.
#[derive(Debug)]
pub struct Pipes {
    input: ObjectIdentity,
    output: ObjectIdentity,
    /// Number of the device of the program's terminal, if it has one.
    pub terminal: Option<u64>,
    /// Ends for a fork, handed out once.
    ends: Mutex<Vec<(ExternalKey, OwnedFd)>>,
}

const INPUT: ExternalKey = ExternalKey(0);
const OUTPUT: ExternalKey = ExternalKey(1);
const TERMINAL: ExternalKey = ExternalKey(2);

impl Pipes {
    /// Gives the next fork a terminal.
    pub fn offer_terminal(&mut self, terminal: OwnedFd) {
        self.terminal = Some(rustix::fs::fstat(&terminal).unwrap().st_rdev);
        self.ends.lock().unwrap().push((TERMINAL, terminal));
    }
}

impl Externals for Pipes {
    fn identify(&self, endpoint: &Endpoint) -> Option<ExternalKey> {
        if endpoint.kind == EndpointKind::Terminal {
            return (Some(endpoint.identity.inode) == self.terminal).then_some(TERMINAL);
        }
        let keys = [(self.input, INPUT), (self.output, OUTPUT)];
        keys.into_iter().find(|(identity, _)| *identity == endpoint.identity).map(|(_, key)| key)
    }

    fn reopen(&self, key: ExternalKey) -> std::io::Result<OwnedFd> {
        let mut ends = self.ends.lock().unwrap();
        let position = ends.iter().position(|(other, _)| *other == key);
        Ok(ends.remove(position.ok_or(std::io::ErrorKind::NotFound)?).1)
    }
}

fn identity(file: impl AsFd) -> ObjectIdentity {
    let stat = rustix::fs::fstat(file).unwrap();
    ObjectIdentity { device: stat.st_dev, inode: stat.st_ino }
}

/// A sandbox with its processes. Everything in it dies when it is dropped.
#[derive(Debug)]
pub struct Sandbox {
    launcher: Child,
    _messages: BufReader<ChildStderr>,
    pub init: Pid,
    pub input: Option<Box<dyn WriteEnd>>,
    output: Box<dyn ReadEnd>,
    pub pipes: Pipes,
}

pub trait WriteEnd: Write + AsFd + std::fmt::Debug + Send {}
impl<T: Write + AsFd + std::fmt::Debug + Send> WriteEnd for T {}
pub trait ReadEnd: Read + AsFd + std::fmt::Debug + Send {}
impl<T: Read + AsFd + std::fmt::Debug + Send> ReadEnd for T {}

impl Sandbox {
    /// Starts a program in a new sandbox and waits until it is ready.
    pub fn start(command: &[&str]) -> Self {
        let mut sandbox = Self::launch(command);
        assert_eq!(sandbox.line(), "ready");
        sandbox
    }

    /// Starts a program that doesn't say when it is ready.
    pub fn start_silent(command: &[&str]) -> Self {
        Self::launch(command)
    }

    /// A sandbox without processes, into which a tree can be restored. The pipes for it are new.
    pub fn empty() -> Self {
        let mut sandbox = Self::launch(&[]);
        let (input_reader, input) = std::io::pipe().unwrap();
        let (output, output_writer) = std::io::pipe().unwrap();
        sandbox.pipes = Pipes {
            input: identity(&input),
            output: identity(&output),
            terminal: None,
            ends: Mutex::new(vec![(INPUT, input_reader.into()), (OUTPUT, output_writer.into())]),
        };
        sandbox.input = Some(Box::new(input));
        sandbox.output = Box::new(output);
        sandbox
    }

    fn launch(command: &[&str]) -> Self {
        let mut launcher = Command::new(program("init"))
            .arg("--")
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(launcher.stderr.take().unwrap());
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        let init = line.trim().parse().ok().and_then(Pid::from_raw);
        let init = init.unwrap_or_else(|| panic!("no sandbox: {line}"));
        let input = launcher.stdin.take().unwrap();
        let output = launcher.stdout.take().unwrap();
        let pipes =
            Pipes { input: identity(&input), output: identity(&output), terminal: None, ends: Mutex::default() };
        Self { launcher, _messages: messages, init, input: Some(Box::new(input)), output: Box::new(output), pipes }
    }

    pub fn tree(&self) -> Tree {
        Tree::new(self.init).unwrap()
    }

    pub fn send(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Sends a command and returns the answer's line.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }

    /// Reads a line, byte by byte so that nothing is read ahead.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            let mut descriptor = [PollFd::new(&self.output, PollFlags::IN)];
            let patience = Timespec { tv_sec: ANSWER_SECONDS, tv_nsec: 0 };
            let ready = poll(&mut descriptor, Some(&patience)).unwrap();
            assert!(ready > 0, "no answer; so far {:?}\n{}", String::from_utf8_lossy(&line), self.describe());
            let mut byte = [0];
            if self.output.read(&mut byte).unwrap() == 0 {
                return format!("END after {:?}", String::from_utf8_lossy(&line));
            }
            if byte[0] == b'\n' {
                return String::from_utf8(line).unwrap();
            }
            line.push(byte[0]);
        }
    }

    /// What the host sees of the processes, for messages.
    fn describe(&self) -> String {
        let path = format!("/proc/{0}/task/{0}/children", self.init.as_raw_nonzero());
        let children = std::fs::read_to_string(path).unwrap_or_default();
        let mut text = String::new();
        for pid in children.split_whitespace() {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for task in tasks {
                let path = task.path();
                let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
                text.push_str(&format!("{}: {} {}", path.display(), read("wchan"), read("syscall")));
            }
            for file in ["status", "stack"] {
                let content = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
                text.extend(content.lines().take(3).map(|line| format!("{pid} {file}: {line}\n")));
            }
        }
        text
    }

    /// Restores an image into this empty sandbox and lets it run.
    pub fn restore(&self, image: &ProcessTreeImage) -> Tree {
        let root = SandboxRoot::of_process(self.init).unwrap();
        let target = RestoreTarget { init: self.init, root: &root, place: &|_| Ok(()) };
        let restored = image.restore(seed(), &target, &self.pipes);
        restored.unwrap_or_else(|error| panic!("{}", chain(&error))).run().unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let killed = self.launcher.kill().and_then(|()| self.launcher.wait());
        assert!(killed.is_ok() || std::thread::panicking());
    }
}

/// One seed for all tests of a process.
pub fn seed() -> &'static Seed {
    static SEED: OnceLock<Seed> = OnceLock::new();
    SEED.get_or_init(|| {
        let mut seed = Seed::new().unwrap();
        if std::env::var_os("BROOD_ZOO_EAGER").is_none() {
            seed.page_with(Arc::clone(pager())).unwrap();
        }
        seed
    })
}

/// The pager that supplies the pages of restored processes.
pub fn pager() -> &'static Arc<Pager> {
    static PAGER: OnceLock<Arc<Pager>> = OnceLock::new();
    PAGER.get_or_init(|| Arc::new(Pager::new(Settings::default()).unwrap()))
}

/// Captures a tree and lets it go on.
pub fn capture(tree: &mut Tree, store: &Arc<PageStore>, pipes: &Pipes) -> ProcessTreeImage {
    let mut stopped = tree.stop().unwrap();
    let captured = stopped.capture(store, pipes);
    let _standstill = stopped.resume();
    captured.unwrap_or_else(|error| panic!("{}", chain(&error))).0
}

/// Rolls a tree back and lets it go on.
pub fn roll_back(tree: &mut Tree, image: &ProcessTreeImage, sandbox: &Sandbox) -> RollbackStatistics {
    let root = SandboxRoot::of_process(sandbox.init).unwrap();
    let target = RestoreTarget { init: sandbox.init, root: &root, place: &|_| Ok(()) };
    let request = RollbackRequest { target, seed: seed(), externals: &sandbox.pipes, files_exchanged: false };
    let rolled_back = tree.stop().unwrap().roll_back(image, &request);
    let (rolled_back, statistics) = rolled_back.unwrap_or_else(|error| panic!("{}", chain(&error)));
    rolled_back.run().unwrap();
    statistics
}

/// An error with all its sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}
