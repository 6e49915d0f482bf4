//! Checkpoint, rollback and fork of living processes with their files.

use std::sync::Arc;

use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::{ExitReason, ProcessRequest, TerminalSize};
use brood_sandbox::output::{OutputEvent, SubscribeFrom, Subscription};
use brood_sandbox::process::Process;
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out, shell};

/// A Python session in the sandbox: one expression a line in, its value out.
pub(crate) struct Session {
    process: Arc<Process>,
    output: Subscription,
}

const INTERPRETER: &str = "
import sys
state = {}
print('ready', flush=True)
for line in sys.stdin:
    try:
        result = eval(line, state)
    except SyntaxError:
        result = exec(line, state)
    print(result, flush=True)
";

impl Session {
    pub(crate) fn start(sandbox: &Arc<Sandbox>) -> Self {
        let request = ProcessRequest {
            stdin: true,
            background: true,
            tag: Some("session".to_owned()),
            ..call(&["python3", "-c", INTERPRETER])
        };
        let (process, output) = sandbox.spawn_with_output(request).unwrap();
        let mut session = Self { process, output };
        assert_eq!(session.line(), "ready");
        session
    }

    /// The session as it is in a fork, or after a rollback.
    pub(crate) fn find(sandbox: &Arc<Sandbox>) -> Self {
        let process = sandbox.process_by_tag("session").unwrap();
        let output = process.subscribe(SubscribeFrom::Now);
        Self { process, output }
    }

    fn line(&mut self) -> String {
        let mut text = String::new();
        while !text.ends_with('\n') {
            match self.output.next_blocking() {
                Some(OutputEvent::Data { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
                other => panic!("{text}: {other:?}"),
            }
        }
        text.trim_end().to_owned()
    }

    pub(crate) fn ask(&mut self, expression: &str) -> String {
        assert_eq!(self.process.write_stdin(format!("{expression}\n").as_bytes()).unwrap(), expression.len() + 1);
        self.line()
    }
}

#[test]
fn a_session_and_its_files_go_back_together() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    session.ask("x = 41");
    out(&sandbox, "mkdir /repo; echo before > /repo/file");
    let checkpoint =
        sandbox.checkpoint(Some("base".to_owned()), true).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(session.ask("x"), "41", "the original goes on");
    session.ask("x = 99");
    session.ask("open('/repo/new', 'w').write('later')");
    out(&sandbox, "rm -r /repo/file; echo after > /etc/after");
    sandbox.rollback("base").unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(session.ask("x"), "41");
    assert_eq!(session.ask("open('/repo/file').read().strip()"), "before");
    assert_eq!(out(&sandbox, "cat /repo/file; ls /repo/new /etc/after 2>&1 | grep -c 'No such'"), "before\n2");
    // Again, to the same one: a checkpoint is immutable.
    session.ask("x = 7");
    sandbox.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(session.ask("x"), "41");
}

#[test]
fn forks_carry_on_independently() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    session.ask("x = list(range(1000))");
    out(&sandbox, "echo base > /file");
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    let forks: Vec<_> = (0..8)
        .map(|number| {
            let fork = engine.fork(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
            let mut session = Session::find(&fork);
            session.ask(&format!("x.append({number})"));
            out(&fork, &format!("echo {number} >> /file"));
            (fork, session, number)
        })
        .collect();
    for (fork, mut session, number) in forks {
        assert_eq!(session.ask("(len(x), x[-1])"), format!("(1001, {number})"));
        assert_eq!(out(&fork, "cat /file"), format!("base\n{number}"));
        assert_ne!(out(&fork, "hostname"), out(&sandbox, "hostname"));
        // It can be put back to where it came from.
        fork.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(session.ask("(len(x), x[-1])"), "(1000, 999)");
        assert_eq!(out(&fork, "cat /file"), "base");
        // A fork can be frozen and forked in its turn.
        let second = fork.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(second.parent.as_ref(), Some(&checkpoint.id));
        fork.kill().unwrap();
        assert_eq!(session.process.wait().reason, ExitReason::SandboxKilled);
    }
    assert_eq!(session.ask("len(x)"), "1000");
    assert_eq!(out(&sandbox, "cat /file"), "base");
}

#[test]
fn depth_does_not_show_and_every_level_is_exact() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    let mut ids = Vec::new();
    for level in 0..30 {
        session.ask(&format!("x = {level}"));
        out(&sandbox, &format!("echo {level} > /level; echo {level} > /file-{level}"));
        ids.push(sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain())).id);
    }
    for level in [29usize, 3, 17, 0, 29] {
        sandbox.rollback(ids[level].as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(session.ask("x"), level.to_string());
        assert_eq!(out(&sandbox, "cat /level; ls / | grep -c file-"), format!("{level}\n{}", level + 1));
    }
}

#[test]
fn calls_in_flight_survive_a_checkpoint_and_end_with_a_rollback() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let (early, mut output) = sandbox.spawn_with_output(shell("echo begun; read line; echo $line")).unwrap();
    output.next_blocking();
    drop(early);
    let (call_process, mut output) = sandbox
        .spawn_with_output(ProcessRequest { stdin: true, ..shell("echo begun; read line; echo got $line; sleep 1000") })
        .unwrap();
    output.next_blocking();
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    call_process.write_stdin(b"hello\n").unwrap();
    let Some(OutputEvent::Data { bytes, .. }) = output.next_blocking() else { panic!("no answer") };
    assert_eq!(&*bytes, b"got hello\n");
    let later = sandbox.spawn(shell("sleep 1000")).unwrap();
    sandbox.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(call_process.wait().reason, ExitReason::RolledBack);
    assert_eq!(later.wait().reason, ExitReason::RolledBack);
    // The call stands where it stood: waiting for its line.
    let again = sandbox.process(call_process.pid()).unwrap();
    let mut output = again.subscribe(SubscribeFrom::Now);
    again.write_stdin(b"again\n").unwrap();
    let Some(OutputEvent::Data { bytes, .. }) = output.next_blocking() else { panic!("no answer") };
    assert_eq!(&*bytes, b"got again\n");
}

