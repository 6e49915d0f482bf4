//! The process that has the pool dies while a squeezed program touches its pages: the program waits and is killed, and
//! never sees anything but its own pages.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use brood_memory_engine::guardian::{self, Guardian};
use rustix::process::{Pid, Signal};

use crate::harness::{Sandbox, machinery_with};

/// What this very program is to be when it is started again.
const ROLE: &str = "BROOD_TEST_ROLE";

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "death::helper", "--nocapture"]).env(ROLE, role);
    command
}

/// Not a test of its own: the guardian, and the daemon that is going to die.
#[test]
fn helper() {
    match std::env::var(ROLE).as_deref() {
        Ok("guardian") => guardian::run(std::io::stdin()),
        Ok("daemon") => daemon(),
        _ => {}
    }
}

fn daemon() {
    let guardian = Guardian::start(again("guardian")).unwrap();
    let machinery = machinery_with(std::sync::Arc::clone(&guardian));
    let mut sandbox = Sandbox::chains(&machinery, 20_000);
    let init = rustix::process::pidfd_open(sandbox.tree.init(), rustix::process::PidfdFlags::empty()).unwrap();
    guardian.watch_sandbox(std::os::fd::AsFd::as_fd(&init));
    let report = sandbox.squeeze();
    assert!(report.given_up_pages > 15_000, "{report:?}");
    let victim = sandbox.tree.running().unwrap();
    println!("victim {}", victim[0].as_raw_nonzero());
    // Its answer, if there is one, goes to standard output: that of the test.
    sandbox.send("check");
    // The page faults are answered until the end comes.
    loop {
        println!("{}", sandbox.line());
    }
}

#[test]
fn a_program_that_touches_squeezed_pages_never_sees_zeros_when_the_daemon_dies() {
    for round in 0..5 {
        let mut daemon = again("daemon").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map(Result::unwrap);
        let victim = lines.find_map(|line| line.split_once("victim ").map(|(_, pid)| pid.parse::<i32>().unwrap()));
        let victim = Pid::from_raw(victim.unwrap()).unwrap();
        let victim = rustix::process::pidfd_open(victim, rustix::process::PidfdFlags::empty()).unwrap();
        // Into the middle of it, a little later each time.
        std::thread::park_timeout(std::time::Duration::from_micros(500 * round));
        rustix::process::kill_process(Pid::from_child(&daemon), Signal::KILL).unwrap();
        daemon.wait().unwrap();
        // The guardian kills it; it ends rather than wait for ever.
        let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut polled = [rustix::event::PollFd::new(&victim, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, Some(&timeout)), Ok(1), "round {round}: it lives on");
        // What the program said to the very end.
        let errors = BufReader::new(daemon.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said: Vec<String> = lines.chain(errors).collect();
        assert!(!said.iter().any(|line| line.contains("BAD")), "round {round}: {said:?}");
    }
}
