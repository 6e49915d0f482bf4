//! One daemon for all tests of this process, and short ways to talk to it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::fs::FlockOperation;
use serde_json::Value;

/// The template that tests use: Debian's smallest set of packages with Python.
pub const TEMPLATE: &str = "base";

static FIXTURE: OnceLock<Fixture> = OnceLock::new();

/// The daemon's directories, and what ends it.
pub struct Fixture {
    pub directory: PathBuf,
    /// Held by this process alone: when it ends, in whatever way, the janitor reads the end of it.
    _lifeline: ChildStdin,
}

pub fn fixture() -> &'static Fixture {
    FIXTURE.get_or_init(|| Fixture::start("shared"))
}

/// Ends the daemon and removes its directories once this process is gone.
fn start_janitor(directory: &Path) -> ChildStdin {
    const SCRIPT: &str =
        "trap '' INT TERM HUP; cat >/dev/null; \"$0\" --no-spawn serve --stop >/dev/null 2>&1; rm -rf \"$1\"";
    let mut janitor = Command::new("setsid");
    janitor.args(["--fork", "/bin/sh", "-c", SCRIPT]).arg(binary()).arg(directory);
    janitor.env("BROOD_STATE_DIRECTORY", directory.join("state")).env("BROOD_RUN_DIRECTORY", directory.join("run"));
    let mut janitor = janitor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let lifeline = janitor.stdin.take().unwrap();
    // `setsid` itself ends at once; the janitor goes on without a parent.
    assert!(janitor.wait().unwrap().success());
    lifeline
}

/// A root file system, made once and kept between runs.
fn root_archive() -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let lock = File::create(kept.join("root.lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let archive = kept.join("root-python3.tar");
    if !archive.exists() {
        let new = kept.join("root-python3.new.tar");
        let suite = fs::read_to_string("/etc/os-release")
            .unwrap()
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME=").map(str::to_owned))
            .unwrap();
        let status = Command::new("mmdebstrap")
            .args(["--quiet", "--variant=minbase", "--include=python3,procps", &suite])
            .arg(&new)
            .status()
            .expect("mmdebstrap is installed");
        assert!(status.success(), "mmdebstrap: {status}");
        fs::rename(&new, &archive).unwrap();
    }
    archive
}

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_brood")
}

impl Fixture {
    /// A daemon of its own with the template.
    pub fn start(name: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests run as root");
        let directory = PathBuf::from(format!("/var/tmp/brood-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let lifeline = start_janitor(&directory);
        let fixture = Self { directory, _lifeline: lifeline };
        let from = format!("tar:{}", root_archive().display());
        fixture.run(&["template", "build", TEMPLATE, "--from", &from]).succeeded();
        fixture
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.brood(arguments).stdin(Stdio::null()).output().unwrap().into()
    }

    pub fn brood(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env_remove("BROOD_CONFIG");
        command.env("BROOD_STATE_DIRECTORY", self.directory.join("state"));
        command.env("BROOD_RUN_DIRECTORY", self.directory.join("run"));
        command.env("BROOD_LOG", "debug");
        command
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("run/brood.sock")
    }

    pub fn daemon_pid(&self) -> u32 {
        let version = self.run(&["version", "--json"]).succeeded().json();
        u32::try_from(version["daemon"]["pid"].as_u64().unwrap()).unwrap()
    }
}

/// What a command line did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        self.ended(0)
    }

    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn said(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not in {self:#?}");
        self
    }

    #[track_caller]
    pub fn printed(self, text: &str) -> Self {
        assert_eq!(self.stdout, text, "{}", self.stderr);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }
}

pub fn brood(arguments: &[&str]) -> Ran {
    fixture().run(arguments)
}

/// With something on standard input.
pub fn brood_with(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = spawn(arguments);
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The command may end before it has read all.
        scope.spawn(move || stdin.write_all(input).unwrap_or(()));
        child.wait_with_output().unwrap().into()
    })
}

/// Running, with pipes.
pub fn spawn(arguments: &[&str]) -> Child {
    let mut command = fixture().brood(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A sandbox that is killed with its test.
#[derive(Debug)]
pub struct Sandbox {
    pub id: String,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(options: &[&str]) -> Self {
        let ran = brood(&[&["create", TEMPLATE], options].concat()).succeeded();
        Self { id: ran.stdout.trim().to_owned() }
    }

    pub fn exec(&self, command: &[&str]) -> Ran {
        self.exec_with(&[], command)
    }

    pub fn exec_with(&self, options: &[&str], command: &[&str]) -> Ran {
        brood(&[&["exec", &self.id], options, &["--"], command].concat())
    }

    pub fn sh(&self, script: &str) -> Ran {
        self.exec(&["/bin/sh", "-c", script])
    }

    pub fn python(&self, script: &str) -> Ran {
        brood_with(&["exec", &self.id, "-i", "--", "python3", "-"], script.as_bytes())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A test may have killed it itself.
        brood(&["kill", &self.id]);
    }
}
