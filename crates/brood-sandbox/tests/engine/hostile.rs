//! Programs that do their worst while they are frozen: a consistent state, or a refusal that changes
//! nothing.

use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::ProcessRequest;
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out};

/// Starts children as fast as it can, which end at once.
const FORKER: &str = "
import os
living = 0
while True:
    if os.fork() == 0:
        os._exit(0)
    living += 1
    # As many at once as leave room for the calls of the test.
    while living > 40:
        os.waitpid(-1, 0)
        living -= 1
";
/// Changes its mappings as fast as it can, in two threads, and checks what it finds there.
const MAPPER: &str = "
import mmap, threading
def change(seed):
    kept = []
    while True:
        seed = (seed * 1103515245 + 12345) % 2**31
        if len(kept) > 20:
            area, value = kept.pop(seed % len(kept))
            assert area[:] == bytes([value]) * len(area)
            area.close()
        area = mmap.mmap(-1, 4096 * (1 + seed % 30), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area[:] = bytes([seed % 256]) * len(area)
        if seed % 3 == 0:
            area.resize(len(area) + 8192)
            area[-8192:] = bytes([seed % 256]) * 8192
        kept.append((area, seed % 256))
threading.Thread(target=change, args=(7,)).start()
change(99)
";
const SESSION: &str = "
import sys
print('ready', flush=True)
x = 0
for line in sys.stdin:
    x += int(line)
    print(x, flush=True)
";

fn add(sandbox: &Sandbox, number: usize) -> String {
    let session = sandbox.process_by_tag("session").unwrap();
    let mut output = session.subscribe(SubscribeFrom::Now);
    session.write_stdin(format!("{number}\n").as_bytes()).unwrap();
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn stays_consistent_beside(program: &str) {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let session = ProcessRequest {
        stdin: true,
        background: true,
        tag: Some("session".to_owned()),
        ..call(&["python3", "-c", SESSION])
    };
    let (_session, mut output) = sandbox.spawn_with_output(session).unwrap();
    output.next_blocking();
    drop(output);
    let hostile =
        ProcessRequest { background: true, tag: Some("hostile".to_owned()), ..call(&["python3", "-c", program]) };
    let hostile = sandbox.spawn(hostile).unwrap();
    let (mut total, mut frozen) = (0, 0);
    for round in 1..=6 {
        total += round;
        assert_eq!(add(&sandbox, round), total.to_string());
        out(&sandbox, &format!("echo {total} > /total"));
        let checkpoint = match sandbox.checkpoint(None, true) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.chain());
                assert_eq!(add(&sandbox, 0), total.to_string(), "a refusal changes nothing");
                continue;
            }
        };
        frozen += 1;
        assert_eq!(add(&sandbox, 1000), (total + 1000).to_string());
        out(&sandbox, "echo broken > /total");
        sandbox.rollback(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{round}: {}", error.chain()));
        assert_eq!(add(&sandbox, 0), total.to_string());
        assert_eq!(out(&sandbox, "cat /total"), total.to_string());
        let fork = engine.fork(checkpoint.id.as_str()).unwrap_or_else(|error| panic!("{round}: {}", error.chain()));
        assert_eq!(add(&fork, 5), (total + 5).to_string());
        fork.kill().unwrap();
    }
    println!("{frozen} of 6 checkpoints, the others refused");
    assert!(frozen > 0);
    // It ends as soon as it finds its memory otherwise than it left it.
    let now = sandbox.process_by_tag("hostile").unwrap();
    let mut said = String::new();
    let mut output = now.subscribe(SubscribeFrom::Start);
    while let Some(OutputEvent::Data { bytes, .. }) = output.next_if_there() {
        said.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert!(now.info().exit.is_none(), "{:?}: {said}", now.info().exit);
    drop(hostile);
}

#[test]
fn a_program_that_forks_without_end_is_frozen_with_the_others() {
    stays_consistent_beside(FORKER);
}

#[test]
fn a_program_that_changes_its_mappings_without_end_is_frozen_with_the_others() {
    stays_consistent_beside(MAPPER);
}
