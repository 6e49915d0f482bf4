//! An engine with a private state directory, gone when the test is over, however it ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use brood_sandbox::build::Quiet;
use brood_sandbox::engine::{Engine, EngineSettings};
use brood_sandbox::model::{BuildRequest, BuildStep, CreateRequest, ExitReport, ProcessRequest, ResourceLimits};
use brood_sandbox::output::{OutputEvent, Stream};
use brood_sandbox::sandbox::Sandbox;
use rustix::fs::FlockOperation;

/// What the tests' root holds besides Debian's minimal set.
const PACKAGES: &str = "python3,gcc,libc6-dev";

/// A root file system archive, made once.
pub(crate) fn root_archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let archive = directory.join(format!("debian-{}.tar", PACKAGES.replace(',', "-")));
        // Tests run as processes of their own: one makes it, the others wait.
        let lock = std::fs::File::create(directory.join("debian.lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        if !archive.exists() {
            let half_made = directory.join("debian.partial.tar");
            let include = format!("--include={PACKAGES}");
            let status = Command::new("mmdebstrap")
                .args(["--variant=minbase", &include, "bookworm"])
                .arg(&half_made)
                .status()
                .expect("mmdebstrap is needed: apt-get install mmdebstrap");
            assert!(status.success());
            std::fs::rename(&half_made, &archive).unwrap();
        }
        archive
    })
}

/// An engine of one test.
pub(crate) struct TestEngine {
    engine: Option<Arc<Engine>>,
    directory: tempfile::TempDir,
}

impl TestEngine {
    /// With nothing in it.
    pub(crate) fn empty() -> Self {
        let directory = tempfile::Builder::new().prefix("brood-test-").tempdir_in("/var/tmp").unwrap();
        let engine = open(directory.path());
        Self { engine: Some(engine), directory }
    }

    /// With the template `debian`.
    pub(crate) fn with_debian() -> Self {
        let engine = Self::empty();
        engine.build("debian", Vec::new());
        engine
    }

    pub(crate) fn build(&self, name: &str, steps: Vec<BuildStep>) {
        self.build_template(build_request(name, steps), &Quiet).unwrap_or_else(|error| panic!("{}", error.chain()));
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Ends the engine and opens another on the same directory.
    pub(crate) fn reopen(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown();
        }
        self.engine = Some(open(self.directory.path()));
    }

    pub(crate) fn sandbox(&self) -> Arc<Sandbox> {
        self.create(create_request()).unwrap_or_else(|error| panic!("{}", error.chain()))
    }
}

fn open(directory: &Path) -> Arc<Engine> {
    // Unpacked once for all tests: what an image's layers hold never changes.
    let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    std::fs::create_dir_all(&images).unwrap();
    std::fs::create_dir_all(directory.join("state")).unwrap();
    let link = directory.join("state/images");
    if !link.exists() {
        std::os::unix::fs::symlink(&images, link).unwrap();
    }
    let settings = EngineSettings::new(directory.join("state"), directory.join("run"));
    Engine::open(settings).unwrap_or_else(|error| panic!("{}", error.chain()))
}

impl std::ops::Deref for TestEngine {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        self.engine.as_ref().expect("present until the end")
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown();
        }
    }
}

pub(crate) fn build_request(name: &str, steps: Vec<BuildStep>) -> BuildRequest {
    BuildRequest {
        name: name.parse().unwrap(),
        source: format!("tar:{}", root_archive().display()),
        steps,
        environment: BTreeMap::new(),
        working_directory: None,
        user: None,
        start_command: None,
        ready_command: None,
        no_cache: false,
    }
}

pub(crate) fn create_request() -> CreateRequest {
    CreateRequest {
        limits: ResourceLimits { memory_bytes: 256 << 20, pids: 128, ..ResourceLimits::default() },
        ..CreateRequest::plain("debian".parse().unwrap())
    }
}

pub(crate) fn call(arguments: &[&str]) -> ProcessRequest {
    ProcessRequest {
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        environment: BTreeMap::new(),
        user: None,
        working_directory: None,
        terminal: None,
        stdin: false,
        timeout: None,
        background: false,
        tag: None,
    }
}

pub(crate) fn shell(script: &str) -> ProcessRequest {
    call(&["sh", "-c", script])
}

/// What a call printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) report: ExitReport,
}

pub(crate) fn run(sandbox: &Arc<Sandbox>, request: ProcessRequest) -> Outcome {
    let (_process, mut output) = sandbox.spawn_with_output(request).unwrap_or_else(|error| panic!("{}", error.chain()));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match output.next_blocking() {
            Some(OutputEvent::Data { stream: Stream::Stderr, bytes }) => stderr.extend_from_slice(&bytes),
            Some(OutputEvent::Data { bytes, .. }) => stdout.extend_from_slice(&bytes),
            Some(OutputEvent::Ended(report)) => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return Outcome { stdout: text(stdout), stderr: text(stderr), report };
            }
            Some(OutputEvent::Lost { bytes }) => panic!("{bytes} bytes lost"),
            None => panic!("no end"),
        }
    }
}

/// Runs a script that must succeed; what it printed.
pub(crate) fn out(sandbox: &Arc<Sandbox>, script: &str) -> String {
    let outcome = run(sandbox, shell(script));
    assert_eq!(outcome.report.shell_code(), 0, "{script}: {outcome:?}");
    outcome.stdout.trim_end().to_owned()
}
