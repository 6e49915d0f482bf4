//! Access to the directory of a layer while it is being filled, such that no path leads out of it.
//!
//! The common case is one `openat2` call that allows no symbolic link at all. Where a directory on the way is a link, the
//! way is walked here, component by component, so that a link that climbs above the root is refused instead of being
//! clamped silently; an absolute link counts from the root of the layer, as it will inside the sandbox.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::error::{IoContext as _, Refusal, UnpackError};
use super::path::{EntryPath, printable};
use super::whiteout;
#[cfg(doc)]
use crate::options::Limits;

/// Symbolic links followed on one way: the kernel's own limit.
const LINKS_MAX: usize = 40;
/// Mode of directories that the archive uses without describing them.
const IMPLICIT_MODE: Mode = Mode::from_raw_mode(0o755);
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory of the layer (by path only: it cannot be read or changed through this descriptor itself).
#[derive(Debug, Clone)]
pub(super) struct Directory(Arc<OwnedFd>);

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What stands at a path of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Nothing,
    Directory,
    Whiteout,
    Other,
}

/// Why a way is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To find what is there.
    Look,
    /// To put a file there: missing directories are made, hidden ones appear again.
    Fill,
    /// To put a mark there: missing directories are made.
    Mark,
}

/// The layer being filled.
pub(super) struct Tree {
    root: Directory,
    root_id: u32,
    /// Directories below each other, links followed.
    depth_max: usize,
    /// The parent used last: archives list a directory's files together. Forgotten whenever something is removed.
    last_parent: Option<(Vec<u8>, Directory)>,
}

impl Tree {
    /// `root_id` is the host id of root inside: the owner of directories that the archive does not describe.
    pub(super) fn new(root: OwnedFd, root_id: u32, depth_max: usize) -> Self {
        Self { root: Directory(Arc::new(root)), root_id, depth_max, last_parent: None }
    }

    /// Gives the root the owner and mode that it keeps if the archive says nothing about it.
    pub(super) fn prepare_root(&self) -> Result<(), UnpackError> {
        self.own_implicit(&self.open_root()?, &EntryPath::default())
    }

    pub(super) fn open_root(&self) -> Result<OwnedFd, UnpackError> {
        reopen_directory(&self.root).at("open", &EntryPath::default())
    }

