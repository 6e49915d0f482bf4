//! `tar:` and `dir:`, with archives made by the system's tools.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;

use crate::support::{BASE, FileView, Place, run, view};

/// A tree with one of everything that an image may hold.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::create_dir_all(root.join("home/user")).unwrap();
    fs::write(root.join("usr/bin/tool"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("usr/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/alias")).unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    symlink("/nowhere/at/all", root.join("dangling")).unwrap();
    fs::write(root.join("home/user/notes"), vec![7; 100_000]).unwrap();
    chown(root.join("home/user/notes"), Some(1000), Some(1001)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 5 << 20).unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(root.join("usr/bin/alias"), name, value, XattrFlags::empty()).unwrap();
    };
    set("user.note", b"line\nbreak\0zero");
    let mut capability = vec![1, 0, 0, 2];
    capability.extend([0; 16]);
    capability[5] = 4;
    set("security.capability", &capability);
    fs::set_permissions(root.join("home"), fs::Permissions::from_mode(0o1777)).unwrap();
}

/// What the tree looks like when unpacked: owners shifted, capabilities bound to the shifted root.
fn shifted(mut file: FileView) -> FileView {
    file.user += BASE;
    file.group += BASE;
    for (name, value) in &mut file.xattrs {
        if name == "security.capability" {
            value[3] = 3;
            value.extend(BASE.to_le_bytes());
        }
    }
    file
}

pub fn assert_same_tree(original: &Path, unpacked: &Path) {
    let wanted: Vec<_> = view(original).into_iter().map(|(path, file)| (path, shifted(file))).collect();
    let found: Vec<_> = view(unpacked).into_iter().collect();
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(wanted.0, found.0);
        assert!(wanted.1.content == found.1.content, "content of {:?}", wanted.0);
        let quiet = |file: &FileView| FileView { content: Vec::new(), ..file.clone() };
        assert_eq!(quiet(&wanted.1), quiet(&found.1), "{:?}", wanted.0);
    }
    assert_eq!(wanted.len(), found.len());
}

pub fn pack(tree: &Path, file: &Path, options: &[&str]) {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xattrs", "--xattrs-include=*", "--numeric-owner"]).args(options);
    run(tar.arg("--file").arg(file).arg("--directory").arg(tree).arg("."));
}

#[test]
fn archives_of_every_format_and_compression_unpack_to_the_same_tree() {
    let place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree);
    let variants: [&[&str]; 7] = [
        &["--format=posix"],
        &["--format=posix", "--gzip"],
        &["--format=posix", "--zstd"],
        &["--format=posix", "--xz"],
        &["--format=posix", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
    ];
    for options in variants {
        let file = place.path("archive");
        pack(&tree, &file, options);
        let image = place.fetch(&format!("tar:{}", file.display())).unwrap();
        assert_eq!(image.layers.len(), 1, "{options:?}");
        assert_same_tree(&tree, &image.layers[0].path);
        fs::remove_dir_all(place.layers_dir()).unwrap();
    }
}

#[test]
fn a_directory_is_copied_and_gives_the_same_layer_again() {
    let place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree);
    let source = format!("dir:{}", tree.display());
    let image = place.fetch(&source).unwrap();
    assert_same_tree(&tree, &image.layers[0].path);
    let again = place.fetch(&source).unwrap();
    assert_eq!(image.layers, again.layers);
    assert_eq!(place.names_in_layers_dir(), [image.layers[0].diff_id.hex()]);
    fs::write(tree.join("more"), b"x").unwrap();
    let changed = place.fetch(&source).unwrap();
    assert_ne!(image.layers[0].diff_id, changed.layers[0].diff_id);
}

#[test]
fn missing_and_wrong_files_are_named() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("f"), b"").unwrap();
    for (source, part) in [
        (format!("tar:{}", place.path("absent").display()), "absent"),
        (format!("tar:{}", place.path("d").display()), "is a directory"),
        (format!("dir:{}", place.path("f").display()), "no directory"),
        (format!("tar:{}", place.path("f").display()), "cannot unpack"),
    ] {
        let error = place.fetch(&source).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&source) && text.contains(part), "{text}");
    }
    assert!(place.names_in_layers_dir().is_empty());
}
