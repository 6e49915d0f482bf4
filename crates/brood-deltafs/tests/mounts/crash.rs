//! `kill -9` in the middle, then a start. The test binary runs itself as the
//! process that dies.

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use brood_deltafs::{LayerId, LayerStack, Store, UpperId};

use crate::fixture::{ID_BASE, Mounted, TemporaryDirectory, image_layer};

const STORE_VARIABLE: &str = "BROOD_TEST_STORE";
/// Written before the operation that dies: the ids that a database would know.
const KNOWN: &str = "known-before";
/// Written when a freeze was recorded, before it is committed.
const RECORDED: &str = "known-after";

/// What the owner's database would say: layers of the stack, and the upper.
fn record(store: &Store, name: &str, stack: &LayerStack, upper: &UpperId) {
    let mut text: Vec<String> = stack.ids().map(ToString::to_string).collect();
    text.push(upper.to_string());
    fs::write(store.root().join(name), text.join("\n")).unwrap();
}

fn recorded(root: &Path, name: &str) -> Option<(Vec<LayerId>, UpperId)> {
    let text = fs::read_to_string(root.join(name)).ok()?;
    let mut lines: Vec<&str> = text.lines().collect();
    let upper = lines.pop().unwrap().parse().unwrap();
    Some((lines.into_iter().map(|line| line.parse().unwrap()).collect(), upper))
}

/// The process that dies: run by [`dies_at`] only.
#[test]
#[ignore = "is the child of the other tests here"]
fn child() {
    let Some(root) = std::env::var_os(STORE_VARIABLE) else { return };
    let store = Store::open(Path::new(&root), ID_BASE).unwrap();
    let stack = LayerStack::new([image_layer(&store)]);
    let upper = store.new_upper(&stack).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    mounted.write("data/file", "precious");
    let (stack, upper) = {
        record(&store, KNOWN, &stack, upper.id());
        let frozen = store.freeze(&upper, &stack).unwrap();
        record(&store, RECORDED, frozen.stack(), frozen.upper().id());
        store.commit_freeze(frozen).unwrap()
    };
    store.squash(&stack, 0..2).unwrap();
    drop(upper);
}

/// Runs [`child`] until it kills itself at `point`, then starts again with
/// what a database would know. Returns what the sandbox's file says then, and
/// the number of layers on disk.
fn dies_at(point: &str) -> (String, usize) {
    let directory = TemporaryDirectory::new();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env(STORE_VARIABLE, directory.path())
        .env("BROOD_FAILURE_POINT", point)
        .output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(9), "{}", String::from_utf8_lossy(&status.stderr));

    let (layers, upper) = recorded(directory.path(), RECORDED).or_else(|| recorded(directory.path(), KNOWN)).unwrap();
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let known: HashSet<_> = layers.iter().cloned().collect();
    store.retain(&known, &HashSet::from([upper.clone()])).unwrap();
    store.wait_removed();
    for name in ["staging", "trash"] {
        assert_eq!(fs::read_dir(directory.path().join(name)).unwrap().count(), 0, "{name}");
    }
    assert_eq!(fs::read_dir(directory.path().join("uppers")).unwrap().count(), 1);
    let stack = store.stack(&layers).unwrap();
    let upper = store.upper(&upper).unwrap();
    let content = Mounted::new(&stack, &upper).read("data/file");
    // A second start has nothing left to mend.
    let again = store.retain(&known, &HashSet::from([upper.id().clone()])).unwrap();
    assert_eq!(again, brood_deltafs::Retained::default());
    (content, fs::read_dir(directory.path().join("layers")).unwrap().count())
}

#[test]
fn a_freeze_that_died_before_it_was_recorded_is_undone() {
    for point in ["freeze.upper-made", "freeze.noted", "freeze.renamed"] {
        assert_eq!(dies_at(point), ("precious".to_owned(), 1), "{point}");
    }
}

#[test]
fn a_squash_that_died_leaves_the_recorded_freeze_and_nothing_else() {
    assert_eq!(dies_at("squash.merged"), ("precious".to_owned(), 2));
}

#[test]
fn a_space_that_died_half_made_is_removed() {
    let directory = TemporaryDirectory::new();
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let space = store.new_space(32 << 20).unwrap();
    // As if the process had died between mkfs and mount: an image that cannot
    // be mounted, and a directory with nothing in it.
    let half = directory.path().join("spaces").join("half-made");
    fs::create_dir_all(half.join("content")).unwrap();
    fs::write(half.join("image"), vec![0; 1 << 20]).unwrap();
    fs::create_dir(directory.path().join("spaces").join("empty")).unwrap();
    drop((space, store));
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let retained = store.retain(&HashSet::new(), &HashSet::new()).unwrap();
    assert_eq!(retained.spaces_removed, 3);
    store.wait_removed();
    assert_eq!(fs::read_dir(directory.path().join("spaces")).unwrap().count(), 0);
}
