//! File operations that cannot leave a directory.
//!
//! Everything that the engine does inside the file tree of a sandbox goes
//! through a [`Root`]. Paths are resolved by `openat2(2)` with
//! `RESOLVE_IN_ROOT`: an absolute symbolic link means the root, `..` stops
//! there, and links of `/proc` that jump elsewhere are refused. The last
//! component of an operation that creates, renames or removes is never
//! followed.

mod remove;
mod walk;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Stat, mkdirat, openat2, readlinkat, renameat_with, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

pub use remove::{remove_contents, remove_tree_at};
pub use walk::{DirectoryEntry, Entry, EntryKind, Walk, list_directory};

/// Attempts at one resolution. The kernel answers EAGAIN when a rename or
/// mount anywhere on the host raced with a `..` of ours; ten in a row mean
/// that somebody makes them on purpose.
const RESOLVE_ATTEMPTS_MAX: usize = 128;

/// A file operation inside a root that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}", path.display())]
pub struct BeneathError {
    /// What was tried.
    pub step: &'static str,
    /// The path inside the root.
    pub path: PathBuf,
    /// The error number.
    #[source]
    pub source: Errno,
}

impl BeneathError {
    pub(crate) fn new(step: &'static str, path: &Path, source: Errno) -> Self {
        Self { step, path: path.to_owned(), source }
    }

    /// Whether the object named does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source == Errno::NOENT
    }
}

/// Result of an operation inside a root.
pub type Result<T> = std::result::Result<T, BeneathError>;

/// A directory that paths are resolved in and cannot leave.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
}

