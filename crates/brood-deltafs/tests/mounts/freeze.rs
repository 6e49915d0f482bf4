use std::fs;

use crate::fixture::{Mounted, Place};

#[test]
fn a_frozen_upper_is_seen_through_the_new_stack() {
    let place = Place::new();
    let store = &place.store;
    let mut stack = place.stack.clone();
    let mut upper = store.new_upper(&stack).unwrap();
    for round in 0..30 {
        let mounted = Mounted::new(&stack, &upper);
        mounted.write(&format!("data/file-{round}"), "new");
        mounted.write("data/file", &format!("round {round}"));
        if round == 3 {
            fs::remove_dir_all(mounted.path.join("data/deep")).unwrap();
        }
        let frozen = store.freeze(&upper, &stack).unwrap();
        let next = Mounted::new(frozen.stack(), frozen.upper());
        assert_eq!(next.read("data/file"), format!("round {round}"));
        assert_eq!(next.exists("data/deep/er/file"), round < 3);
        (stack, upper) = store.commit_freeze(frozen).unwrap();
    }
    assert_eq!(stack.depth(), place.stack.depth() + 30);
    // A rollback is a mount of an earlier stack.
    let early = store.stack(stack.ids().skip(28)).unwrap();
    let mounted = Mounted::new(&early, &store.new_upper(&early).unwrap());
    assert_eq!(mounted.read("data/file"), "round 1");
    assert!(mounted.exists("data/file-1") && !mounted.exists("data/file-2"));
    assert!(mounted.exists("data/deep/er/file"));
}

#[test]
fn an_undone_freeze_leaves_mount_and_upper_as_they_were() {
    let place = Place::new();
    let store = &place.store;
    let upper = store.new_upper(&place.stack).unwrap();
    let mounted = Mounted::new(&place.stack, &upper);
    mounted.write("data/file", "before");
    let frozen = store.freeze(&upper, &place.stack).unwrap();
    let layer = frozen.stack().top().unwrap().id().clone();
    store.undo_freeze(frozen).unwrap();
    store.layer(&layer).unwrap_err();
    mounted.write("data/new", "after");
    drop(mounted);
    let mounted = Mounted::new(&place.stack, &store.upper(upper.id()).unwrap());
    assert_eq!(mounted.read("data/file"), "before");
    assert_eq!(mounted.read("data/new"), "after");
}
