//! Tool calls: streams, terminals, signals, timeouts, memory, users.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::{CreateRequest, ExitReason, ProcessRequest, ResourceLimits, TerminalSize};
use brood_sandbox::output::{OutputEvent, SubscribeFrom};

use crate::fixture::{TestEngine, call, create_request, out, run, shell};

#[test]
fn exit_codes_signals_and_streams_are_exact() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let outcome = run(&sandbox, shell("echo out; echo err >&2; exit 7"));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(outcome.report.reason, ExitReason::Exited(7));
    for signal in [9u8, 11, 15] {
        let outcome = run(&sandbox, shell(&format!("kill -{signal} $$")));
        assert_eq!(outcome.report.reason, ExitReason::Signaled(signal));
        assert_eq!(outcome.report.shell_code(), 128 + signal);
    }
    // The daemon ignores SIGPIPE; what runs inside must not.
    assert_eq!(out(&sandbox, "yes | head -n 1; echo end"), "y\nend");
}

#[test]
fn what_cannot_run_is_told_as_a_shell_would() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let kind = |request: ProcessRequest| sandbox.spawn(request).unwrap_err().kind();
    assert_eq!(kind(call(&["no-such-command"])), ErrorKind::CommandNotFound);
    assert_eq!(kind(call(&["/etc/passwd"])), ErrorKind::NotExecutable);
    assert_eq!(kind(call(&["/etc"])), ErrorKind::NotExecutable);
    assert_eq!(kind(call(&[])), ErrorKind::Invalid);
    assert_eq!(kind(call(&["a\0b"])), ErrorKind::Invalid);
    assert_eq!(kind(ProcessRequest { user: Some("nobody-here".to_owned()), ..call(&["true"]) }), ErrorKind::Invalid);
    let directory = Some("/no/such/place".to_owned());
    assert_eq!(kind(ProcessRequest { working_directory: directory, ..call(&["true"]) }), ErrorKind::Invalid);
    let long = "x".repeat(3 << 20);
    assert_eq!(kind(call(&["echo", &long])), ErrorKind::Invalid);
    assert_eq!(out(&sandbox, "echo still here"), "still here");
}

#[test]
fn large_arguments_and_environments_arrive() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let long = "y".repeat(100_000);
    let outcome = run(&sandbox, call(&["sh", "-c", "printf %s \"$1$2$3\" | wc -c", "-", &long, &long, &long]));
    assert_eq!(outcome.stdout.trim(), "300000");
}

#[test]
fn input_reaches_the_process_and_its_end_too() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let process = sandbox.spawn(ProcessRequest { stdin: true, ..call(&["sha256sum"]) }).unwrap();
    let data: Vec<u8> = (0..4_000_000u32).map(|number| (number * 7 % 251) as u8).collect();
    let mut rest = &data[..];
    let mut context = Context::from_waker(Waker::noop());
    while !rest.is_empty() {
        match process.write_stdin(rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                while process.poll_stdin(&mut context) == Poll::Pending {
                    std::thread::yield_now();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    process.close_stdin();
    let mut output = process.subscribe(SubscribeFrom::Start);
    let Some(OutputEvent::Data { bytes, .. }) = output.next_blocking() else { panic!("no output") };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data"), &data).unwrap();
    let wanted = std::process::Command::new("sha256sum").arg(directory.path().join("data")).output().unwrap();
    assert_eq!(bytes[..64], wanted.stdout[..64]);
    assert_eq!(run(&sandbox, call(&["cat"])).stdout, "", "without input its end is seen at once");
}

#[test]
fn megabytes_of_output_arrive_whole_and_in_order() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let outcome = run(&sandbox, shell("seq 1 2000000"));
    let mut expected = 1u32;
    for line in outcome.stdout.lines() {
        assert_eq!(line.parse::<u32>().unwrap(), expected);
        expected += 1;
    }
    assert_eq!(expected, 2_000_001);
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_process() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let process = sandbox.spawn(shell("seq 1 3000000; exit 3")).unwrap();
    let mut output = process.subscribe(SubscribeFrom::Start);
    output.next_blocking();
    drop(output);
    assert_eq!(process.wait().reason, ExitReason::Exited(3));
    let mut late = process.subscribe(SubscribeFrom::Start);
    let Some(OutputEvent::Lost { bytes }) = late.next_blocking() else { panic!("nothing lost") };
    assert!(bytes > 10_000_000, "{bytes}");
}

#[test]
fn a_terminal_is_one_and_can_be_resized() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let terminal = Some(TerminalSize { columns: 91, rows: 17 });
    let script = "tty; stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do read line || :; done";
    let process = sandbox.spawn(ProcessRequest { terminal, ..shell(script) }).unwrap();
    let mut output = process.subscribe(SubscribeFrom::Start);
    let mut text = String::new();
    while !text.contains("ready") {
        let Some(OutputEvent::Data { bytes, .. }) = output.next_blocking() else { panic!("{text}") };
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert!(text.contains("/dev/pts/0") && text.contains("17 91"), "{text}");
    process.resize(TerminalSize { columns: 40, rows: 10 }).unwrap();
    process.write_stdin(b"\n").unwrap();
    while let Some(event) = output.next_blocking() {
        match event {
            OutputEvent::Data { bytes, .. } => text.push_str(&String::from_utf8_lossy(&bytes)),
            OutputEvent::Ended(report) => assert_eq!(report.reason, ExitReason::Exited(0)),
            OutputEvent::Lost { .. } => {}
        }
    }
    assert!(text.contains("10 40"), "{text}");
}

#[test]
fn a_timeout_kills_all_that_the_call_started_and_keeps_the_output() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let script = "echo before; (setsid sleep 1000 &) ; sleep 1000";
    let started = Instant::now();
    let outcome = run(&sandbox, ProcessRequest { timeout: Some(Duration::from_millis(400)), ..shell(script) });
    assert_eq!(outcome.report.reason, ExitReason::TimedOut);
    assert_eq!(outcome.stdout, "before\n");
    assert!(started.elapsed() < Duration::from_secs(5));
    let count = out(&sandbox, "cat /proc/[0-9]*/comm | grep -c sleep || :");
    assert_eq!(count, "0", "a process that left its session is killed too");
}

