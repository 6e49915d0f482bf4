use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use brood_deltafs::{FileTree, LayerStack, StoreError, export_layer};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

use crate::fixture::{ID_BASE, Mounted, Place, TemporaryDirectory};
use crate::model::account;

fn empty() -> FileTree {
    FileTree::of(&LayerStack::new([])).unwrap()
}

fn entries(layer: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(layer);
    let name = |entry: tar::Entry<'_, &[u8]>| entry.path().unwrap().to_str().unwrap().to_owned();
    archive.entries().unwrap().map(|entry| name(entry.unwrap())).collect()
}

/// The image of `place` with changes of all kinds frozen above it, without
/// the system layers.
fn changed(place: &Place) -> (LayerStack, LayerStack) {
    let image = LayerStack::new([place.stack.layers()[1].clone()]);
    let upper = place.store.new_upper(&image).unwrap();
    let mounted = Mounted::new(&image, &upper);
    let at = |path: &str| mounted.path.join(path);
    fs::rename(at("data/deep"), at("data/moved")).unwrap();
    fs::remove_dir_all(at("etc")).unwrap();
    fs::create_dir(at("etc")).unwrap();
    fs::write(at("etc/new"), vec![7; 100_000]).unwrap();
    fs::hard_link(at("etc/new"), at("etc/same")).unwrap();
    fs::create_dir(at(&"long".repeat(50))).unwrap();
    fs::write(at(&format!("{}/{}", "long".repeat(50), "name".repeat(50))), "").unwrap();
    symlink("../etc/new", at("data/symlink")).unwrap();
    mknodat(CWD, at("data/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    std::os::unix::fs::chown(at("etc/new"), Some(ID_BASE + 1000), Some(ID_BASE + 50)).unwrap();
    rustix::fs::setxattr(at("etc/new"), "user.test", b"a\0b", XattrFlags::empty()).unwrap();
    fs::remove_file(at("data/hard")).unwrap();
    drop(mounted);
    let frozen = place.store.freeze(&upper, &image).unwrap();
    let (stack, _upper) = place.store.commit_freeze(frozen).unwrap();
    (image, stack)
}

#[test]
fn a_whole_stack_comes_out_of_tar_as_its_mount_shows_it() {
    let place = Place::new();
    let (_image, stack) = changed(&place);
    let layer = export_layer(empty(), FileTree::of(&stack).unwrap(), ID_BASE, Vec::new()).unwrap();
    let target = TemporaryDirectory::new();
    let archive = target.path().join("layer.tar");
    let root = target.path().join("root");
    fs::write(&archive, &layer).unwrap();
    fs::create_dir(&root).unwrap();
    let status = Command::new("tar")
        .args(["--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(&root)
        .status()
        .unwrap();
    assert!(status.success());
    let upper = place.store.new_upper(&stack).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    let new = fs::metadata(root.join("etc/new")).unwrap();
    assert_eq!((new.uid(), new.gid(), new.nlink()), (1000, 50, 2));
    let comparable = |root: &Path, shift: u32| {
        let mut seen = account(root);
        for entry in seen.values_mut() {
            entry.inode = 0;
            entry.modified.1 = 0;
            // Files of the image belong to the tests' root: to nobody outside.
            let inside = |id: u32| if id >= shift { id - shift } else { 65_534 };
            entry.owner = (inside(entry.owner.0), inside(entry.owner.1));
        }
        seen.remove(Path::new(""));
        seen
    };
    assert_eq!(comparable(&root, 0), comparable(&mounted.path, ID_BASE));
}

#[test]
fn a_difference_has_whiteouts_only_where_something_is_gone() {
    let place = Place::new();
    let (image, stack) = changed(&place);
    let trees = || (FileTree::of(&image).unwrap(), FileTree::of(&stack).unwrap());
    let (old, new) = trees();
    let layer = export_layer(old, new, ID_BASE, Vec::new()).unwrap();
    let long = "long".repeat(50);
    let expected = [
        "data/.wh.deep",
        "data/fifo",
        "data/.wh.hard",
        "data/moved",
        "data/moved/er",
        "data/moved/er/file",
        "data/symlink",
        "etc/.wh.hostname",
        "etc/new",
        "etc/same",
    ];
    let mut found = entries(&layer);
    let long_entries: Vec<_> = found.extract_if(.., |path| path.starts_with("long")).collect();
    assert_eq!(long_entries, [long.clone(), format!("{long}/{}", "name".repeat(50))]);
    assert_eq!(found, expected);
    let (old, new) = trees();
    let back = export_layer(new, old, ID_BASE, Vec::new()).unwrap();
    assert!(entries(&back).contains(&format!(".wh.{long}")));
}

#[test]
fn names_that_mean_something_to_the_format_are_refused() {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    fs::write(upper.changes().join(".wh.file"), "").unwrap();
    let tree = FileTree::live(&place.stack, &upper).unwrap();
    let refused = export_layer(empty(), tree, ID_BASE, Vec::new());
    assert!(matches!(refused, Err(StoreError::NotExportable { .. })));
}