impl Root {
    /// Opens `path`, which the caller trusts and which may contain symbolic
    /// links, as a root.
    ///
    /// # Errors
    /// `path` is not a directory that exists.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| BeneathError::new("open", path, errno))?;
        Ok(Self { directory })
    }

    /// Takes an open directory (O_PATH is enough) as a root.
    #[must_use]
    pub fn from_directory(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Opens `path`, following symbolic links within the root. Close-on-exec
    /// and no controlling terminal are added to `flags`.
    ///
    /// A file opened for reading may be a fifo or device of the sandbox's
    /// making: add `OFlags::NONBLOCK` where waiting would be harmful.
    ///
    /// # Errors
    /// As `openat2(2)`.
    pub fn open_file(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        resolve(self.as_fd(), path, flags, mode, ResolveFlags::IN_ROOT)
            .map_err(|errno| BeneathError::new("open", path, errno))
    }

    /// Opens the directory `path` for use as an anchor or for listing.
    ///
    /// # Errors
    /// ENOTDIR or as `openat2(2)`.
    pub fn open_directory(&self, path: &Path) -> Result<OwnedFd> {
        self.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Creates the file `path`, which must not exist, for reading and
    /// writing. The mode is not subject to the umask of the process, because
    /// it is set again on the open file.
    ///
    /// # Errors
    /// EEXIST, or as `openat2(2)`.
    pub fn create_file(&self, path: &Path, mode: Mode) -> Result<OwnedFd> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = resolve(parent.as_fd(), Path::new(name), flags, mode, ResolveFlags::BENEATH)
            .map_err(|errno| BeneathError::new("create", path, errno))?;
        rustix::fs::fchmod(&file, mode).map_err(|errno| BeneathError::new("set mode of", path, errno))?;
        Ok(file)
    }

    /// Makes the directory `path`, whose parent must exist.
    ///
    /// # Errors
    /// EEXIST, or as `mkdirat(2)`.
    pub fn make_directory(&self, path: &Path, mode: Mode) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        mkdirat(&parent, name, mode).map_err(|errno| BeneathError::new("make directory", path, errno))
    }

    /// Makes the directory `path` and what is missing above it. Existing
    /// directories, and symbolic links to directories inside the root, are
    /// kept.
    ///
    /// # Errors
    /// ENOTDIR where a file is in the way, or as `mkdirat(2)`.
    pub fn make_directories(&self, path: &Path, mode: Mode) -> Result<()> {
        let mut reached = PathBuf::new();
        for component in path.components() {
            if component == Component::ParentDir {
                reached.push(component);
            }
            let Component::Normal(name) = component else {
                continue;
            };
            reached.push(name);
            match self.make_directory(&reached, mode) {
                Ok(()) => {}
                Err(error) if error.source == Errno::EXIST => {
                    self.open_file(&reached, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the symbolic link `path` with the text `target`, which is not
    /// looked at.
    ///
    /// # Errors
    /// EEXIST, or as `symlinkat(2)`.
    pub fn make_symlink(&self, target: &OsStr, path: &Path) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        symlinkat(target, &parent, name).map_err(|errno| BeneathError::new("make symbolic link", path, errno))
    }

    /// The text of the symbolic link `path`.
    ///
    /// # Errors
    /// EINVAL when it is no link, or as `readlinkat(2)`.
    pub fn read_link(&self, path: &Path) -> Result<Vec<u8>> {
        let (parent, name) = self.parent(path)?;
        readlinkat(&parent, name, Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(|errno| BeneathError::new("read link", path, errno))
    }

    /// Status of `path`, a symbolic link as last component followed.
    ///
    /// # Errors
    /// As `openat2(2)`.
    pub fn status(&self, path: &Path) -> Result<Stat> {
        let file = self.open_file(path, OFlags::PATH, Mode::empty())?;
        rustix::fs::fstat(&file).map_err(|errno| BeneathError::new("status of", path, errno))
    }

    /// Status of `path` itself, even when it is a symbolic link.
    ///
    /// # Errors
    /// As `openat2(2)`.
    pub fn link_status(&self, path: &Path) -> Result<Stat> {
        let file = self.open_file(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        rustix::fs::fstat(&file).map_err(|errno| BeneathError::new("status of", path, errno))
    }

    /// Renames `from` to `to`; an existing `to` is replaced as by
    /// `rename(2)`, unless `flags` says otherwise.
    ///
    /// # Errors
    /// As `renameat2(2)`.
    pub fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        renameat_with(&from_parent, from_name, &to_parent, to_name, flags)
            .map_err(|errno| BeneathError::new("rename", from, errno))
    }

    /// Removes `path`, which must not be a directory.
    ///
    /// # Errors
    /// EISDIR, or as `unlinkat(2)`.
    pub fn remove_file(&self, path: &Path) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        unlinkat(&parent, name, AtFlags::empty()).map_err(|errno| BeneathError::new("remove", path, errno))
    }

    /// Removes `path`, whatever it is, with everything below. Mounts below
    /// are not entered; they make it fail with EXDEV or EBUSY.
    ///
    /// # Errors
    /// As `unlinkat(2)`; what was removed until then is gone.
    pub fn remove_tree(&self, path: &Path) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        remove_tree_at(parent.as_fd(), name).map_err(|errno| BeneathError::new("remove", path, errno))
    }

    /// Everything below the directory `path`, parents before children,
    /// siblings in the order of their names' bytes. Links are not followed,
    /// mounts not entered.
    ///
    /// # Errors
    /// `path` is not a directory.
    pub fn walk(&self, path: &Path) -> Result<Walk> {
        let directory = self.open_directory(path)?;
        Ok(Walk::new(directory))
    }

    /// Resolves all but the last component of `path`.
    ///
    /// # Errors
    /// EINVAL when there is no last component or it is `..`; else as
    /// `openat2(2)`.
    pub fn parent<'p>(&self, path: &'p Path) -> Result<(OwnedFd, &'p OsStr)> {
        let name = last_name(path).map_err(|errno| BeneathError::new("resolve", path, errno))?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = resolve(self.as_fd(), parent, flags, Mode::empty(), ResolveFlags::IN_ROOT)
            .map_err(|errno| BeneathError::new("resolve", path, errno))?;
        Ok((parent, name))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// The last component of `path`, when it is a name.
fn last_name(path: &Path) -> std::result::Result<&OsStr, Errno> {
    // `Path` drops a trailing "/." and "/", which is what mkdir and rename
    // accept too; it keeps "..", which none of them may be given.
    match path.components().next_back() {
        Some(Component::Normal(name)) if !name.as_bytes().contains(&0) => Ok(name),
        _ => Err(Errno::INVAL),
    }
}

/// `openat2(2)` with magic links forbidden, tried again when it raced.
fn resolve(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    how: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    // O_PATH takes no other flags of this kind, and openat2 is strict.
    let flags = if flags.contains(OFlags::PATH) { flags - OFlags::NOCTTY } else { flags };
    // openat2 refuses a mode when nothing can be created.
    let creates = flags.intersects(OFlags::CREATE | OFlags::TMPFILE);
    let mode = if creates { mode } else { Mode::empty() };
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let mut last = Errno::AGAIN;
    for _ in 0..RESOLVE_ATTEMPTS_MAX {
        match openat2(directory, path, flags, mode, how | ResolveFlags::NO_MAGICLINKS) {
            Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
            result => return result,
        }
    }
    Err(last)
}

/// Status of `name` in `directory`, links not followed.
pub(crate) fn status_at(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests;
