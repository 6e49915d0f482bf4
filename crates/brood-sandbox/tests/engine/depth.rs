//! Long chains of checkpoints: no depth, no cost that grows, no level that is lost.

use brood_sandbox::checkpoint::CheckpointInfo;
use brood_sandbox::model::ProcessRequest;
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out};

/// More than layers can be mounted at once, several times over.
const LEVELS: usize = 500;
/// Layers above the template's that nobody ever sees more of: twice what the squasher aims at.
const LAYERS_MAX: usize = 64;

/// Writes a file of the level it is told, and tells which it is at.
const COUNTER: &str = "
import sys
level = None
print('ready', flush=True)
for line in sys.stdin:
    if line != '?\\n':
        level = int(line)
        open('/level', 'w').write(line)
        open(f'/files/{level}', 'w').write(line)
    print(level, open('/level').read().strip(), flush=True)
";

fn ask(sandbox: &Sandbox, question: &str) -> String {
    let counter = sandbox.process_by_tag("counter").unwrap();
    let mut output = counter.subscribe(SubscribeFrom::Now);
    counter.write_stdin(format!("{question}\n").as_bytes()).unwrap();
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Of the standstills, in microseconds: the one that other work on this machine disturbed least.
fn quickest(checkpoints: &[CheckpointInfo]) -> u64 {
    checkpoints.iter().map(|checkpoint| checkpoint.standstill_us).min().unwrap()
}

#[test]
fn the_five_hundredth_checkpoint_costs_what_the_first_did() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    out(&sandbox, "mkdir /files");
    let request = ProcessRequest {
        stdin: true,
        background: true,
        tag: Some("counter".to_owned()),
        ..call(&["python3", "-c", COUNTER])
    };
    let (_counter, mut output) = sandbox.spawn_with_output(request).unwrap();
    output.next_blocking();
    drop(output);
    let template = engine.template(&"debian".parse().unwrap()).unwrap().layers.len();
    let mut checkpoints = Vec::new();
    for level in 0..LEVELS {
        assert_eq!(ask(&sandbox, &level.to_string()), format!("{level} {level}"));
        let info = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{level}: {}", error.chain()));
        assert!(info.layers <= template + LAYERS_MAX, "{level}: {} layers", info.layers);
        checkpoints.push(info);
    }
    let (first, last) = (quickest(&checkpoints[1..51]), quickest(&checkpoints[LEVELS - 50..]));
    println!("quickest standstill: {first} us of the first 50, {last} us of the last 50");
    assert!(last < 3 * first, "{first} us, {last} us");
    // Up and down the chain, by a fixed rule that looks random.
    for step in 0..40 {
        let level = (step * 193 + 71) % LEVELS;
        let checkpoint = checkpoints[level].id.as_str();
        sandbox.rollback(checkpoint).unwrap_or_else(|error| panic!("{level}: {}", error.chain()));
        assert_eq!(ask(&sandbox, "?"), format!("{level} {level}"));
        assert_eq!(out(&sandbox, "ls /files | wc -l"), (level + 1).to_string());
        assert!(sandbox.info().layers <= template + LAYERS_MAX);
    }
    let fork = engine.fork(checkpoints[LEVELS - 1].id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(out(&fork, "cat /level; ls /files | wc -l"), format!("{}\n{LEVELS}", LEVELS - 1));
    // All but a few in the middle of the chain go; what is left is whole.
    for (level, checkpoint) in checkpoints.iter().enumerate() {
        if level % 100 != 50 {
            engine.remove_checkpoint(checkpoint.id.as_str(), false).unwrap();
        }
    }
    for level in [450, 50, 250] {
        sandbox.rollback(checkpoints[level].id.as_str()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(ask(&sandbox, "?"), format!("{level} {level}"));
        assert_eq!(out(&sandbox, "ls /files | wc -l; cat /files/*|sort -n|tail -1"), format!("{}\n{level}", level + 1));
    }
}

#[test]
fn a_sandbox_whose_checkpoint_is_removed_is_at_the_nearest_one_above() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain())).id);
    }
    engine.remove_checkpoint(ids[2].as_str(), false).unwrap();
    engine.remove_checkpoint(ids[1].as_str(), false).unwrap();
    assert_eq!(sandbox.info().checkpoint.as_ref(), Some(&ids[0]));
    let next = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(next.parent.as_ref(), Some(&ids[0]));
    engine.remove_checkpoint(ids[0].as_str(), true).unwrap();
    assert_eq!(sandbox.info().checkpoint, None);
    assert_eq!(sandbox.checkpoint(None, true).unwrap().parent, None);
}
