//! What forks and paused sandboxes keep, and what they must not share.

use std::collections::HashSet;
use std::sync::Arc;

use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::{ProcessRequest, SandboxState};
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out};

/// Answers one expression a line.
const SESSION: &str = "
import random, ssl, sys, tempfile, uuid
import brood_reseed
hooked = []
brood_reseed.register(lambda: hooked.append(1))
uuid.uuid1()
print('ready', flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
";
/// What each generator draws next.
const DRAWS: [&str; 6] = [
    "random.random()",
    "random.getrandbits(64)",
    "uuid.uuid1().hex",
    "uuid.uuid4().hex",
    "ssl.RAND_bytes(16).hex()",
    "next(tempfile._get_candidate_names())",
];

fn start(sandbox: &Arc<Sandbox>) {
    let mut request = ProcessRequest {
        stdin: true,
        background: true,
        tag: Some("session".to_owned()),
        ..call(&["python3", "-c", SESSION])
    };
    request.environment.insert("PYTHONPATH".to_owned(), "/usr/lib/brood/python".to_owned());
    let (_process, mut output) = sandbox.spawn_with_output(request).unwrap();
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => assert_eq!(&*bytes, b"ready\n"),
        other => panic!("{other:?}"),
    }
}

fn ask(sandbox: &Sandbox, question: &str) -> String {
    let session = sandbox.process_by_tag("session").unwrap();
    let mut output = session.subscribe(SubscribeFrom::Now);
    session.write_stdin(format!("{question}\n").as_bytes()).unwrap();
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_two_siblings_draw_the_same_value() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    start(&sandbox);
    DRAWS.iter().for_each(|draw| drop(ask(&sandbox, draw)));
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    let forks: Vec<_> = (0..6)
        .map(|_| engine.fork(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain())))
        .collect();
    let all: Vec<_> = forks.iter().chain([&sandbox]).collect();
    for draw in DRAWS {
        let drawn: HashSet<_> = all.iter().map(|sandbox| ask(sandbox, draw)).collect();
        assert_eq!(drawn.len(), all.len(), "{draw}: {drawn:?}");
    }
    assert!(forks.iter().all(|fork| ask(fork, "len(hooked)") == "1"));
    assert_eq!(ask(&sandbox, "len(hooked)"), "0", "the original is no fork");
    let seeds: HashSet<_> = all.iter().map(|sandbox| out(sandbox, "cat /run/brood/seed")).collect();
    assert_eq!(seeds.len(), all.len());
    assert!(seeds.iter().all(|seed| seed.len() == 64), "{seeds:?}");
    let names: HashSet<_> = all.iter().map(|sandbox| out(sandbox, "hostname; cat /etc/hostname")).collect();
    assert_eq!(names.len(), all.len());
}

#[test]
fn a_paused_sandbox_comes_back_as_it_was() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    start(&sandbox);
    ask(&sandbox, "hooked.extend([7, 8])");
    out(&sandbox, "echo kept > /file");
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    let id = sandbox.id().clone();
    let paused = engine.pause(&id).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(paused.state, SandboxState::Paused);
    assert_eq!(sandbox.info().state, SandboxState::Dead);
    assert!(engine.sandboxes().is_empty());
    assert_eq!(engine.paused().len(), 1);
    assert_eq!(engine.pause(&id).unwrap_err().kind(), ErrorKind::NotFound);
    // It still needs its template.
    assert_eq!(engine.remove_template(&"debian".parse().unwrap()).unwrap_err().kind(), ErrorKind::Conflict);

    let resumed = engine.resume(&id).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(*resumed.id(), id);
    assert_eq!(engine.resume(&id).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(ask(&resumed, "hooked[:2]"), "[7, 8]");
    assert_eq!(out(&resumed, "cat /file"), "kept");
    assert_eq!(resumed.info().checkpoint.as_ref(), Some(&checkpoint.id));
    resumed.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(ask(&resumed, "hooked[:2]"), "[7, 8]");

    engine.pause(&id).unwrap_or_else(|error| panic!("{}", error.chain()));
    engine.kill(&id).unwrap();
    assert!(engine.paused().is_empty());
    assert_eq!(engine.resume(&id).unwrap_err().kind(), ErrorKind::NotFound);
}
