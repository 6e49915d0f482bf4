use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use brood_deltafs::{LIMIT_BYTES_MIN, Store, StoreError};

use crate::fixture::{ID_BASE, Mounted, Place, TemporaryDirectory, image_layer};

const LIMIT_BYTES: u64 = 32 << 20;

/// Writes until nothing goes in any more. Returns the bytes written.
fn fill(path: &Path) -> (u64, std::io::Error) {
    let mut file = File::create(path).unwrap();
    let block = vec![b'x'; 64 << 10];
    let mut written = 0;
    loop {
        match file.write(&block) {
            Ok(bytes) => written += bytes as u64,
            Err(error) => return (written, error),
        }
    }
}

fn mounts_below(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(path.to_str().unwrap())).count()
}

#[test]
fn a_full_space_is_told_exactly_and_siblings_do_not_notice() {
    let place = Place::new();
    let store = &place.store;
    eprintln!("limits: {:?}", store.limit_support());
    let space = store.new_space(LIMIT_BYTES).unwrap();
    let other = store.new_space(LIMIT_BYTES).unwrap();
    let limited = store.new_upper_in(&space, &place.stack).unwrap();
    let sibling = store.new_upper_in(&other, &place.stack).unwrap();
    let free = store.new_upper(&place.stack).unwrap();
    let mounted = Mounted::new(&place.stack, &limited);
    let (written, error) = fill(&mounted.path.join("tmp/big"));
    assert!(matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded), "{error}");
    assert!((LIMIT_BYTES * 99 / 100..=LIMIT_BYTES * 102 / 100 + (1 << 20)).contains(&written), "{written}");
    let usage = space.usage().unwrap();
    assert!(usage.bytes >= written && usage.bytes <= usage.bytes_max, "{usage:?}");

    // Everyone else goes on writing, and so does it after deleting.
    for upper in [&sibling, &free] {
        let mounted = Mounted::new(&place.stack, upper);
        let mut file = File::create(mounted.path.join("tmp/file")).unwrap();
        file.write_all(&vec![0; 8 << 20]).unwrap();
    }
    fs::remove_file(mounted.path.join("tmp/big")).unwrap();
    fs::write(mounted.path.join("tmp/small"), "fits").unwrap();
    assert_eq!(mounted.read("data/file"), "one");
}

#[test]
fn frozen_layers_count_and_forks_of_them_do_not() {
    let place = Place::new();
    let store = &place.store;
    let space = store.new_space(LIMIT_BYTES).unwrap();
    let upper = store.new_upper_in(&space, &place.stack).unwrap();
    let mounted = Mounted::new(&place.stack, &upper);
    fs::write(mounted.path.join("tmp/big"), vec![1; 20 << 20]).unwrap();
    let frozen = store.freeze(&upper, &place.stack).unwrap();
    drop(mounted);
    let (stack, upper) = store.commit_freeze(frozen).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    fs::write(mounted.path.join("tmp/bigger"), vec![2; 20 << 20]).unwrap_err();
    drop(mounted);
    store.make_durable(&stack).unwrap();
    let fork = store.new_upper_in(&store.new_space(LIMIT_BYTES).unwrap(), &stack).unwrap();
    let mounted = Mounted::new(&stack, &fork);
    fs::write(mounted.path.join("tmp/bigger"), vec![2; 20 << 20]).unwrap();
    // Its owner is gone, but the fork still needs the layer.
    let usage = space.usage().unwrap();
    store.discard_space(&space).unwrap();
    assert_eq!(fs::read(mounted.path.join("tmp/big")).unwrap().len(), 20 << 20);
    assert!(usage.bytes >= 20 << 20);
    drop(mounted);
    store.release(stack).unwrap();
    assert!(matches!(store.space(space.id()), Err(StoreError::NoSpace { .. })));
    store.wait_removed();
    assert_eq!(fs::read_dir(place.directory.path().join("spaces")).unwrap().count(), 1);
}

#[test]
fn spaces_are_found_again_and_nothing_stays_mounted() {
    let directory = TemporaryDirectory::new();
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let stack = brood_deltafs::LayerStack::new([image_layer(&store)]);
    let space = store.new_space(LIMIT_BYTES).unwrap();
    let upper = store.new_upper_in(&space, &stack).unwrap();
    fs::write(upper.changes().join("kept"), "content").unwrap();
    let lost = store.new_space(LIMIT_BYTES).unwrap();
    let (id, layers) = (space.id().clone(), stack.ids().cloned().collect::<HashSet<_>>());
    drop((stack, store));
    assert_eq!(mounts_below(directory.path()), 0);

    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let retained = store.retain(&layers, &HashSet::from([upper.id().clone()])).unwrap();
    assert_eq!((retained.spaces_removed, retained.uppers_removed), (1, 0));
    assert!(matches!(store.space(lost.id()), Err(StoreError::NoSpace { .. })));
    store.space(&id).unwrap();
    let upper = store.upper(upper.id()).unwrap();
    assert_eq!(fs::read_to_string(upper.changes().join("kept")).unwrap(), "content");
    store.retain(&layers, &HashSet::new()).unwrap();
    drop(store);
    assert_eq!(mounts_below(directory.path()), 0);
    assert_eq!(fs::read_dir(directory.path().join("spaces")).unwrap().count(), 0);
}

#[test]
fn silly_limits_are_refused() {
    let place = Place::new();
    for bytes in [0, LIMIT_BYTES_MIN - 1, u64::MAX] {
        let refused = place.store.new_space(bytes);
        assert!(matches!(refused, Err(StoreError::LimitRange { .. })), "{refused:?}");
    }
    place.store.new_space(LIMIT_BYTES_MIN).unwrap();
    assert_eq!(fs::read_dir(place.directory.path().join("spaces")).unwrap().count(), 1);
}
