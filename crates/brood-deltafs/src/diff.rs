//! Which paths differ between two trees.
//!
//! Only what lies in layers that the two do not share is looked at, so the
//! cost depends on what changed, not on the size of the trees.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use brood_kernel::mount::descriptor_path;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::attributes;
use crate::error::{Named, Result};
use crate::tree::{Directory, FileTree, Found, Node, OpenDirectory};

/// Bytes of two files compared at a time.
const COMPARE_BYTES: usize = 64 << 10;

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is only in the new tree.
    Added,
    /// It is only in the old tree.
    Deleted,
    /// It is in both. Times alone are no difference.
    Modified {
        /// Kind, bytes, link target or device number differ.
        content: bool,
        /// Owner, mode or extended attributes differ.
        metadata: bool,
    },
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Path below the root; never absolute.
    pub path: PathBuf,
    /// How it differs.
    pub kind: ChangeKind,
    /// Whether it is a directory, in the new tree unless it was deleted.
    pub is_directory: bool,
}

/// Iterator over the paths that differ between two trees: parents before
/// children, siblings in the order of their names' bytes. Everything in a
/// directory that was added or deleted is given too.
#[derive(Debug)]
pub struct Diff {
    old: FileTree,
    new: FileTree,
    common_layers: usize,
    /// Last first.
    pending: Vec<Pending>,
}

#[derive(Debug)]
enum Pending {
    Change(Change),
    /// Directories of one path in either tree, still to be compared.
    Directories(PathBuf, Option<Directory>, Option<Directory>),
}

impl Diff {
    /// The difference from `old` to `new`.
    #[must_use]
    pub fn new(old: FileTree, new: FileTree) -> Self {
        let roots = Pending::Directories(PathBuf::new(), Some(old.root()), Some(new.root()));
        let common_layers = old.common_layers(&new);
        Self { old, new, common_layers, pending: vec![roots] }
    }

    pub(crate) fn new_tree(&self) -> &FileTree {
        &self.new
    }

    fn compare(&mut self, path: &Path, old: Option<&Directory>, new: Option<&Directory>) -> Result<()> {
        let shared = self.shared_parts(old, new);
        let old_open = old.map(|directory| OpenDirectory::new(&self.old, directory));
        let new_open = new.map(|directory| OpenDirectory::new(&self.new, directory));
        let mut names = BTreeSet::new();
        for (open, directory) in [(&old_open, old), (&new_open, new)] {
            if let (Some(open), Some(directory)) = (open, directory) {
                names.append(&mut open.names(0..directory.parts.len() - shared)?);
            }
        }
        let mut found = Vec::new();
        for name in names {
            let before = Side::read(old_open.as_ref(), &name)?;
            let after = Side::read(new_open.as_ref(), &name)?;
            compare_nodes(path.join(&name), before, after, &mut found)?;
        }
        self.pending.extend(found.into_iter().rev());
        Ok(())
    }

