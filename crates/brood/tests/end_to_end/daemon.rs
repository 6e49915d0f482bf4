//! The daemon: started on demand, once; ended in order; nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Ran, binary, brood, fixture};

/// Directories of their own for a daemon of their own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("brood-place").tempdir_in("/var/tmp").unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn brood(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).stdin(Stdio::null());
        command.env("BROOD_STATE_DIRECTORY", self.path().join("state"));
        command.env("BROOD_RUN_DIRECTORY", self.path().join("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.brood(arguments).output().unwrap().into()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.run(&["--no-spawn", "serve", "--stop"]);
    }
}

#[test]
fn many_commands_at_once_start_one_daemon() {
    let place = Place::new();
    let pids: std::collections::BTreeSet<u64> = std::thread::scope(|scope| {
        let commands: Vec<_> = (0..12)
            .map(|_| {
                scope.spawn(|| {
                    place.run(&["ps", "--json"]).succeeded();
                    place.run(&["version", "--json"]).succeeded().json()["daemon"]["pid"].as_u64().unwrap()
                })
            })
            .collect();
        commands.into_iter().map(|command| command.join().unwrap()).collect()
    });
    assert_eq!(pids.len(), 1);
}

#[test]
fn no_spawn_forbids_it() {
    let place = Place::new();
    place.run(&["--no-spawn", "ps"]).ended(1).said("--no-spawn");
    place.run(&["--no-spawn", "exec", "x", "--", "true"]).ended(125).said("--no-spawn");
    assert!(place.run(&["version", "--json"]).succeeded().json()["daemon"].is_null());
}

#[test]
fn stopping_leaves_no_process_and_no_socket() {
    let place = Place::new();
    place.run(&["ps"]).succeeded();
    let pid = place.run(&["version", "--json"]).succeeded().json()["daemon"]["pid"].to_string();
    place.run(&["serve", "--stop"]).succeeded();
    assert!(!place.path().join("run/brood.sock").exists());
    // It may still be a moment from its end as a process, though it holds nothing any more.
    let daemon = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    let gone = match rustix::process::pidfd_open(daemon, rustix::process::PidfdFlags::empty()) {
        Err(error) => error == rustix::io::Errno::SRCH,
        Ok(process) => {
            let patience = rustix::time::Timespec { tv_sec: 30, tv_nsec: 0 };
            let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ended, Some(&patience)).unwrap() > 0
        }
    };
    assert!(gone, "{pid}");
    place.run(&["serve", "--stop"]).ended(1).said("no daemon");
}

#[test]
fn a_second_daemon_is_refused() {
    let _ = brood(&["ps"]).succeeded();
    brood(&["serve"]).ended(1).said("already runs");
    // Another run directory does not help: the state is locked too.
    let place = Place::new();
    let state = fixture().directory.join("state");
    let ran = place.run(&["serve", "--state-directory", state.to_str().unwrap()]);
    assert_eq!(ran.code, 1, "{ran:#?}");
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let place = Place::new();
    fs::write(place.path().join("state"), "a file in the way").unwrap();
    let ran = place.run(&["ps"]).ended(1);
    assert!(ran.stderr.contains("state"), "{ran:#?}");
}

#[test]
fn the_socket_is_roots_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    brood(&["ps"]).succeeded();
    assert_eq!(fs::metadata(fixture().socket()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_needs_no_daemon_starts_none() {
    let place = Place::new();
    let config = place.run(&["config", "--json"]).succeeded().json();
    assert!(config.as_array().unwrap().iter().any(|row| row["origin"] == "environment BROOD_STATE_DIRECTORY"));
    place.run(&["doctor", "--json"]).json();
    place.run(&["completion", "bash"]).succeeded();
    place.run(&["version"]).succeeded();
    place.run(&["--help"]).succeeded();
    assert!(!place.path().join("run").exists() && !place.path().join("state").exists());
}

#[test]
fn doctor_works_without_root() {
    let place = Place::new();
    let copy = place.path().join("brood");
    fs::copy(binary(), &copy).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["doctor", "--json"])
        .current_dir("/")
        .output()
        .unwrap();
    let ran = Ran::from(output);
    let checks = ran.json();
    let privilege = checks["checks"].as_array().unwrap().iter().find(|check| check["name"] == "privilege").unwrap();
    assert_eq!(privilege["status"], "warn");
}