    /// The parent directory of `path`, with all that is missing on the way made.
    pub(super) fn parent(&mut self, path: &EntryPath) -> Result<Directory, UnpackError> {
        let wanted = path.parent_bytes();
        if wanted.is_empty() {
            return Ok(self.root.clone());
        }
        if let Some((known, directory)) = &self.last_parent
            && known == wanted
        {
            return Ok(directory.clone());
        }
        let directory = match self.open_plain(wanted) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {
                let count = path.depth() - 1;
                self.walk(path, count, Purpose::Fill)?.ok_or_else(|| path.refuse(Refusal::NoName))?
            }
            Err(errno) => return Err(errno).at("open the parent of", path),
        };
        self.last_parent = Some((wanted.to_vec(), directory.clone()));
        Ok(directory)
    }

    /// The parent directory of the mark at `path`, made if missing. `None` if this layer has no directory there but a
    /// file, a link or a whiteout, which hides all that the mark could: tools that turn a directory into a file or link
    /// write marks for what was in it nevertheless. Links are not followed, because marks are about paths of lower layers.
    pub(super) fn parent_of_mark(&self, path: &EntryPath) -> Result<Option<Directory>, UnpackError> {
        let mut here = self.root.clone();
        for component in path.components().take(path.depth() - 1) {
            match self.step(&here, component, path, Purpose::Mark) {
                Ok(Step::Into(directory)) => here = directory,
                Ok(Step::Link(_) | Step::Missing) => return Ok(None),
                Err(UnpackError::Refused { reason: Refusal::ParentNotDirectory { .. }, .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(here))
    }

    /// The parent directory of `path` if it exists; nothing is made.
    pub(super) fn existing_parent(&self, path: &EntryPath) -> Result<Option<Directory>, UnpackError> {
        match self.open_plain(path.parent_bytes()) {
            Ok(directory) => Ok(Some(directory)),
            Err(_) => self.walk(path, path.depth() - 1, Purpose::Look),
        }
    }

    /// The directory at `path` itself, open for changes, unless something else stands there now.
    pub(super) fn existing_directory(&self, path: &EntryPath) -> Result<Option<OwnedFd>, UnpackError> {
        let Some(name) = path.name() else {
            return self.open_root().map(Some);
        };
        let Some(parent) = self.existing_parent(path)? else {
            return Ok(None);
        };
        match open_directory(&parent, name) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno).at("open the directory", path),
        }
    }

    /// What stands at `path`, whose open parent is `parent`.
    pub(super) fn existing(&self, parent: &Directory, path: &EntryPath) -> Result<Existing, UnpackError> {
        let name = path.name().unwrap_or_default();
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(Existing::Nothing),
            Err(errno) => Err(errno).at("look at", path),
            Ok(stat) => Ok(match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Existing::Directory,
                // The only devices that a layer ever holds.
                FileType::CharacterDevice => Existing::Whiteout,
                _ => Existing::Other,
            }),
        }
    }

    /// Removes whatever stands at `path`: a later entry of an archive replaces an earlier one.
    pub(super) fn remove_existing(&mut self, parent: &Directory, path: &EntryPath) -> Result<(), UnpackError> {
        self.last_parent = None;
        let name = path.name().unwrap_or_default();
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno).at("replace", path),
        }
        let directory = open_directory(parent, name).at("replace the directory", path)?;
        remove_contents(&directory).at("empty the directory", path)?;
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).at("replace the directory", path)
    }

    fn open_plain(&self, path: &[u8]) -> Result<Directory, Errno> {
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve).map(|fd| Directory(Arc::new(fd)))
    }

    /// Walks the first `count` components of `path`, following links as they lead beneath the root. `None` if something
    /// is missing and only looked for.
    fn walk(&self, path: &EntryPath, count: usize, purpose: Purpose) -> Result<Option<Directory>, UnpackError> {
        let mut ahead: VecDeque<Vec<u8>> = path.components().take(count).map(<[u8]>::to_vec).collect();
        let mut way = vec![self.root.clone()];
        let mut links = 0;
        let mut last_link = (Vec::new(), Vec::new());
        while let Some(component) = ahead.pop_front() {
            if component == b".." {
                way.pop();
            }
            let here = way.last().cloned().filter(|_| links <= LINKS_MAX);
            let Some(here) = here else {
                let (link, target) = (printable(&last_link.0), printable(&last_link.1));
                return Err(path.refuse(Refusal::EscapingLink { link, target }));
            };
            if component == b".." {
                continue;
            }
            if way.len() > self.depth_max {
                return Err(path.refuse(Refusal::TooDeep { limit: self.depth_max }));
            }
            match self.step(&here, &component, path, purpose)? {
                Step::Missing => return Ok(None),
                Step::Into(directory) => way.push(directory),
                Step::Link(target) => {
                    links += 1;
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    let parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
                    for part in parts.rev() {
                        ahead.push_front(part.to_vec());
                    }
                    last_link = (component, target);
                }
            }
        }
        Ok(way.pop())
    }

    fn step(
        &self,
        here: &Directory,
        component: &[u8],
        path: &EntryPath,
        purpose: Purpose,
    ) -> Result<Step, UnpackError> {
        let stat = match rustix::fs::statat(here, component, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) if purpose != Purpose::Look => {
                return self.make_implicit(here, component, path, false).map(Step::Into);
            }
            Err(Errno::NOENT) => return Ok(Step::Missing),
            Err(errno) => return Err(errno).at("look at the parent of", path),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = rustix::fs::openat(here, component, PATH_ONLY, Mode::empty());
                Ok(Step::Into(Directory(Arc::new(opened.at("open the parent of", path)?))))
            }
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(here, component, Vec::new()).at("read a link on the way to", path)?;
                Ok(Step::Link(target.into_bytes()))
            }
            FileType::CharacterDevice if purpose == Purpose::Fill => {
                rustix::fs::unlinkat(here, component, AtFlags::empty()).at("replace the parent of", path)?;
                self.make_implicit(here, component, path, true).map(Step::Into)
            }
            _ => Err(path.refuse(Refusal::ParentNotDirectory { component: printable(component) })),
        }
    }

    fn make_implicit(
        &self,
        here: &Directory,
        component: &[u8],
        path: &EntryPath,
        opaque: bool,
    ) -> Result<Directory, UnpackError> {
        rustix::fs::mkdirat(here, component, Mode::RWXU).at("make the parent of", path)?;
        let directory = open_directory(here, component).at("open the parent of", path)?;
        self.own_implicit(&directory, path)?;
        if opaque {
            whiteout::set_opaque(&directory, path)?;
        }
        let by_path = rustix::fs::openat(here, component, PATH_ONLY, Mode::empty());
        Ok(Directory(Arc::new(by_path.at("open the parent of", path)?)))
    }

    fn own_implicit(&self, directory: &OwnedFd, path: &EntryPath) -> Result<(), UnpackError> {
        let (user, group) = (Uid::from_raw(self.root_id), Gid::from_raw(self.root_id));
        rustix::fs::fchown(directory, Some(user), Some(group)).at("set the owner of", path)?;
        rustix::fs::fchmod(directory, IMPLICIT_MODE).at("set the mode of", path)
    }
}

enum Step {
    Missing,
    Into(Directory),
    Link(Vec<u8>),
}

/// Creates a file that must not exist, readable by root alone until its attributes are set.
pub(super) fn create_file(parent: &Directory, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Opens the directory `name`, which must not be a link, for changing its attributes.
pub(super) fn open_directory(parent: &Directory, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens the same directory for changing its attributes.
pub(super) fn reopen_directory(directory: &Directory) -> rustix::io::Result<OwnedFd> {
    open_directory(directory, b".")
}

/// The inode number of a file that may have further names: regular files, symbolic links and fifos.
pub(super) fn linkable_inode(parent: &Directory, name: &[u8]) -> Option<u64> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Symlink | FileType::Fifo => Some(stat.st_ino),
        _ => None,
    }
}

/// Empties a directory. The recursion is as deep as the layer, which [`Limits::depth_max`] bounds.
fn remove_contents(directory: &OwnedFd) -> rustix::io::Result<()> {
    for name in names(directory)? {
        match rustix::fs::unlinkat(directory, &*name, AtFlags::empty()) {
            Ok(()) => continue,
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        remove_contents(&rustix::fs::openat(directory, &*name, flags, Mode::empty())?)?;
        rustix::fs::unlinkat(directory, &*name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
