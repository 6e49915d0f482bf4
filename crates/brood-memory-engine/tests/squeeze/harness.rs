//! Sandboxes of the poor: a shell as PID 1 with one program below it, and the machinery to squeeze them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use brood_deltacr::{Paging, Tree};
use brood_memory_engine::engine::{EngineSettings, MemoryEngine};
use brood_memory_engine::guardian::Guardian;
use brood_memory_engine::{Machinery, RestoreReport, SandboxMemory, SqueezeReport};
use brood_pager::{Pager, Settings};
use brood_pages::pool::CohortId;
use rustix::process::Pid;

/// Compiles the C program of this folder once; returns it.
pub fn chains() -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/squeeze/chains.c");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("squeeze-chains");
    // Tests run in processes of their own: one compiles, the others wait.
    let turn = std::fs::File::create(target.with_extension("lock")).unwrap();
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let newer = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if newer(&target) <= newer(&source) {
        let aside = target.with_extension(std::process::id().to_string());
        let compiled =
            Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&aside).arg(&source).arg("-lpthread").status().unwrap();
        assert!(compiled.success(), "chains.c does not compile");
        std::fs::rename(aside, &target).unwrap();
    }
    target
}

/// A machinery of a test's own, and its pager.
pub struct TestMachinery {
    machinery: Machinery,
    pub pager: Arc<Pager>,
}

/// A machinery of a test's own.
pub fn machinery() -> TestMachinery {
    with_pager(Pager::new(Settings::default()).unwrap())
}

/// One whose userfaultfds somebody else has too.
pub fn machinery_with(guardian: Arc<Guardian>) -> TestMachinery {
    with_pager(Pager::with_custodian(Settings::default(), guardian).unwrap())
}

fn with_pager(pager: Pager) -> TestMachinery {
    let pager = Arc::new(pager);
    let engine = MemoryEngine::new(EngineSettings { pool_bytes_max: 1 << 30, ..Default::default() }).unwrap();
    TestMachinery { machinery: Machinery { engine, paging: Arc::new(Paging::new(Arc::clone(&pager)).unwrap()) }, pager }
}

/// A shell with one program below it. All of it ends when this is dropped.
pub struct Sandbox {
    launcher: Child,
    init: Pid,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub tree: Tree,
    pub memory: SandboxMemory,
}

impl Sandbox {
    pub fn start(machinery: &TestMachinery, cohort: u64, command: &[&str]) -> Self {
        // In a namespace of its own, all of it ends with its PID 1.
        let mut launcher = Command::new("unshare")
            .args(["--pid", "--fork", "/bin/sh", "-c", "exec 3<&0; \"$@\" <&3 3<&- & exec <&- 3<&-; wait", "sh"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (launcher.stdin.take().unwrap(), BufReader::new(launcher.stdout.take().unwrap()));
        let init = child_of(launcher.id());
        let tree = Tree::new(init).unwrap();
        let cohort = machinery.machinery.engine.cohort(CohortId(cohort));
        let memory = SandboxMemory::new(machinery.machinery.clone(), cohort, HashMap::new());
        Self { launcher, init, input, output, tree, memory }
    }

    pub fn chains(machinery: &TestMachinery, pages: usize) -> Self {
        let program = chains();
        let mut sandbox = Self::start(machinery, 1, &[program.to_str().unwrap(), &pages.to_string()]);
        assert_eq!(sandbox.line(), "ready");
        sandbox
    }

    pub fn send(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).unwrap();
        self.input.write_all(b"\n").unwrap();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    #[track_caller]
    pub fn good(&mut self, line: &str) {
        assert_eq!(self.ask(line), "ok", "{line}");
    }

    pub fn squeeze(&mut self) -> SqueezeReport {
        self.memory.squeeze(&mut self.tree, &|| true).unwrap()
    }

    pub fn absent_pages(&self) -> usize {
        self.memory.absent_pages(&self.tree)
    }

    pub fn restore(&mut self) -> RestoreReport {
        self.memory.restore(&self.tree)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _gone = rustix::process::kill_process(self.init, rustix::process::Signal::KILL);
        let _status = self.launcher.wait();
    }
}

/// The only child that a process is about to have.
fn child_of(parent: u32) -> Pid {
    loop {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        if let Some(child) = children.split_whitespace().next() {
            return Pid::from_raw(child.parse().unwrap()).unwrap();
        }
        std::thread::yield_now();
    }
}
