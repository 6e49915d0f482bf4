//! A disk without a byte left, and what things occupy.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use brood_deltafs::{LayerStack, Store};
use brood_kernel::mount::{FsContext, attach_on, detach, open_directory};
use rustix::mount::MountAttrFlags;

use crate::fixture::{ID_BASE, Mounted, Place, TemporaryDirectory, image_layer};

const DISK_BYTES: &str = "4m";

/// A small disk, mounted on a directory.
struct Disk<'d>(&'d Path);

impl<'d> Disk<'d> {
    fn new(path: &'d Path) -> Self {
        let mut context = FsContext::new("tmpfs").unwrap();
        context.string("size", DISK_BYTES).unwrap();
        let mount = context.mount(MountAttrFlags::empty()).unwrap();
        attach_on(mount.as_fd(), open_directory(path).unwrap().as_fd()).unwrap();
        Self(path)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        detach(self.0).unwrap();
    }
}

#[test]
fn a_freeze_on_a_full_disk_is_refused_and_nothing_is_lost() {
    let directory = TemporaryDirectory::new();
    let disk = Disk::new(directory.path());
    let store = Store::open(disk.0, ID_BASE).unwrap();
    let stack = LayerStack::new([image_layer(&store)]);
    let upper = store.new_upper(&stack).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    mounted.write("data/precious", "content");
    let filler = vec![1; 8 << 20];
    let full = fs::write(mounted.path.join("filler"), filler).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    for _ in 0..3 {
        let refused = store.freeze(&upper, &stack).unwrap_err();
        assert!(refused.is_disk_full(), "{refused}");
        assert_eq!(mounted.read("data/precious"), "content");
    }
    fs::remove_file(mounted.path.join("filler")).unwrap();
    let frozen = store.freeze(&upper, &stack).unwrap();
    drop(mounted);
    let (stack, upper) = store.commit_freeze(frozen).unwrap();
    assert_eq!(Mounted::new(&stack, &upper).read("data/precious"), "content");
    store.wait_removed();
    assert_eq!(fs::read_dir(directory.path().join("uppers")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(directory.path().join("layers")).unwrap().count(), 2);
    drop(store);
}

#[test]
fn usage_counts_blocks_and_links_once() {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    let empty = upper.usage(Duration::ZERO).unwrap();
    assert_eq!(empty.inodes, 1);
    let mounted = Mounted::new(&place.stack, &upper);
    fs::write(mounted.path.join("tmp/file"), vec![1; 1 << 20]).unwrap();
    fs::hard_link(mounted.path.join("tmp/file"), mounted.path.join("tmp/link")).unwrap();
    fs::File::create(mounted.path.join("tmp/hole")).unwrap().set_len(1 << 30).unwrap();
    assert_eq!(upper.usage(Duration::from_secs(3600)).unwrap(), empty);
    let usage = upper.usage(Duration::ZERO).unwrap();
    // The root, tmp, a file with two names, a file without content.
    assert_eq!(usage.inodes, 4);
    let content = usage.bytes - empty.bytes;
    assert!((1 << 20..(1 << 20) + (64 << 10)).contains(&content), "{usage:?}");
    drop(mounted);
    let frozen = place.store.freeze(&upper, &place.stack).unwrap();
    let (stack, upper) = place.store.commit_freeze(frozen).unwrap();
    assert_eq!(stack.top().unwrap().usage().unwrap(), usage);
    assert_eq!(stack.usage_beyond(&place.stack).unwrap(), usage);
    // Merged layers share their files with those they were made of.
    fs::write(upper.changes().join("more"), "").unwrap();
    let frozen = place.store.freeze(&upper, &stack).unwrap();
    let (stack, _upper) = place.store.commit_freeze(frozen).unwrap();
    let merged = place.store.squash(&stack, 0..2).unwrap();
    let both = LayerStack::new([merged].into_iter().chain(stack.layers().iter().cloned()));
    let shared = both.usage_beyond(&place.stack).unwrap();
    let apart = stack.usage_beyond(&place.stack).unwrap();
    assert!(shared.bytes < apart.bytes + (64 << 10), "{shared:?} {apart:?}");
}
