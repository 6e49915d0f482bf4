//! What the file side of create, checkpoint, rollback and destroy costs, on
//! the file system of the temporary directory. Needs root.
//!
//! A fixed number of rounds each, because every round leaves directories
//! behind that have to be removed; median and 95th percentile.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails should stop")]

use std::cell::Cell;
use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;

use brood_deltafs::{Diff, FileTree, LayerId, LayerStack, OverlayMount, RootSwapper, Upper};

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/mounts/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/mounts/tenant.rs"]
mod tenant;

use fixture::{Mounted, Place};

/// Rounds of what takes microseconds, and of what takes milliseconds.
const ROUNDS: usize = 300;
const ROUNDS_FEW: usize = 30;

/// Times `measured` alone: what `prepare` makes before and what it leaves
/// behind is not counted.
fn report<S, T>(name: &str, rounds: usize, mut prepare: impl FnMut() -> S, mut measured: impl FnMut(&S) -> T) {
    let mut micros: Vec<u128> = (0..rounds)
        .map(|_| {
            let subject = prepare();
            let begin = Instant::now();
            let result = measured(&subject);
            let elapsed = begin.elapsed().as_micros();
            drop(result);
            elapsed
        })
        .collect();
    micros.sort_unstable();
    println!("{name:45} p50 {:>7} us  p95 {:>7} us  n {rounds}", micros[rounds / 2], micros[rounds * 95 / 100]);
}

/// `depth` frozen layers above the image, one file in each.
fn deep(place: &Place, depth: usize) -> LayerStack {
    let mut stack = place.stack.clone();
    for number in 0..depth {
        let upper = place.store.new_upper(&stack).unwrap();
        fs::write(upper.changes().join(format!("file-{number}")), "").unwrap();
        let frozen = place.store.freeze(&upper, &stack).unwrap();
        (stack, _) = place.store.commit_freeze(frozen).unwrap();
    }
    stack
}

fn mounts(place: &Place) {
    let store = &place.store;
    report("new upper", ROUNDS, || (), |()| store.new_upper(&place.stack).unwrap());
    for depth in [0, 17, 97] {
        let stack = deep(place, depth);
        let upper = || store.new_upper(&stack).unwrap();
        let mount = |upper: &Upper| OverlayMount::mount(&stack, upper).unwrap();
        report(&format!("mount of {} layers", stack.depth()), ROUNDS, upper, mount);
        let mounted = || Cell::new(Some(mount(&upper())));
        report(&format!("unmount of {} layers", stack.depth()), ROUNDS, mounted, |mount| drop(mount.take()));
    }
    let upper = || store.new_upper(&place.stack).unwrap();
    report("freeze", ROUNDS, upper, |upper| store.freeze(upper, &place.stack).unwrap());
    let last = Cell::new(None);
    let discard = || {
        if let Some(space) = last.take() {
            store.discard_space(&space).unwrap();
        }
    };
    let make = |(): &()| last.set(Some(store.new_space(1 << 30).unwrap()));
    report("new space of 1 GiB", ROUNDS_FEW, discard, make);
    discard();
}

fn swap(place: &Place) {
    let store = &place.store;
    let swapper = RootSwapper::start().unwrap();
    let upper = store.new_upper(&place.stack).unwrap();
    let tenant = tenant::tenant_on(&swapper, &place.stack, &upper);
    let namespace = tenant.namespace();
    let carried = tenant::carried();
    let mount = || OverlayMount::mount(&place.stack, &store.new_upper(&place.stack).unwrap()).unwrap();
    let swap = |new: &OverlayMount| swapper.swap(namespace.as_fd(), new, &carried).unwrap();
    report("swap of the root, two mounts carried", ROUNDS, mount, swap);
    let mounted = || {
        let upper = store.new_upper(&place.stack).unwrap();
        swap(&OverlayMount::mount(&place.stack, &upper).unwrap());
        upper
    };
    report("freeze, mount and swap", ROUNDS, mounted, |upper| {
        let frozen = store.freeze(upper, &place.stack).unwrap();
        swap(&OverlayMount::mount(frozen.stack(), frozen.upper()).unwrap());
    });
}

fn trees(place: &Place) {
    let staging = place.store.stage().unwrap();
    for directory in 0..100 {
        let path = staging.path().join(format!("directory-{directory}"));
        fs::create_dir(&path).unwrap();
        for file in 0..100 {
            fs::write(path.join(format!("file-{file}")), "content").unwrap();
        }
    }
    let base = LayerStack::new([staging.publish(LayerId::random().unwrap()).unwrap()]);
    let mut stack = base.clone();
    let mut upper = place.store.new_upper(&stack).unwrap();
    for round in 0..6 {
        let mounted = Mounted::new(&stack, &upper);
        for file in 0..10 {
            mounted.write(&format!("directory-{}/file-{file}", round * 10), "changed");
        }
        drop(mounted);
        let frozen = place.store.freeze(&upper, &stack).unwrap();
        (stack, upper) = place.store.commit_freeze(frozen).unwrap();
    }
    let diff = |(): &()| Diff::new(FileTree::of(&base).unwrap(), FileTree::of(&stack).unwrap()).count();
    report("diff of 60 changes in 10,000 files", ROUNDS, || (), diff);
    report("squash of 6 layers with 60 changes", ROUNDS_FEW, || (), |()| place.store.squash(&stack, 0..6).unwrap());
    let big = || {
        let staging = place.store.stage().unwrap();
        fs::write(staging.path().join("file"), vec![1; 1 << 20]).unwrap();
        LayerStack::new([staging.publish(LayerId::random().unwrap()).unwrap()])
    };
    report(
        "release of a layer",
        ROUNDS_FEW,
        || Cell::new(Some(big())),
        |stack| place.store.release(stack.take().unwrap()).unwrap(),
    );
}

fn main() {
    let place = Place::new();
    mounts(&place);
    swap(&place);
    trees(&place);
}