#[test]
fn a_call_that_uses_up_the_memory_dies_alone_and_is_told_so() {
    let engine = TestEngine::with_debian();
    let limits = ResourceLimits { memory_bytes: 64 << 20, ..ResourceLimits::default() };
    let sandbox = engine.create(CreateRequest { limits, ..create_request() }).unwrap();
    let keeper = sandbox.spawn(shell("echo on; exec sleep 1000")).unwrap();
    let outcome = run(&sandbox, call(&["python3", "-c", "x = bytearray(500 << 20)"]));
    assert_eq!(outcome.report.reason, ExitReason::OutOfMemory);
    assert_eq!(outcome.report.shell_code(), 137);
    assert!(outcome.report.sandbox_memory_peak_bytes > 60 << 20);
    assert!(keeper.info().exit.is_none(), "a sibling of the call lives on");
    assert_eq!(out(&sandbox, "echo alive"), "alive");
    assert_eq!(sandbox.stats().unwrap().out_of_memory_kills, 1);
    // A later kill of another cause is not mistaken for it.
    assert_eq!(run(&sandbox, shell("kill -9 $$")).report.reason, ExitReason::Signaled(9));
}

#[test]
fn background_processes_survive_their_call_and_are_found() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let request = ProcessRequest { background: true, tag: Some("server".to_owned()), ..shell("echo up; sleep 1000") };
    let server = sandbox.spawn(request).unwrap();
    out(&sandbox, "(sleep 1000 > /dev/null 2>&1 &)");
    assert_eq!(out(&sandbox, "cat /proc/[0-9]*/comm | grep -c sleep"), "2");
    assert_eq!(sandbox.process_by_tag("server").unwrap().pid(), server.pid());
    assert_eq!(sandbox.process(server.pid()).unwrap().tag(), Some("server"));
    server.signal(15).unwrap();
    assert_eq!(server.wait().reason, ExitReason::Signaled(15));
    assert_eq!(server.signal(15).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(sandbox.logs().since(0).0.iter().any(|record| record.text.contains("up")));
}

#[test]
fn users_environments_and_directories_are_as_asked() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    out(&sandbox, "useradd -m -u 1234 worker");
    let mut request =
        shell("id -u; id -un; pwd; echo $HOME $WHAT; echo reopened > /dev/stdout; grep CapEff /proc/self/status");
    request.user = Some("worker".to_owned());
    request.working_directory = Some("/tmp".to_owned());
    request.environment.insert("WHAT".to_owned(), "it is".to_owned());
    let outcome = run(&sandbox, request);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[..5], ["1234", "worker", "/tmp", "/home/worker it is", "reopened"], "{outcome:?}");
    assert!(lines[5].ends_with("0000000000000000"), "{outcome:?}");
}

#[test]
fn many_calls_run_side_by_side() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                for round in 0..20 {
                    let text = format!("{number}-{round}");
                    assert_eq!(out(sandbox, &format!("echo {text}")), text);
                }
            });
        }
    });
}