    /// How many parts at the end of the two lists are the same and mean the
    /// same, because everything below them is the same too.
    fn shared_parts(&self, old: Option<&Directory>, new: Option<&Directory>) -> usize {
        let (Some(old), Some(new)) = (old, new) else { return 0 };
        let from_bottom = |tree: &FileTree, layer: usize| tree.depth() - layer;
        let pairs = old.parts.iter().rev().zip(new.parts.iter().rev());
        let same = pairs.take_while(|(one, two)| {
            let height = from_bottom(&self.old, one.layer);
            height == from_bottom(&self.new, two.layer) && height <= self.common_layers && one.path == two.path
        });
        same.count()
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop()? {
                Pending::Change(change) => return Some(Ok(change)),
                Pending::Directories(path, old, new) => {
                    if let Err(error) = self.compare(&path, old.as_ref(), new.as_ref()) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

/// What one tree has under a name, and where.
enum Side<'d> {
    Nothing,
    File { directory: &'d OpenDirectory<'d>, name: OsString, found: Found },
    Directory { parent: &'d OpenDirectory<'d>, directory: Directory, status: Stat },
}

impl<'d> Side<'d> {
    fn read(directory: Option<&'d OpenDirectory<'d>>, name: &OsStr) -> Result<Self> {
        let Some(directory) = directory else { return Ok(Self::Nothing) };
        Ok(match directory.child(name)? {
            None | Some(Node::Whiteout(_)) => Self::Nothing,
            Some(Node::File(found)) => Self::File { directory, name: name.to_owned(), found },
            Some(Node::Directory(merged, status)) => Self::Directory { parent: directory, directory: merged, status },
        })
    }

    fn status(&self) -> Option<&Stat> {
        match self {
            Self::Nothing => None,
            Self::File { found, .. } => Some(&found.status),
            Self::Directory { status, .. } => Some(status),
        }
    }

    fn into_directory(self) -> Option<Directory> {
        match self {
            Self::Directory { directory, .. } => Some(directory),
            _ => None,
        }
    }

    /// A way to it for calls that do not follow the last component.
    fn reach(&self) -> Result<Option<Reached>> {
        match self {
            Self::Nothing => Ok(None),
            Self::File { directory, name, found } => {
                Ok(directory.path_of(found.part, name)?.map(|path| Reached { path, _held: None }))
            }
            Self::Directory { parent, directory, .. } => Ok(parent.open_top(directory)?.map(|open| Reached {
                // With the dot, or the link in /proc itself would be meant.
                path: descriptor_path(open.as_fd()).join("."),
                _held: Some(open),
            })),
        }
    }
}

/// A path, and what must stay open for it to be valid.
struct Reached {
    path: PathBuf,
    _held: Option<OwnedFd>,
}

fn compare_nodes(path: PathBuf, old: Side<'_>, new: Side<'_>, found: &mut Vec<Pending>) -> Result<()> {
    let is_directory = |side: &Side<'_>| matches!(side, Side::Directory { .. });
    let kind = match (old.status(), new.status()) {
        (None, None) => return Ok(()),
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(before), Some(after)) if (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino) => None,
        (Some(before), Some(after)) => {
            let content = content_differs(&old, before, &new, after)?;
            let metadata = metadata_differs(&old, before, &new, after)?;
            (content || metadata).then_some(ChangeKind::Modified { content, metadata })
        }
    };
    if let Some(kind) = kind {
        let last = if kind == ChangeKind::Deleted { &old } else { &new };
        found.push(Pending::Change(Change { path: path.clone(), kind, is_directory: is_directory(last) }));
    }
    let (old, new) = (old.into_directory(), new.into_directory());
    if old.is_some() || new.is_some() {
        found.push(Pending::Directories(path, old, new));
    }
    Ok(())
}

fn content_differs(old: &Side<'_>, before: &Stat, new: &Side<'_>, after: &Stat) -> Result<bool> {
    let kind = FileType::from_raw_mode(before.st_mode);
    if kind != FileType::from_raw_mode(after.st_mode) {
        return Ok(true);
    }
    match kind {
        FileType::Directory | FileType::Fifo | FileType::Socket => Ok(false),
        FileType::CharacterDevice | FileType::BlockDevice => Ok(before.st_rdev != after.st_rdev),
        _ if before.st_size != after.st_size => Ok(true),
        FileType::Symlink => {
            let (Some(old), Some(new)) = (old.reach()?, new.reach()?) else { return Ok(true) };
            let target = |reached: &Reached| std::fs::read_link(&reached.path).named("read link", &reached.path);
            Ok(target(&old)? != target(&new)?)
        }
        _ => {
            let (Some(mut old), Some(mut new)) = (open(old)?, open(new)?) else { return Ok(true) };
            bytes_differ(&mut old, &mut new).named("compare", Path::new("two versions of a file"))
        }
    }
}

fn metadata_differs(old: &Side<'_>, before: &Stat, new: &Side<'_>, after: &Stat) -> Result<bool> {
    const MODE_BITS: u32 = 0o7777;
    let simple = |status: &Stat| (status.st_uid, status.st_gid, status.st_mode & MODE_BITS);
    if simple(before) != simple(after) {
        return Ok(true);
    }
    let (Some(old), Some(new)) = (old.reach()?, new.reach()?) else { return Ok(true) };
    Ok(attributes::read(&old.path)? != attributes::read(&new.path)?)
}

fn open(side: &Side<'_>) -> Result<Option<File>> {
    let Side::File { directory, name, found } = side else { return Ok(None) };
    let Some(part) = directory.part(found.part)? else { return Ok(None) };
    // It may have become a fifo or a device in a living upper.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::openat(part.as_fd(), name.as_os_str(), flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno).named("open", Path::new(name)),
    }
}

fn bytes_differ(old: &mut File, new: &mut File) -> std::io::Result<bool> {
    let mut one = Vec::with_capacity(COMPARE_BYTES);
    let mut two = Vec::with_capacity(COMPARE_BYTES);
    loop {
        one.clear();
        two.clear();
        let read_bytes = old.take(COMPARE_BYTES as u64).read_to_end(&mut one)?;
        new.take(COMPARE_BYTES as u64).read_to_end(&mut two)?;
        if one != two {
            return Ok(true);
        }
        if read_bytes == 0 {
            return Ok(false);
        }
    }
}
