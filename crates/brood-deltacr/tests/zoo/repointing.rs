//! Files exchanged below a stopped tree.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use brood_deltacr::SandboxRoot;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::harness::{Sandbox, chain, program};

#[test]
fn files_directories_and_shared_mappings_follow_to_the_new_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = |name: &str, content: &str| {
        let inner = folder.path().join(name);
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("data"), content).unwrap();
        std::fs::set_permissions(inner.join("data"), PermissionsExt::from_mode(0o666)).unwrap();
        inner
    };
    let (current, next) = (data("current", "old!"), data("next", "new!"));
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let variable = format!("ZOO_FOLDER={}", current.display());
    let mut sandbox = Sandbox::start(&["/usr/bin/env", &variable, program("repointed").to_str().unwrap()]);
    let mut tree = sandbox.tree();
    let mut stopped = tree.stop().unwrap();
    let root = exchanged_root(&current, &next);
    let statistics = stopped.repoint_files(&root, &sandbox.pipes);
    let statistics = statistics.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(statistics.files >= 1 && statistics.mappings == 1, "{statistics:?}");
    let _standstill = stopped.resume();
    assert_eq!(sandbox.ask("v"), "ok");
}

/// A root directory in which the folder of the new files lies at the path of the old ones.
fn exchanged_root(current: &Path, next: &Path) -> SandboxRoot {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, "/", flags | OpenTreeFlags::AT_RECURSIVE).unwrap();
    let new = open_tree(CWD, next, flags).unwrap();
    let path = current.strip_prefix("/").unwrap();
    move_mount(&new, "", &tree, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
    let directory = rustix::fs::openat(&tree, ".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    SandboxRoot::at(directory)
}
