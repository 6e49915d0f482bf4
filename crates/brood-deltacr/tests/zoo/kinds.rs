//! Each kind of state in each flavour.

use std::os::unix::fs::PermissionsExt;

use brood_deltacr::PageStore;

use crate::harness::{Sandbox, capture, program, roll_back};

/// Starts a program that may make files in a folder, which must outlive its forks.
fn start(name: &str, folder: &tempfile::TempDir) -> Sandbox {
    let variable = format!("ZOO_FOLDER={}", folder.path().display());
    Sandbox::start(&["/usr/bin/env", &variable, program(name).to_str().unwrap()])
}

/// A folder in which every user may make files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    folder
}

/// Captured, then went on; twice, so that the second capture is an incremental one.
fn goes_on(name: &str) {
    let (store, folder) = (PageStore::new(), folder());
    let mut sandbox = start(name, &folder);
    let mut tree = sandbox.tree();
    let first = capture(&mut tree, &store, &sandbox.pipes);
    let second = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(first.processes.len(), second.processes.len());
    assert_eq!(sandbox.ask("v"), "ok");
    drop((first, second));
    drop(tree);
    assert_eq!(store.usage().used, 0, "no image is left, so no page is");
}

/// Restored twice from one image, while the original is changed and captured again; the copy of
/// a copy, and the copy of an incremental checkpoint too.
fn forks(name: &str) {
    let (store, folder) = (PageStore::new(), folder());
    let mut original = start(name, &folder);
    let mut tree = original.tree();
    let image = capture(&mut tree, &store, &original.pipes);
    let mut fork = Sandbox::empty();
    let mut fork_tree = fork.restore(&image);
    let again = capture(&mut fork_tree, &store, &fork.pipes);
    assert_eq!(fork.ask("v"), "ok", "the fork");
    assert_eq!(original.ask("v"), "ok", "the original");
    drop(original);
    let mut copy_of_copy = Sandbox::empty();
    copy_of_copy.restore(&again);
    assert_eq!(copy_of_copy.ask("v"), "ok", "the copy of the fork");
    let mut sibling = Sandbox::empty();
    sibling.restore(&image);
    assert_eq!(sibling.ask("v"), "ok", "a sibling from the first image");
}

/// Rolled back after it was changed, after it verified itself (which uses things up), and to a
/// later checkpoint and from there to the first.
fn rolls_back(name: &str) {
    let (store, folder) = (PageStore::new(), folder());
    let mut sandbox = start(name, &folder);
    let mut tree = sandbox.tree();
    let first = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(sandbox.ask("m"), "ok");
    let _later = capture(&mut tree, &store, &sandbox.pipes);
    let statistics = roll_back(&mut tree, &first, &sandbox);
    eprintln!("{name}: {statistics:?}");
    assert_eq!(sandbox.ask("v"), "ok", "after a change");
    let statistics = roll_back(&mut tree, &first, &sandbox);
    eprintln!("{name}: {statistics:?}");
    let again = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(sandbox.ask("v"), "ok", "after verifying");
    roll_back(&mut tree, &again, &sandbox);
    assert_eq!(sandbox.ask("v"), "ok", "to the checkpoint of a rolled back state");
}

/// A child made after a checkpoint, with the engine's traces in its memory, is captured and
/// restored like any other.
#[test]
fn a_child_of_a_captured_process_is_restored() {
    let (store, folder) = (PageStore::new(), folder());
    let mut sandbox = start("tree", &folder);
    let mut tree = sandbox.tree();
    let first = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(sandbox.ask("m"), "ok");
    let second = capture(&mut tree, &store, &sandbox.pipes);
    assert_ne!(ids(&first), ids(&second));
    let mut fork = Sandbox::empty();
    let mut fork_tree = fork.restore(&second);
    let again = capture(&mut fork_tree, &store, &fork.pipes);
    assert_eq!(ids(&second), ids(&again));
    roll_back(&mut fork_tree, &again, &fork);
    fork.send("q");
}

fn ids(image: &brood_deltacr::ProcessTreeImage) -> Vec<i32> {
    let mut ids: Vec<i32> = image.processes.iter().map(|process| process.pid.0).collect();
    ids.sort_unstable();
    ids
}

macro_rules! kinds {
    ($($kind:ident)*) => {
        mod going_on {
            $(#[test] fn $kind() { super::goes_on(stringify!($kind)); })*
        }
        mod rolled_back {
            $(#[test] fn $kind() { super::rolls_back(stringify!($kind)); })*
        }
        mod forked {
            $(#[test] fn $kind() { super::forks(stringify!($kind)); })*
        }
    };
}

kinds! { memory files threads signals timers interrupted tree events identity }
