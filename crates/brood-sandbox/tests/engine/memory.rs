//! Squeezed sandboxes: used, frozen, put back and forked as if nothing had been.

use crate::checkpoints::Session;
use crate::fixture::{TestEngine, out};

/// Makes a state of some megabytes and a digest over it.
const PREPARE: &str = "import hashlib, json; data = {i: str(i) * 50 for i in range(20000)}";
const DIGEST: &str = "hashlib.md5(json.dumps(data).encode()).hexdigest()";

#[test]
fn a_squeezed_session_goes_on_and_pages_come_back() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    session.ask(PREPARE);
    let digest = session.ask(DIGEST);
    let squeezed = sandbox.squeeze().unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(squeezed.given_up_pages > 1000 && squeezed.bytes_after * 2 < squeezed.bytes_before, "{squeezed:?}");
    let by_codec: usize = squeezed.by_codec.iter().map(|share| share.pages).sum();
    assert_eq!(by_codec, squeezed.given_up_pages);
    assert_eq!(session.ask(DIGEST), digest);
    sandbox.squeeze().unwrap();
    let restored = sandbox.restore_pages().unwrap();
    assert!(restored.pages > 500, "{restored:?}");
    assert_eq!(session.ask(DIGEST), digest);
    assert_eq!(out(&sandbox, "echo $((6 * 7))"), "42");
    sandbox.kill().unwrap();
    sandbox.squeeze().unwrap_err();
}

#[test]
fn a_checkpoint_of_a_squeezed_sandbox_is_the_same_state() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut session = Session::start(&sandbox);
    session.ask(PREPARE);
    let digest = session.ask(DIGEST);
    sandbox.squeeze().unwrap();
    // Part of it is back, part is not.
    session.ask("data[5]");
    let base = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    session.ask("data[7] = 'changed'");
    let changed = session.ask(DIGEST);
    sandbox.squeeze().unwrap();
    let later = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    for _ in 0..2 {
        sandbox.squeeze().unwrap();
        sandbox.rollback(base.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(session.ask(DIGEST), digest);
        session.ask("data[9] = 'written after the rollback'");
        sandbox.squeeze().unwrap();
        sandbox.rollback(later.id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(session.ask(DIGEST), changed);
    }
    let forks: Vec<_> = (0..3).map(|_| engine.fork(base.id.as_str()).unwrap()).collect();
    let mut sessions: Vec<_> = forks.iter().map(Session::find).collect();
    for (fork, session) in forks.iter().zip(&mut sessions) {
        assert_eq!(session.ask(DIGEST), digest);
        session.ask("data[11] = 'one word'");
        let squeezed = fork.squeeze().unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!(squeezed.given_up_pages > 100, "{squeezed:?}");
    }
    for session in &mut sessions {
        assert_eq!(session.ask("data[11]"), "one word");
        session.ask("data[11] = '11' * 50");
        assert_eq!(session.ask(DIGEST), digest);
    }
}
