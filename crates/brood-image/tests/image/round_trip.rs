//! Random trees packed by the system's tar and unpacked, and random damage.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::local::{assert_same_tree, pack};
use crate::support::{Place, chain};

/// Trees that are packed and unpacked; each takes a run of tar and a hundred system calls.
const TREES: u32 = 60;
/// Damaged archives that are unpacked.
const DAMAGED: u32 = 400;

#[derive(Debug, Clone)]
enum Node {
    File { content: Vec<u8>, holes: bool },
    Directory,
    Symlink(String),
    HardLink(usize),
    Fifo,
}

#[derive(Debug, Clone)]
struct Planned {
    path: PathBuf,
    node: Node,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    xattrs: BTreeMap<String, Vec<u8>>,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    // Bytes that are no text and names longer than the header's field, but not the reserved ones.
    let byte = any::<u8>().prop_map(|byte| if matches!(byte, 0 | b'/') { b'_' } else { byte });
    prop_oneof![
        "[a-c]{1,2}".prop_map(String::into_bytes),
        proptest::collection::vec(byte, 1..20),
        "[x-z]{90,200}".prop_map(String::into_bytes),
    ]
    .prop_map(|mut name| {
        if name.starts_with(b".") {
            name[0] = b'_';
        }
        name
    })
}

fn node() -> impl Strategy<Value = Node> {
    let content = proptest::collection::vec(any::<u8>(), 0..10_000);
    prop_oneof![
        4 => (content, any::<bool>()).prop_map(|(content, holes)| Node::File { content, holes }),
        4 => Just(Node::Directory),
        2 => "[a-z./]{1,150}".prop_map(Node::Symlink),
        2 => any::<usize>().prop_map(Node::HardLink),
        1 => Just(Node::Fifo),
    ]
}

fn planned() -> impl Strategy<Value = Planned> {
    let id = prop_oneof![Just(0_u32), 1..2000_u32, Just(65535)];
    let xattrs =
        proptest::collection::btree_map("user\\.[a-z]{1,20}", proptest::collection::vec(any::<u8>(), 0..200), 0..3);
    let modified = (-1_000_000_000..4_000_000_000_i64, 0..1_000_000_000_i64);
    let path = proptest::collection::vec(name(), 1..5);
    (path, node(), 0..0o10000_u32, (id.clone(), id), modified, xattrs).prop_map(
        |(path, node, mode, owner, modified, xattrs)| {
            let path = path.iter().map(|name| Path::new(std::ffi::OsStr::from_bytes(name))).collect();
            Planned { path, node, mode, owner, modified, xattrs }
        },
    )
}

/// Makes what can be made: plans that collide with earlier ones are left out.
fn make(root: &Path, plans: &[Planned]) {
    fs::create_dir(root).unwrap();
    let mut made: Vec<(PathBuf, &Planned)> = Vec::new();
    for plan in plans {
        let path = root.join(&plan.path);
        // Never through a link that an earlier plan made.
        let parents_plain = plan
            .path
            .ancestors()
            .skip(1)
            .all(|parent| root.join(parent).symlink_metadata().map_or(true, |metadata| metadata.is_dir()));
        if !parents_plain || fs::create_dir_all(path.parent().unwrap()).is_err() || path.symlink_metadata().is_ok() {
            continue;
        }
        match &plan.node {
            Node::Directory => fs::create_dir(&path).unwrap(),
            Node::Symlink(target) => symlink(target, &path).unwrap(),
            Node::Fifo => {
                rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            }
            Node::HardLink(which) => {
                let files: Vec<_> = made.iter().filter(|(_, plan)| matches!(plan.node, Node::File { .. })).collect();
                if files.is_empty() {
                    continue;
                }
                fs::hard_link(&files[which % files.len()].0, &path).unwrap();
                continue;
            }
            Node::File { content, holes } => {
                let file = fs::File::create(&path).unwrap();
                let offset = if *holes { 100_000 } else { 0 };
                std::os::unix::fs::FileExt::write_all_at(&file, content, offset).unwrap();
                if *holes {
                    file.set_len(300_000).unwrap();
                }
            }
        }
        made.push((path, plan));
    }
    // Times last and deepest first: making a file changes its directory's.
    made.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
    for (path, plan) in &made {
        adorn(path, plan);
    }
}

