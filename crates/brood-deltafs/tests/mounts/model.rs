//! Random changes to a mounted tree, and a full account of what it shows.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

/// One change. Paths are drawn from a small set, so that they meet.
#[derive(Clone, Debug)]
pub enum Operation {
    Write(String, u8, u16),
    Append(String, u8),
    MakeDirectory(String),
    Remove(String),
    RemoveTree(String),
    Rename(String, String),
    Link(String, String),
    Symlink(String, String),
    Fifo(String),
    Mode(String, u16),
    Owner(String, u8),
    Attribute(String, u8),
    /// Removed and made again at once: an opaque directory.
    Replace(String),
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "c", "data", "deep"], 1..4).prop_map(|names| names.join("/"))
}

pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (path(), any::<u8>(), 0..9000_u16).prop_map(|(path, byte, length)| Operation::Write(path, byte, length)),
        2 => (path(), any::<u8>()).prop_map(|(path, byte)| Operation::Append(path, byte)),
        4 => path().prop_map(Operation::MakeDirectory),
        2 => path().prop_map(Operation::Remove),
        2 => path().prop_map(Operation::RemoveTree),
        6 => (path(), path()).prop_map(|(from, to)| Operation::Rename(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Operation::Link(from, to)),
        1 => (path(), path()).prop_map(|(to, path)| Operation::Symlink(to, path)),
        1 => path().prop_map(Operation::Fifo),
        1 => (path(), 0..0o7777_u16).prop_map(|(path, mode)| Operation::Mode(path, mode)),
        1 => (path(), any::<u8>()).prop_map(|(path, owner)| Operation::Owner(path, owner)),
        1 => (path(), any::<u8>()).prop_map(|(path, value)| Operation::Attribute(path, value)),
        3 => path().prop_map(Operation::Replace),
    ]
}

/// Does it below `root`. What is impossible where it meets is left out.
pub fn apply(root: &Path, operation: &Operation) {
    let at = |path: &String| root.join(path);
    let is_plain = |path: &String| fs::symlink_metadata(at(path)).is_ok_and(|status| status.is_file());
    match operation {
        Operation::Write(path, byte, length) => {
            if is_plain(path) || !at(path).exists() {
                drop(fs::write(at(path), vec![*byte; usize::from(*length)]));
            }
        }
        Operation::Append(path, byte) if is_plain(path) => {
            let mut content = fs::read(at(path)).unwrap();
            content.push(*byte);
            fs::write(at(path), content).unwrap();
        }
        Operation::Append(..) => {}
        Operation::MakeDirectory(path) => drop(fs::create_dir(at(path))),
        Operation::Remove(path) => drop(fs::remove_file(at(path)).or_else(|_| fs::remove_dir(at(path)))),
        Operation::RemoveTree(path) => drop(fs::remove_dir_all(at(path))),
        Operation::Rename(from, to) => drop(fs::rename(at(from), at(to))),
        Operation::Link(from, to) => drop(fs::hard_link(at(from), at(to))),
        Operation::Symlink(to, path) => drop(symlink(to, at(path))),
        Operation::Fifo(path) => drop(mknodat(CWD, at(path), FileType::Fifo, Mode::RUSR, 0)),
        Operation::Mode(path, mode) => {
            if fs::symlink_metadata(at(path)).is_ok_and(|status| !status.is_symlink()) {
                fs::set_permissions(at(path), fs::Permissions::from_mode(u32::from(*mode))).unwrap();
            }
        }
        Operation::Owner(path, owner) => drop(std::os::unix::fs::lchown(at(path), Some(u32::from(*owner)), None)),
        Operation::Attribute(path, value) => {
            rustix::fs::lsetxattr(at(path), "user.test", &[*value], XattrFlags::empty()).unwrap_or_default();
        }
        Operation::Replace(path) => {
            if at(path).is_dir() && fs::remove_dir_all(at(path)).is_ok() {
                fs::create_dir(at(path)).unwrap();
                fs::write(at(path).join("new"), path).unwrap();
            }
        }
    }
}

/// All that a mount shows of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: FileType,
    pub mode: u32,
    pub owner: (u32, u32),
    /// Content of a file, target of a link.
    pub content: Vec<u8>,
    pub attribute: Vec<u8>,
    pub modified: (i64, i64),
    /// Inode number of what is no directory.
    pub inode: u64,
    /// First path with the same inode.
    pub first_link: PathBuf,
}

/// Everything below `root`, the root included as "".
pub fn account(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut links = HashMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let host = root.join(&path);
        let itself = if path.as_os_str().is_empty() { host.join(".") } else { host.clone() };
        let status = fs::symlink_metadata(itself).unwrap();
        let kind = FileType::from_raw_mode(status.mode());
        let content = match kind {
            FileType::RegularFile => fs::read(&host).unwrap(),
            FileType::Symlink => fs::read_link(&host).unwrap().as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        if kind == FileType::Directory {
            let mut names: Vec<_> = fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            pending.extend(names.into_iter().rev().map(|name| path.join(name)));
        }
        let mut attribute = vec![0; 16];
        let length = rustix::fs::lgetxattr(&host, "user.test", &mut attribute[..]).unwrap_or(0);
        attribute.truncate(length);
        let first_link = links.entry(status.ino()).or_insert_with(|| path.clone()).clone();
        let entry = Seen {
            kind,
            mode: status.mode() & 0o7777,
            owner: (status.uid(), status.gid()),
            content,
            attribute,
            modified: (status.mtime(), status.mtime_nsec()),
            inode: if kind == FileType::Directory { 0 } else { status.ino() },
            first_link,
        };
        assert!(!status.file_type().is_char_device() || path.starts_with("dev"), "a whiteout shows: {path:?}");
        seen.insert(path, entry);
    }
    seen
}
