//! The process under test and the source of its pages.

use std::any::Any;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use brood_kernel::userfaultfd::{Userfaultfd, Watch};
use brood_pager::{Adoption, FEATURES, PageAddress, PageSource, PagedSpace, Pager, Supply};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

pub const PAGE: u64 = 4096;
/// Longest wait for something that needs microseconds.
const PATIENCE: Duration = Duration::from_secs(20);

type Gate = Arc<Mutex<(Sender<()>, Receiver<()>)>>;

/// The content that the program expects.
#[derive(Debug, Default)]
pub struct Pattern {
    /// Pages supplied together.
    pub together: usize,
    /// A page that is lost.
    pub lost: Option<u64>,
    /// Tells when it is asked and waits until it may answer.
    pub gate: Option<Gate>,
}

impl PageSource for Pattern {
    fn supply(&self, address: PageAddress, into: &mut [u8; PAGE as usize]) -> Supply {
        if let Some(gate) = &self.gate {
            let gate = gate.lock().unwrap();
            // Once the test is through with it, everything is let pass.
            if gate.0.send(()).is_ok() {
                gate.1.recv().ok();
            }
        }
        let page = address.get() / PAGE;
        if self.lost == Some(page) {
            return Supply::Unknown;
        }
        if page.is_multiple_of(5) {
            return Supply::Zero;
        }
        for (at, word) in into.chunks_exact_mut(8).enumerate() {
            let value = (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Supply::Page
    }

    fn next_page(&self, range: Range<PageAddress>) -> Option<PageAddress> {
        let mut pages = range.start.get() / PAGE..range.end.get() / PAGE;
        pages.find(|page| !page.is_multiple_of(5)).map(|page| PageAddress::of(page * PAGE))
    }

    fn together(&self, _: PageAddress) -> usize {
        self.together
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A running subject. Killed when dropped.
#[derive(Debug)]
pub struct Subject {
    process: Child,
    output: BufReader<ChildStdout>,
    watcher: i32,
    pages: u64,
    /// First address of its memory.
    pub base: u64,
}

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/subject.c");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join(format!("pager-subject-{}", std::process::id()));
        let compiled = Command::new("cc").args(["-O1", "-Wall", "-pthread", "-o"]).arg(&program).arg(source).status();
        assert!(compiled.unwrap().success());
        program
    })
}

impl Subject {
    pub fn start(scenario: &str, pages: u64) -> Self {
        let mut process = Command::new(program())
            .args([scenario, &pages.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut this = Self { process, output, watcher: 0, pages, base: 0 };
        let line = this.line();
        let (watcher, base) = line.split_once(' ').unwrap();
        (this.watcher, this.base) = (watcher.parse().unwrap(), base.parse().unwrap());
        this
    }

    /// Has its memory owed by a source, which knows it by addresses from 0 on, and lets it go.
    pub fn adopt(&mut self, pager: &Pager, source: Pattern) -> PagedSpace {
        self.adopt_with(pager, source, |_, _| {})
    }

    /// The same; does something before it is let go.
    pub fn adopt_with(&mut self, pager: &Pager, source: Pattern, then: impl Fn(&PagedSpace, u64)) -> PagedSpace {
        let pid = Pid::from_child(&self.process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let descriptor = pidfd_getfd(pidfd, self.watcher, PidfdGetfdFlags::empty()).unwrap();
        let watcher = Userfaultfd::start(descriptor, FEATURES).unwrap();
        watcher.register(self.base, self.pages * PAGE, Watch::MISSING).unwrap();
        let space = pager.adopt(watcher, Adoption::default());
        let range = PageAddress::of(self.base)..PageAddress::of(self.base + self.pages * PAGE);
        space.owe(range, Arc::new(source), PageAddress::of(0));
        then(&space, self.base);
        self.say("go");
        space
    }

    fn say(&mut self, text: &str) {
        // One that failed early has closed its input; its message says more.
        writeln!(self.process.stdin.as_mut().unwrap(), "{text}").ok();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets it do the rest; returns what it says at the end.
    pub fn finish(&mut self) -> String {
        self.say("go");
        let last = self.line();
        assert!(self.process.wait().unwrap().success(), "{last}");
        last
    }

    /// Kills it and waits until it is gone, which a wait for a page may not hinder.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for something that other threads bring about.
    pub fn wait_until(&self, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < PATIENCE, "it does not come");
            std::thread::yield_now();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