fn adorn(path: &Path, plan: &Planned) {
    if path.is_symlink() {
        lchown(path, Some(plan.owner.0), Some(plan.owner.1)).unwrap();
    } else {
        chown(path, Some(plan.owner.0), Some(plan.owner.1)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(plan.mode)).unwrap();
    }
    if matches!(plan.node, Node::File { .. } | Node::Directory) {
        for (name, value) in &plan.xattrs {
            rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
        }
    }
    let time = Timespec { tv_sec: plan.modified.0, tv_nsec: plan.modified.1 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() })
}

#[test]
fn what_tar_packs_is_unpacked_equal() {
    let strategy = (proptest::collection::vec(planned(), 1..25), any::<bool>());
    let checked = runner(TREES).run(&strategy, |(plans, sparse)| {
        let place = Place::new();
        let tree = place.path("tree");
        make(&tree, &plans);
        let archive = place.path("archive");
        pack(&tree, &archive, if sparse { &["--format=posix", "--sparse"] } else { &["--format=posix"] });
        let image = place.fetch(&format!("tar:{}", archive.display())).unwrap();
        assert_same_tree(&tree, &image.layers[0].path);
        // The same as a directory, by our own packer.
        let copied = place.fetch(&format!("dir:{}", tree.display())).unwrap();
        assert_same_tree(&tree, &copied.layers[0].path);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_old_gnu_format_keeps_what_it_can() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("n".repeat(200)), "long name").unwrap();
    symlink("t".repeat(300), tree.join("long target")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    for piece in 0..40 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"piece", piece * 100_000).unwrap();
    }
    sparse.set_len(5_000_000).unwrap();
    for path in fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().path()).chain([tree.clone()]) {
        let time = Timespec { tv_sec: -5, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let archive = place.path("archive");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sparse", "--file"]).arg(&archive);
    crate::support::run(tar.arg("--directory").arg(&tree).arg("."));
    let image = place.fetch(&format!("tar:{}", archive.display())).unwrap();
    assert_same_tree(&tree, &image.layers[0].path);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&image.layers[0].path.join("sparse").metadata().unwrap());
    assert!(blocks * 512 < 1_000_000, "the holes were filled: {blocks} blocks");
}

#[test]
fn damaged_archives_never_reach_outside_nor_leave_anything() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("dir/inner")).unwrap();
    fs::write(tree.join("dir/inner/file"), "content").unwrap();
    symlink("../outside", tree.join("link")).unwrap();
    fs::hard_link(tree.join("dir/inner/file"), tree.join("hard")).unwrap();
    rustix::fs::setxattr(tree.join("dir"), "user.x", b"value", XattrFlags::empty()).unwrap();
    let archive = place.path("archive");
    pack(&tree, &archive, &["--format=posix"]);
    let good = fs::read(&archive).unwrap();
    fs::create_dir(place.path("outside")).unwrap();

    let damage = proptest::collection::vec((0..good.len(), any::<u8>()), 1..6);
    let checked = runner(DAMAGED).run(&(damage, any::<bool>()), |(changes, mend)| {
        let mut bytes = good.clone();
        for (position, value) in &changes {
            bytes[*position] = *value;
        }
        if mend {
            // With right checksums the damage gets further.
            for block in bytes.chunks_mut(512) {
                let header = tar::Header::from_byte_slice(block);
                if header.as_ustar().is_some() {
                    let mut header = header.clone();
                    header.set_cksum();
                    block.copy_from_slice(header.as_bytes());
                }
            }
        }
        fs::write(&archive, &bytes).unwrap();
        let mut options = place.options();
        options.unpack.durable = false;
        let source = format!("tar:{}", archive.display()).parse().unwrap();
        let left = match brood_image::fetch(&source, &options, &brood_image::NoProgress) {
            Ok(image) => vec![image.layers[0].diff_id.hex()],
            Err(error) => {
                assert!(!chain(&error).is_empty());
                Vec::new()
            }
        };
        assert_eq!(place.names_in_layers_dir(), left);
        fs::remove_dir_all(place.layers_dir()).unwrap();
        assert_eq!(fs::read_dir(place.path("outside")).unwrap().count(), 0);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}