#[test]
fn a_session_comes_back_with_processes_that_have_ended_since() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    session.ask("x = 41");
    // A call that ends and leaves something that still holds its streams.
    out(&sandbox, "(while :; do date +%N > /tick; sleep 0.02; done) & echo left");
    let sleeper = sandbox.spawn(ProcessRequest { background: true, ..call(&["sleep", "1000"]) }).unwrap();
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    session.ask("x = 99");
    sleeper.kill().unwrap();
    sleeper.wait();
    sandbox.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(Session::find(&sandbox).ask("x"), "41");
    let ticking = "a=$(cat /tick); for i in $(seq 200); do b=$(cat /tick); [ -n \"$b\" ] && [ \"$a\" != \"$b\" ] && exit 0; sleep 0.05; done; exit 1";
    out(&sandbox, ticking);
    // More calls than are remembered: what the background one holds is known all the same.
    for _ in 0..70 {
        out(&sandbox, "true");
    }
    let later = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    for origin in [&checkpoint, &later] {
        let fork = engine.fork(origin.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(Session::find(&fork).ask("x"), "41");
        out(&fork, ticking);
        let again = fork.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
        out(&engine.fork(again.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain())), ticking);
        fork.kill().unwrap();
    }
}

#[test]
fn a_terminal_session_is_forked_with_its_terminal() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let terminal = Some(TerminalSize { columns: 80, rows: 24 });
    let request =
        ProcessRequest { terminal, background: true, tag: Some("shell".to_owned()), ..call(&["bash", "--norc"]) };
    let (shell_process, mut output) = sandbox.spawn_with_output(request).unwrap();
    let expect = |output: &mut Subscription, wanted: &str| {
        let mut text = String::new();
        while !text.contains(wanted) {
            let Some(OutputEvent::Data { bytes, .. }) = output.next_blocking() else { panic!("{text}") };
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    };
    shell_process.write_stdin(b"x=blue; echo re''ady\n").unwrap();
    expect(&mut output, "ready");
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    let fork = engine.fork(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let forked = fork.process_by_tag("shell").unwrap();
    let mut output = forked.subscribe(SubscribeFrom::Start);
    forked.write_stdin(b"echo $x-do''ne\n").unwrap();
    expect(&mut output, "blue-done");
}

#[test]
fn what_cannot_be_captured_is_refused_and_nothing_changes() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let script = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 9000)); s.listen(); print('up', flush=True); s.accept()";
    let (server, mut output) = sandbox.spawn_with_output(call(&["python3", "-c", script])).unwrap();
    output.next_blocking();
    let error = sandbox.checkpoint(None, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.chain().contains("socket"), "{}", error.chain());
    assert!(server.info().exit.is_none());
    assert!(engine.checkpoints().is_empty());
    out(&sandbox, "echo fine > /file");
    // Files alone can be frozen all the same, and forked without processes.
    let files = sandbox.checkpoint(Some("files".to_owned()), false).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(out(&engine.fork("files").unwrap(), "cat /file"), "fine");
    assert_eq!(sandbox.rollback(files.id.as_str()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(sandbox.rollback("no-such-checkpoint").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.checkpoint(Some("files".to_owned()), false).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(sandbox.checkpoint(Some("../x".to_owned()), false).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn removing_a_checkpoint_in_the_middle_keeps_its_children_whole() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    let mut ids = Vec::new();
    for level in 0..3 {
        session.ask(&format!("x = {level}"));
        out(&sandbox, &format!("echo {level} > /file-{level}"));
        ids.push(sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain())).id);
    }
    engine.remove_checkpoint(ids[1].as_str(), false).unwrap();
    assert_eq!(engine.checkpoint(ids[2].as_str()).unwrap().parent.as_ref(), Some(&ids[0]));
    sandbox.rollback(ids[0].as_str()).unwrap();
    sandbox.rollback(ids[2].as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(session.ask("x"), "2");
    assert_eq!(out(&sandbox, "cat /file-0 /file-1 /file-2"), "0\n1\n2");
    assert_eq!(engine.remove_checkpoint(ids[0].as_str(), true).unwrap().len(), 2);
    assert!(engine.checkpoints().is_empty());
    assert_eq!(session.ask("x"), "2");
}

#[test]
fn differences_between_states_are_listed() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let first = sandbox.checkpoint(None, true).unwrap().id;
    out(&sandbox, "echo new > /new; echo changed >> /etc/passwd; rm /etc/issue");
    let changes = engine.diff(first.as_str(), sandbox.id().as_str()).unwrap();
    let kinds = |path: &str| {
        let found = changes.iter().find(|change| change.path == std::path::Path::new(path));
        found.map(|change| format!("{:?}", change.kind)).unwrap_or_default()
    };
    assert_eq!(kinds("new"), "Added");
    assert_eq!(kinds("etc/issue"), "Deleted");
    assert!(kinds("etc/passwd").contains("content: true"), "{changes:?}");
}
