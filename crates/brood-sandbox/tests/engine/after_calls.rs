//! Checkpoints that follow tool calls by themselves.

use std::time::{Duration, Instant};

use brood_sandbox::checkpoint::CheckpointInfo;
use brood_sandbox::ids::SandboxId;
use brood_sandbox::model::CreateRequest;

use crate::fixture::{TestEngine, create_request, out, shell};

fn automatic(engine: &TestEngine, sandbox: &SandboxId) -> Vec<CheckpointInfo> {
    let mut all = engine.checkpoints();
    all.retain(|info| info.automatic && info.sandbox == *sandbox);
    all
}

/// The newest, once it is another than before.
fn next(engine: &TestEngine, sandbox: &SandboxId, before: Option<&CheckpointInfo>) -> CheckpointInfo {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let newest = automatic(engine, sandbox).pop();
        if let Some(newest) = newest.filter(|newest| before.is_none_or(|before| before.id != newest.id)) {
            return newest;
        }
        assert!(Instant::now() < end, "no checkpoint after a call");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn each_call_is_followed_by_a_checkpoint_and_old_ones_go() {
    let engine = TestEngine::with_debian();
    let request = CreateRequest { checkpoint_every_call: Some(3), ..create_request() };
    let sandbox = engine.create(request).unwrap_or_else(|error| panic!("{}", error.chain()));
    let mut taken: Vec<CheckpointInfo> = Vec::new();
    let mut fork = None;
    for call in 0..7 {
        out(&sandbox, &format!("echo {call} > /call"));
        let info = next(&engine, sandbox.id(), taken.last());
        taken.push(info);
        if call == 1 {
            // A branch point stays as long as something is at it.
            fork = Some(engine.fork(taken[1].id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain())));
        }
        if call == 2 {
            sandbox.checkpoint(Some("named".to_owned()), true).unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    }
    // The removal follows the checkpoint that it makes room for.
    let end = Instant::now() + Duration::from_secs(30);
    while automatic(&engine, sandbox.id()).len() > 4 && Instant::now() < end {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let left: Vec<_> = automatic(&engine, sandbox.id()).into_iter().map(|info| info.id).collect();
    let wanted: Vec<_> = [1, 4, 5, 6].map(|call: usize| taken[call].id.clone()).into();
    assert_eq!(left, wanted);
    engine.checkpoint("named").unwrap();
    sandbox.rollback(taken[4].id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(out(&sandbox, "cat /call"), "4");
    let fork = fork.unwrap();
    assert_eq!(out(&fork, "cat /call"), "1");
    // Background processes are no calls.
    let before = automatic(&engine, fork.id()).len();
    let request = brood_sandbox::model::ProcessRequest { background: true, ..shell("true") };
    fork.spawn(request).unwrap().wait();
    assert!(automatic(&engine, fork.id()).len() <= before + 1, "only the call before it counts");
}
