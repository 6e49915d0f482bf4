//! What goes in comes out: streams, exit codes, signals, timeouts, background processes.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Sandbox, brood, brood_with, spawn};

#[test]
fn exit_codes_are_exact() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 2, 77, 125, 126, 127, 128, 255] {
        sandbox.sh(&format!("exit {code}")).ended(code);
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        sandbox.sh(&format!("kill -{signal} $$")).ended(code);
    }
}

#[test]
fn streams_are_kept_apart() {
    let sandbox = Sandbox::new();
    let ran = sandbox.sh("echo out; echo err >&2; echo out2").succeeded();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\nout2\n", "err\n"));
    let ran = sandbox.exec_with(&["--json"], &["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]).ended(3).json();
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exit_code"]), (&"out\n".into(), &"err\n".into(), &3.into()));
}

#[test]
fn megabytes_pass_both_ways_unchanged() {
    const BYTES: usize = 40 << 20;
    let sandbox = Sandbox::new();
    let content: Vec<u8> =
        (0..BYTES / 4).flat_map(|word| (word as u32).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut child = spawn(&["exec", &sandbox.id, "-i", "--", "cat"]);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let begin = Instant::now();
    let echoed = std::thread::scope(|scope| {
        scope.spawn(|| {
            stdin.write_all(&content).unwrap();
            drop(stdin);
        });
        let mut echoed = Vec::new();
        stdout.read_to_end(&mut echoed).unwrap();
        echoed
    });
    assert!(child.wait().unwrap().success());
    assert!(echoed == content, "{} of {} bytes", echoed.len(), content.len());
    eprintln!("{} MB/s through cat", (BYTES as f64 / 1e6 / begin.elapsed().as_secs_f64()).round());
}

#[test]
fn the_last_output_is_never_lost() {
    let sandbox = Sandbox::new();
    for _ in 0..30 {
        let ran = sandbox.sh("head -c 200000 /dev/zero; echo end >&2").succeeded();
        assert_eq!((ran.stdout.len(), ran.stderr.as_str()), (200_000, "end\n"));
    }
}

#[test]
fn standard_input_is_empty_unless_asked_for() {
    let sandbox = Sandbox::new();
    let ran: crate::fixture::Ran = brood_with(&["exec", &sandbox.id, "--", "cat"], b"unseen");
    ran.succeeded().printed("");
    brood_with(&["exec", &sandbox.id, "-i", "--", "cat"], b"seen").succeeded().printed("seen");
    // A command that does not read must not keep the sender.
    brood_with(&["exec", &sandbox.id, "-i", "--", "true"], &vec![0; 8 << 20]).succeeded();
}

#[test]
fn signals_overtake_input_that_is_not_read() {
    let sandbox = Sandbox::new();
    let mut child = spawn(&[
        "exec",
        &sandbox.id,
        "-i",
        "--",
        "/bin/sh",
        "-c",
        "trap 'exit 42' INT; echo ready; while :; do sleep 1; done",
    ]);
    let mut stdin = child.stdin.take().unwrap();
    let mut ready = [0u8; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&vec![0; 4 << 20]).unwrap_or(()));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(42));
    });
}

#[test]
fn a_timeout_kills_everything_the_call_started() {
    let sandbox = Sandbox::new();
    let begin = Instant::now();
    // The grandchild leaves its session and ignores what can be ignored.
    let script = "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > /pid; while :; do sleep 1; done' & \
                  while [ ! -s /pid ]; do :; done; echo so far; sleep 1000";
    let ran = sandbox.exec_with(&["--timeout", "1s"], &["/bin/sh", "-c", script]);
    ran.ended(124).said("timed out after 1s").printed("so far\n");
    assert!(begin.elapsed() < Duration::from_secs(20));
    sandbox.sh("! kill -0 $(cat /pid)").succeeded();
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn a_client_that_is_killed_leaves_the_process_running() {
    let sandbox = Sandbox::new();
    let mut child = spawn(&["exec", &sandbox.id, "--", "/bin/sh", "-c", "echo $$; while :; do echo x; done"]);
    let mut first = [0u8; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let processes = brood(&["ps", &sandbox.id, "--json"]).succeeded().json();
    let process = &processes[0];
    assert!(process["exit"].is_null(), "{processes}");
    brood(&["kill", &sandbox.id, "--process", &process["pid"].to_string()]).succeeded();
    let exits = brood(&["attach", &sandbox.id, &process["pid"].to_string(), "--no-history"]);
    exits.ended(137);
}

#[test]
fn a_reader_that_goes_away_ends_the_writer_as_it_would_locally() {
    let sandbox = Sandbox::new();
    let mut child = spawn(&["exec", &sandbox.id, "--tag", "writer", "--", "yes"]);
    let mut some = [0u8; 1000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let attached = crate::fixture::fixture()
        .brood(&["attach", &sandbox.id, "writer", "--no-history"])
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(attached.code(), Some(141));
}

#[test]
fn background_processes_are_listed_attached_to_and_killed() {
    let sandbox = Sandbox::new();
    let script = "echo first; while [ ! -e /go ]; do sleep 0.05; done; echo gone; exit 5";
    let pid = sandbox.exec_with(&["--detach", "--tag", "job"], &["/bin/sh", "-c", script]).succeeded().stdout;
    let listed = brood(&["ps", &sandbox.id, "--json"]).succeeded().json();
    assert_eq!((&listed[0]["tag"], &listed[0]["background"]), (&"job".into(), &true.into()));
    assert_eq!(listed[0]["pid"].to_string(), pid.trim());
    sandbox.sh("touch /go").succeeded();
    brood(&["attach", &sandbox.id, "job"]).ended(5).printed("first\ngone\n");
    let pid = sandbox.exec_with(&["--detach"], &["sleep", "1000"]).succeeded().stdout;
    brood(&["kill", &sandbox.id, "--process", pid.trim(), "--signal", "TERM"]).succeeded();
    brood(&["attach", &sandbox.id, pid.trim()]).ended(143);
    brood(&["kill", &sandbox.id, "--process", pid.trim()]).ended(1).said("ended already");
}

#[test]
fn output_that_nobody_reads_is_bounded_and_its_loss_is_told() {
    let sandbox = Sandbox::new();
    let pid = sandbox.exec_with(&["--detach"], &["head", "-c", "50000000", "/dev/zero"]).succeeded().stdout;
    while !brood(&["ps", &sandbox.id, "-q"]).succeeded().stdout.is_empty() {}
    let late = brood(&["attach", &sandbox.id, pid.trim()]).succeeded();
    assert!(late.stdout.len() < 50_000_000, "all of it was kept: {}", late.stdout.len());
    late.said("dropped");
}

#[test]
fn many_calls_at_once_do_not_mix() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        for number in 0..40 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let ran =
                    sandbox.sh(&format!("for i in 1 2 3 4 5; do echo {number}; done; exit {number}")).ended(number);
                assert_eq!(ran.stdout, format!("{number}\n").repeat(5));
            });
        }
    });
}
