use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;

use brood_deltafs::{ChangeKind, DEPTH_AIM, Diff, FileTree, LayerStack, Store, StoreError, Upper};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{Mounted, Place};
use crate::model::{Operation, Seen, account, apply, operation};

/// Applies each round of operations through a mount and freezes it. Returns
/// the final stack, and the unfrozen upper of the last round.
fn build(place: &Place, rounds: &[Vec<Operation>]) -> (LayerStack, Upper) {
    let mut stack = place.stack.clone();
    let mut upper = place.store.new_upper(&stack).unwrap();
    for (number, operations) in rounds.iter().enumerate() {
        let mounted = Mounted::new(&stack, &upper);
        for operation in operations {
            apply(&mounted.path, operation);
        }
        drop(mounted);
        if number + 1 < rounds.len() {
            let frozen = place.store.freeze(&upper, &stack).unwrap();
            (stack, upper) = place.store.commit_freeze(frozen).unwrap();
        }
    }
    (stack, upper)
}

fn shown(store: &Store, stack: &LayerStack) -> BTreeMap<PathBuf, Seen> {
    account(&Mounted::new(stack, &store.new_upper(stack).unwrap()).path)
}

fn rounds() -> impl Strategy<Value = Vec<Vec<Operation>>> {
    proptest::collection::vec(proptest::collection::vec(operation(), 1..16), 2..7)
}

/// Cases of one run. Every one mounts real file systems: fewer than usual, but
/// new ones each time; `PROPTEST_CASES` asks for more.
const CASES: u32 = 64;

