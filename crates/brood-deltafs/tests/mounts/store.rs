use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use brood_deltafs::{DEPTH_MAX, LayerId, LayerStack, OverlayMount, Store, StoreError};

use crate::fixture::{ID_BASE, Mounted, Place, TemporaryDirectory, image_layer};

fn names(path: &Path) -> HashSet<String> {
    let entries = fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_mount_shows_image_and_system_layers() {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    let mounted = Mounted::new(&place.stack, &upper);
    assert_eq!(mounted.read("etc/hostname"), "image\n");
    let root = fs::metadata(&mounted.path).unwrap();
    assert_eq!((root.uid(), root.mode() & 0o7777), (ID_BASE, 0o755));
    // Devices are the engine's, whatever the image has in their place.
    let null = fs::metadata(mounted.path.join("dev/null")).unwrap();
    assert!(null.file_type().is_char_device());
    assert_eq!((null.uid(), null.mode() & 0o7777), (ID_BASE, 0o666));
    assert_eq!(fs::metadata(mounted.path.join("dev/tty")).unwrap().gid(), ID_BASE + 5);
    fs::write(mounted.path.join("dev/null"), "swallowed").unwrap();
    assert_eq!(mounted.read("dev/null"), "");
    let full = fs::write(mounted.path.join("dev/full"), "x").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let tmp = fs::metadata(mounted.path.join("tmp")).unwrap();
    assert_eq!(tmp.permissions().mode() & 0o7777, 0o1777);
    let devices = ["null", "zero", "full", "random", "urandom", "tty"];
    let others = ["ptmx", "fd", "stdin", "stdout", "stderr", "pts", "shm", "mqueue"];
    let expected = devices.iter().chain(&others).map(|name| (*name).to_owned()).collect();
    assert_eq!(names(&mounted.path.join("dev")), expected);
}

#[test]
fn changes_stay_in_their_own_upper() {
    let place = Place::new();
    let one = place.store.new_upper(&place.stack).unwrap();
    let two = place.store.new_upper(&place.stack).unwrap();
    let first = Mounted::new(&place.stack, &one);
    let second = Mounted::new(&place.stack, &two);
    first.write("data/file", "changed");
    fs::remove_dir_all(first.path.join("data/deep")).unwrap();
    assert_eq!(second.read("data/file"), "one");
    assert!(second.exists("data/deep/er/file"));
    assert!(!first.exists("data/deep"));
}

#[test]
fn directories_of_the_image_can_be_renamed() {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    let mounted = Mounted::new(&place.stack, &upper);
    fs::rename(mounted.path.join("data"), mounted.path.join("moved")).unwrap();
    assert_eq!(mounted.read("moved/deep/er/file"), "two");
    assert!(!mounted.exists("data"));
}

#[test]
fn a_store_is_opened_once_and_reopened_after() {
    let directory = TemporaryDirectory::new();
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let locked = Store::open(directory.path(), ID_BASE);
    assert!(matches!(locked, Err(StoreError::Locked { .. })), "{locked:?}");
    let id = image_layer(&store).id().clone();
    drop(store);
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    assert_eq!(store.layer(&id).unwrap().id(), &id);
}

#[test]
fn what_a_crash_left_is_removed_at_the_next_start() {
    let directory = TemporaryDirectory::new();
    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let kept = image_layer(&store);
    let lost = image_layer(&store);
    let kept_upper = store.new_upper(&LayerStack::new([kept.clone()])).unwrap();
    store.new_upper(&LayerStack::new([lost.clone()])).unwrap();
    let (kept, lost) = (kept.id().clone(), lost.id().clone());
    drop(store);
    fs::create_dir_all(directory.path().join("staging/half/made")).unwrap();
    fs::create_dir_all(directory.path().join("trash/half/removed")).unwrap();

    let store = Store::open(directory.path(), ID_BASE).unwrap();
    let uppers = HashSet::from([kept_upper.id().clone()]);
    let retained = store.retain(&HashSet::from([kept.clone()]), &uppers).unwrap();
    assert_eq!((retained.layers_removed, retained.uppers_removed), (1, 1));
    store.wait_removed();
    assert!(names(&directory.path().join("staging")).is_empty());
    assert!(names(&directory.path().join("trash")).is_empty());
    assert_eq!(names(&directory.path().join("layers")), HashSet::from([kept.to_string()]));
    assert!(matches!(store.layer(&lost), Err(StoreError::NoLayer { .. })));
    assert_eq!(store.upper(kept_upper.id()).unwrap(), kept_upper);
}

#[test]
fn layers_go_with_their_last_reference() {
    let place = Place::new();
    let store = &place.store;
    let upper = store.new_upper(&place.stack).unwrap();
    let frozen = store.freeze(&upper, &place.stack).unwrap();
    let (stack, upper) = store.commit_freeze(frozen).unwrap();
    let other_owner = stack.clone();
    assert_eq!(store.release(stack).unwrap(), []);
    let top = other_owner.top().unwrap().id().clone();
    // The image stays: the fixture's own stack refers to it.
    assert_eq!(store.release(other_owner).unwrap(), [top]);
    store.discard(upper).unwrap();
    store.wait_removed();
    assert!(names(&place.directory.path().join("uppers")).is_empty());
    assert_eq!(names(&place.directory.path().join("layers")).len(), 3);
    assert_eq!(names(&place.directory.path().join("trash")), HashSet::new());
}

#[test]
fn publishing_the_same_layer_twice_keeps_the_first() {
    let place = Place::new();
    let id: LayerId = "sha256-abc".parse().unwrap();
    let stage = |text: &str| {
        let staging = place.store.stage().unwrap();
        fs::write(staging.path().join("file"), text).unwrap();
        staging
    };
    let (one, two) = (stage("one"), stage("two"));
    one.publish(id.clone()).unwrap();
    let layer = two.publish(id).unwrap();
    assert_eq!(fs::read_to_string(layer.path().join("file")).unwrap(), "one");
    assert!(names(&place.directory.path().join("staging")).is_empty());
}

#[test]
fn depths_from_one_to_the_maximum_mount_and_more_is_refused() {
    let place = Place::new();
    let layers: Vec<_> = (0..=DEPTH_MAX)
        .map(|number| {
            let staging = place.store.stage().unwrap();
            fs::write(staging.path().join(format!("file-{number}")), "").unwrap();
            staging.publish(LayerId::random().unwrap()).unwrap()
        })
        .collect();
    for depth in [1, 2, 10, 50, 100, DEPTH_MAX] {
        let stack = LayerStack::new(layers[..depth].iter().cloned());
        let upper = place.store.new_upper(&stack).unwrap();
        let mounted = Mounted::new(&stack, &upper);
        assert_eq!(names(&mounted.path).len(), depth);
    }
    for stack in [LayerStack::new(layers), LayerStack::new([])] {
        let upper = place.store.new_upper(&place.stack).unwrap();
        let refused = OverlayMount::mount(&stack, &upper);
        assert!(matches!(refused, Err(StoreError::Depth { .. })), "{refused:?}");
    }
}

#[test]
fn long_and_odd_state_directories_work() {
    let directory = TemporaryDirectory::new();
    let odd = directory.path().join(format!("a,b:c\\d {}", "long/".repeat(60)));
    let store = Store::open(&odd, ID_BASE).unwrap();
    let stack = LayerStack::new([image_layer(&store)]);
    let upper = store.new_upper(&stack).unwrap();
    assert_eq!(Mounted::new(&stack, &upper).read("data/file"), "one");
}
