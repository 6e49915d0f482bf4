//! Reading trees in a fixed order, without following anything.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{BeneathError, status_at};

/// What a directory entry is.
pub type EntryKind = FileType;

/// One entry of a directory, as the directory itself describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Name, without any slash.
    pub name: OsString,
    /// Kind; `FileType::Unknown` where the file system does not say.
    pub kind: EntryKind,
}

/// All entries of `directory` but `.` and `..`, in the order of their names'
/// bytes. The position of `directory` itself is not touched.
///
/// # Errors
/// As `getdents64(2)`.
pub fn list_directory(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    // Opened again: it may be a bare O_PATH, and has a position of its own.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::openat(directory, c".", flags, Mode::empty())?;
    for entry in Dir::new(own)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        entries.push(DirectoryEntry { name: OsString::from_vec(name.to_vec()), kind: entry.file_type() });
    }
    entries.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    Ok(entries)
}

/// One object found by a [`Walk`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path relative to where the walk began; never absolute, no `..`.
    pub path: PathBuf,
    /// Its status; of the link itself when it is one.
    pub status: Stat,
}

impl Entry {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        FileType::from_raw_mode(self.status.st_mode)
    }
}

/// Iterator over a tree, parents before children.
///
/// One descriptor is open at a time, whatever the depth; each directory is
/// found again from the root, so a path longer than PATH_MAX is an error
/// (ENAMETOOLONG) that names it. What disappears during the walk is left out.
#[derive(Debug)]
pub struct Walk {
    root: OwnedFd,
    /// Directories still to be read and entries still to be given, last first.
    pending: Vec<Pending>,
}

#[derive(Debug)]
enum Pending {
    /// Directory whose entries have not been read yet.
    Directory(PathBuf),
    Entry(Entry),
}

impl Walk {
    /// A walk over everything below `root`.
    #[must_use]
    pub fn new(root: OwnedFd) -> Self {
        Self { root, pending: vec![Pending::Directory(PathBuf::new())] }
    }

    /// Leaves out what is below the directory that was given last.
    pub fn skip_directory(&mut self) {
        if matches!(self.pending.last(), Some(Pending::Directory(_))) {
            self.pending.pop();
        }
    }

    fn read(&mut self, path: &Path) -> Result<(), BeneathError> {
        let failed = |errno| BeneathError::new("read directory", path, errno);
        let directory = match open_below(self.root.as_fd(), path) {
            Ok(directory) => directory,
            // Removed or replaced meanwhile, or a mount point.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) if !path.as_os_str().is_empty() => {
                return Ok(());
            }
            Err(errno) => return Err(failed(errno)),
        };
        let names = list_directory(directory.as_fd()).map_err(failed)?;
        for entry in names.into_iter().rev() {
            let child = path.join(&entry.name);
            match status_at(directory.as_fd(), OsStr::new(&entry.name)) {
                Ok(status) => self.pending.push(Pending::Entry(Entry { path: child, status })),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(BeneathError::new("status of", &child, errno)),
            }
        }
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<Entry, BeneathError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop()? {
                Pending::Entry(entry) => {
                    if entry.kind() == FileType::Directory {
                        self.pending.push(Pending::Directory(entry.path.clone()));
                    }
                    return Some(Ok(entry));
                }
                Pending::Directory(path) => {
                    if let Err(error) = self.read(&path) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

/// Opens a directory below `root` by a path without links, on one mount.
fn open_below(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(root, path, flags, Mode::empty(), how)
}