fn runner() -> TestRunner {
    let config = Config { failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { config.cases } else { CASES };
    TestRunner::new(Config { cases, ..config })
}

#[test]
fn a_squashed_stack_shows_the_same() {
    let strategy = (rounds(), any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let property = |(rounds, first, last): (Vec<Vec<Operation>>, prop::sample::Index, prop::sample::Index)| {
        let place = Place::new();
        let (stack, _upper) = build(&place, &rounds);
        let before = shown(&place.store, &stack);
        let depth = stack.depth();
        let (one, two) = (first.index(depth), last.index(depth));
        let (start, end) = (one.min(two), one.max(two) + 1);
        prop_assume!(end - start >= 2);
        let merged = place.store.squash(&stack, start..end).unwrap();
        let shorter = stack.replaced(start..end, &merged);
        prop_assert_eq!(shorter.depth(), depth - (end - start) + 1);
        prop_assert_eq!(shown(&place.store, &shorter), before);
        Ok(())
    };
    runner().run(&strategy, property).unwrap();
}

/// The difference of two accounts by looking at everything.
fn naive(old: &BTreeMap<PathBuf, Seen>, new: &BTreeMap<PathBuf, Seen>) -> BTreeMap<PathBuf, ChangeKind> {
    let mut changes = BTreeMap::new();
    for (path, before) in old {
        let kind = match new.get(path) {
            None => ChangeKind::Deleted,
            Some(after) => {
                let content = (before.kind, &before.content) != (after.kind, &after.content);
                let simple = |seen: &Seen| (seen.mode, seen.owner, seen.attribute.clone());
                let metadata = simple(before) != simple(after);
                if !content && !metadata {
                    continue;
                }
                ChangeKind::Modified { content, metadata }
            }
        };
        changes.insert(path.clone(), kind);
    }
    let added = new.keys().filter(|path| !old.contains_key(*path));
    changes.extend(added.map(|path| (path.clone(), ChangeKind::Added)));
    changes.remove(&PathBuf::new());
    changes
}

#[test]
fn a_diff_is_what_comparing_everything_finds() {
    let strategy = (rounds(), any::<prop::sample::Index>(), any::<bool>());
    let property = |(rounds, from, squashed): (Vec<Vec<Operation>>, prop::sample::Index, bool)| {
        let place = Place::new();
        let (stack, upper) = build(&place, &rounds);
        let depth = place.stack.depth() + from.index(rounds.len());
        let mut early = place.store.stack(stack.ids().skip(stack.depth().saturating_sub(depth))).unwrap();
        if squashed && early.depth() > place.stack.depth() + 1 {
            let run = 0..early.depth() - place.stack.depth();
            let merged = place.store.squash(&early, run.clone()).unwrap();
            early = early.replaced(run, &merged);
        }
        let old = shown(&place.store, &early);
        let new = account(&Mounted::new(&stack, &upper).path);
        let trees = || (FileTree::of(&early).unwrap(), FileTree::live(&stack, &upper).unwrap());
        let (old_tree, new_tree) = trees();
        let changes: Vec<_> = Diff::new(old_tree, new_tree).map(Result::unwrap).collect();
        let mut sorted = changes.clone();
        sorted.sort_by(|one, two| one.path.cmp(&two.path));
        prop_assert_eq!(&sorted, &changes, "not in order");
        let found = changes.iter().map(|change| (change.path.clone(), change.kind)).collect();
        prop_assert_eq!(naive(&old, &new), found);
        for change in &changes {
            let last = if change.kind == ChangeKind::Deleted { &old } else { &new };
            let is_directory = last[&change.path].kind == rustix::fs::FileType::Directory;
            prop_assert_eq!(change.is_directory, is_directory);
        }
        let (old_tree, new_tree) = trees();
        let back = Diff::new(new_tree, old_tree).map(|change| change.map(|change| (change.path, change.kind)));
        prop_assert_eq!(naive(&new, &old), back.collect::<Result<_, _>>().unwrap());
        Ok(())
    };
    runner().run(&strategy, property).unwrap();
}

#[test]
fn two_hundred_checkpoints_stay_shallow_and_rollback_finds_each() {
    let place = Place::new();
    let store = &place.store;
    let pinned: HashSet<_> = place.stack.ids().cloned().collect();
    let mut stack = place.stack.clone();
    let mut upper = store.new_upper(&stack).unwrap();
    let mut checkpoints = Vec::new();
    for number in 0..200 {
        let mounted = Mounted::new(&stack, &upper);
        mounted.write("data/file", &format!("checkpoint {number}"));
        mounted.write(&format!("tmp/{}", number % 7), &number.to_string());
        let frozen = store.freeze(&upper, &stack).unwrap();
        drop(mounted);
        (stack, upper) = store.commit_freeze(frozen).unwrap();
        if let Some(shorter) = store.shortened(&stack, &pinned).unwrap() {
            store.release(std::mem::replace(&mut stack, shorter)).unwrap();
        }
        assert!(stack.depth() <= place.stack.depth() + DEPTH_AIM);
        checkpoints.push(stack.clone());
    }
    for (number, checkpoint) in checkpoints.iter().enumerate().step_by(23) {
        let mounted = Mounted::new(checkpoint, &store.new_upper(checkpoint).unwrap());
        assert_eq!(mounted.read("data/file"), format!("checkpoint {number}"));
        let tmp = fs::read_dir(mounted.path.join("tmp")).unwrap().count();
        assert_eq!(tmp, (number + 1).min(7));
    }
    // Dropping all but the last leaves only the layers of its stack.
    drop(stack);
    let last = checkpoints.pop().unwrap();
    for checkpoint in checkpoints {
        store.release(checkpoint).unwrap();
    }
    let left = fs::read_dir(place.directory.path().join("layers")).unwrap().count();
    assert_eq!(left, last.depth());
    store.wait_removed();
    let mounted = Mounted::new(&last, &store.new_upper(&last).unwrap());
    assert_eq!(mounted.read("data/file"), "checkpoint 199");
}

#[test]
fn squashing_what_cannot_be_is_refused() {
    let place = Place::new();
    for run in [0..0, 1..2, 2..9] {
        assert!(matches!(place.store.squash(&place.stack, run), Err(StoreError::Depth { .. })));
    }
    let space = place.store.new_space(32 << 20).unwrap();
    let upper = place.store.new_upper_in(&space, &place.stack).unwrap();
    let frozen = place.store.freeze(&upper, &place.stack).unwrap();
    let (stack, _upper) = place.store.commit_freeze(frozen).unwrap();
    let refused = place.store.squash(&stack, 0..stack.depth());
    assert!(matches!(refused, Err(StoreError::Apart { .. })), "{refused:?}");
    assert_eq!(fs::read_dir(place.directory.path().join("staging")).unwrap().count(), 0);
}
