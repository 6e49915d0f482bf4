//! Templates whose sandboxes start with processes.

use std::sync::Arc;

use brood_sandbox::build::Quiet;
use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::{BuildRequest, ExitReason, Warmth};
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, build_request, create_request, out};

/// Answers on two pipes with how often it was asked and what it loaded at its start.
const SERVER: &str = r#"
import os, time
table = {n: n * n for n in range(20000)}
asked = 0
print("loaded", flush=True)
open("/ready", "w").close()
while True:
    if os.path.exists("/ask"):
        asked += 1
        os.unlink("/ask")
        print("answer", asked, table[141], flush=True)
    time.sleep(0.01)
"#;

fn warm_request(name: &str, start: &str, ready: &str) -> BuildRequest {
    BuildRequest {
        start_command: Some(start.to_owned()),
        ready_command: Some(ready.to_owned()),
        source: "template:debian".to_owned(),
        ..build_request(name, Vec::new())
    }
}

fn build_server(engine: &TestEngine) {
    let start = format!("exec python3 -c '{SERVER}'");
    let info = engine
        .build_template(warm_request("warm", &start, "test -e /ready"), &Quiet)
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(info.warmth, Warmth::Warm);
}

fn warm_sandbox(engine: &TestEngine) -> Arc<Sandbox> {
    let request = brood_sandbox::model::CreateRequest { template: "warm".parse().unwrap(), ..create_request() };
    engine.create(request).unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// Asks the server that came with the template.
fn ask(sandbox: &Arc<Sandbox>) -> String {
    let server = sandbox.process_by_tag("start").unwrap();
    let mut output = server.subscribe(SubscribeFrom::Now);
    out(sandbox, "touch /ask");
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn sandboxes_of_a_warm_template_start_with_its_processes() {
    let mut engine = TestEngine::with_debian();
    build_server(&engine);
    assert!(engine.sandboxes().is_empty(), "nothing is left of the build");
    assert!(engine.checkpoints().is_empty());
    let first = warm_sandbox(&engine);
    assert_eq!(first.info().processes.len(), 1);
    assert_eq!(ask(&first), "answer 1 19881");
    assert_eq!(ask(&first), "answer 2 19881");
    let second = warm_sandbox(&engine);
    assert_eq!(ask(&second), "answer 1 19881", "it knows nothing of its sibling");
    // What a sandbox was made of can be frozen and put back to like any other.
    let checkpoint = second.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(ask(&second), "answer 2 19881");
    second.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(ask(&second), "answer 2 19881");
    second.process_by_tag("start").unwrap().kill().unwrap();
    first.kill().unwrap();
    drop((first, second));

    engine.reopen();
    let name = "warm".parse().unwrap();
    assert_eq!(engine.template(&name).unwrap().warmth, Warmth::Pending, "processes end with the daemon");
    assert_eq!(ask(&warm_sandbox(&engine)), "answer 1 19881");
    assert_eq!(engine.template(&name).unwrap().warmth, Warmth::Warm);
}

#[test]
fn forks_made_ahead_of_time_are_like_others() {
    let engine = TestEngine::with_debian();
    build_server(&engine);
    let plain = || brood_sandbox::model::CreateRequest::plain("warm".parse().unwrap());
    let mut made = Vec::new();
    for round in 0..3 {
        // More than there are ready ones, and again once there has been time to make others.
        for _ in 0..6 {
            made.push(engine.create(plain()).unwrap_or_else(|error| panic!("{}", error.chain())));
        }
        let before = std::time::Instant::now();
        assert_eq!(ask(&made[round]), "answer 1 19881");
        let age = made[round * 6].info().created_ms;
        assert!(age > 0 && before.elapsed().as_secs() < 30);
    }
    let names: std::collections::HashSet<_> = made.iter().map(|sandbox| out(sandbox, "cat /run/brood/seed")).collect();
    assert_eq!(names.len(), made.len());
    assert_eq!(engine.sandboxes().len(), made.len(), "those that wait are in no list");
    for sandbox in made.iter().skip(3) {
        assert_eq!(ask(sandbox), "answer 1 19881");
    }
    let last = made.last().unwrap();
    let checkpoint = last.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(ask(last), "answer 2 19881");
    last.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(ask(last), "answer 2 19881");
    made.iter().for_each(|sandbox| sandbox.kill().unwrap());
    drop(made);
    // None of those that wait keeps its template.
    engine.remove_template(&"warm".parse().unwrap()).unwrap();
}

#[test]
fn a_start_command_that_fails_leaves_the_old_template() {
    let engine = TestEngine::with_debian();
    build_server(&engine);
    for (start, ready, wanted) in
        [("echo no such luck; exit 3", "true", "exit code 3"), ("echo no such luck; kill -9 $$", "false", "signal 9")]
    {
        let error = engine.build_template(warm_request("warm", start, ready), &Quiet).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.chain().contains(wanted) && error.chain().contains("no such luck"), "{}", error.chain());
    }
    assert_eq!(ask(&warm_sandbox(&engine)), "answer 1 19881");
}

#[test]
fn a_start_command_that_cannot_be_captured_is_named() {
    let engine = TestEngine::with_debian();
    let start = "exec python3 -c 'import socket, time; s = socket.socket(); s.bind((\"127.0.0.1\", 8000)); s.listen(); open(\"/ready\", \"w\"); time.sleep(1000)'";
    match engine.build_template(warm_request("server", start, "test -e /ready"), &Quiet) {
        // Sockets may be captured one day; then the server must be there.
        Ok(info) => assert_eq!(info.warmth, Warmth::Warm),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.chain().contains("socket"), "{}", error.chain());
            engine.template(&"server".parse().unwrap()).unwrap_err();
        }
    }
    assert!(engine.sandboxes().is_empty());
}

#[test]
fn work_that_a_start_command_left_in_the_background_counts() {
    let engine = TestEngine::with_debian();
    let start = "(while :; do date +%N > /tick; sleep 0.05; done) & echo left";
    let info = engine
        .build_template(warm_request("background", start, "test -s /tick"), &Quiet)
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(info.warmth, Warmth::Warm);
    let request = brood_sandbox::model::CreateRequest { template: info.name, ..create_request() };
    let sandbox = engine.create(request).unwrap_or_else(|error| panic!("{}", error.chain()));
    let script = "a=$(cat /tick); for i in $(seq 200); do b=$(cat /tick); [ -n \"$b\" ] && [ \"$a\" != \"$b\" ] && exit 0; sleep 0.05; done; exit 1";
    let outcome = crate::fixture::run(&sandbox, crate::fixture::shell(script));
    assert_eq!(outcome.report.reason, ExitReason::Exited(0));
}
