//! Files of a sandbox, for whoever works on it from outside.
//!
//! Every path is resolved inside the sandbox's root (`openat2` with `RESOLVE_IN_ROOT`), however
//! its links are laid, and what lies on another file system (`/proc`, `/sys`, `/dev/pts`) is
//! refused. Nothing here waits for a hostile fifo or device.

mod access;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use brood_kernel::beneath::{BeneathError, Root, list_directory};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid};
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::SandboxId;
use crate::isolation::ID_COUNT;

/// Whom a new file belongs to, as the sandbox numbers users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A fifo, socket or device.
    Other,
}

/// A file or directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// Its path inside, absolute.
    pub path: String,
    /// What it is; of the link itself when it is one.
    pub kind: EntryKind,
    /// Bytes in it.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as the sandbox numbers users.
    pub uid: u32,
    /// Group, as the sandbox numbers groups.
    pub gid: u32,
    /// Last change of its content, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where it points, for a link.
    pub symlink_target: Option<String>,
}

/// The files of one sandbox.
#[derive(Debug)]
pub struct Files {
    sandbox: SandboxId,
    root: Root,
    id_base: u32,
}

impl Files {
    pub(crate) fn new(sandbox: SandboxId, root: Root, id_base: u32) -> Self {
        Self { sandbox, root, id_base }
    }

    fn failed(&self, action: &str, path: &Path) -> impl Fn(io::Error) -> EngineError {
        let message = format!("cannot {action} {} in sandbox {}", path.display(), self.sandbox);
        move |error| {
            let kind = match error.kind() {
                io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::DirectoryNotEmpty
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidFilename
                | io::ErrorKind::CrossesDevices => Some(ErrorKind::Invalid),
                // Links in a circle, or those of /proc that would lead out.
                _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Some(ErrorKind::Invalid),
                _ => None,
            };
            match kind {
                Some(kind) => EngineError::caused_by(kind, message.clone(), error),
                None => EngineError::system(message.clone(), error),
            }
        }
    }

    /// What `path` names; a link is not followed.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Entry> {
        let path = absolute(path.as_ref())?;
        let status = self.root.link_status(relative(&path)).map_err(io_error).map_err(self.failed("look at", &path))?;
        Ok(self.entry(&path, &status))
    }

    /// What is in a directory, by name.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` when it is no directory.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Entry>> {
        let path = absolute(path.as_ref())?;
        let failed = self.failed("list", &path);
        let directory = self.root.open_directory(relative(&path)).map_err(io_error).map_err(&failed)?;
        self.ensure_inside(&directory, &path)?;
        let mut entries = Vec::new();
        for found in list_directory(directory.as_fd()).map_err(io::Error::from).map_err(&failed)? {
            // It may be gone again.
            let Ok(status) = rustix::fs::statat(&directory, &found.name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            entries.push(self.entry(&path.join(&found.name), &status));
        }
        Ok(entries)
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for anything that is no regular file.
    pub fn open_read(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = absolute(path.as_ref())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = self.root.open_file(relative(&path), flags, Mode::empty()).map_err(io_error);
        let file = file.map_err(self.failed("open", &path))?;
        self.ensure_regular(&file, &path)?;
        Ok(File::from(file))
    }

    /// Creates a regular file or empties the one that is there, and makes the directories above it.
    ///
    /// # Errors
    /// `Invalid` when something else is in the way.
    pub fn create(&self, path: impl AsRef<Path>, owner: Owner, mode: u32) -> Result<File> {
        let path = absolute(path.as_ref())?;
        self.make_parents(&path, owner)?;
        self.create_at(&path, owner, mode)
    }

    fn create_at(&self, path: &Path, owner: Owner, mode: u32) -> Result<File> {
        let failed = self.failed("create", path);
        let mode = Mode::from_raw_mode(mode & 0o7777);
        // Exclusively first: then the file is ours and gets owner and mode.
        match self.root.create_file(relative(path), mode) {
            Ok(file) => {
                self.give(&file, owner).map_err(&failed)?;
                // A change of owner takes setuid bits away.
                rustix::fs::fchmod(&file, mode).map_err(io::Error::from).map_err(&failed)?;
                return Ok(File::from(file));
            }
            Err(error) if error.source == rustix::io::Errno::EXIST => {}
            Err(error) => return Err(failed(io_error(error))),
        }
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let file = self.root.open_file(relative(path), flags, Mode::empty()).map_err(io_error).map_err(&failed)?;
        self.ensure_regular(&file, path)?;
        rustix::fs::ftruncate(&file, 0).map_err(io::Error::from).map_err(&failed)?;
        Ok(File::from(file))
    }

    /// Makes a directory and what is missing above it; whether it is new.
    ///
    /// # Errors
    /// `Invalid` when something that is no directory is in the way.
    pub fn make_directory(&self, path: impl AsRef<Path>, owner: Owner) -> Result<bool> {
        let path = absolute(path.as_ref())?;
        self.make_parents(&path, owner)?;
        self.make_one_directory(&path, owner)
    }

    fn make_parents(&self, path: &Path, owner: Owner) -> Result<()> {
        let mut missing = VecDeque::new();
        let mut parent = path.parent();
        while let Some(directory) = parent.filter(|directory| *directory != Path::new("/")) {
            if self.root.status(relative(directory)).is_ok() {
                break;
            }
            missing.push_front(directory.to_owned());
            parent = directory.parent();
        }
        missing.into_iter().try_for_each(|directory| self.make_one_directory(&directory, owner).map(|_new| ()))
    }

    fn make_one_directory(&self, path: &Path, owner: Owner) -> Result<bool> {
        let failed = self.failed("make directory", path);
        if path == Path::new("/") {
            return Ok(false);
        }
        match self.root.make_directory(relative(path), Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let directory = self.root.open_directory(relative(path)).map_err(io_error).map_err(&failed)?;
                self.ensure_inside(&directory, path)?;
                self.give(&directory, owner).map_err(&failed)?;
                Ok(true)
            }
            Err(error) if error.source == rustix::io::Errno::EXIST => {
                self.root.open_directory(relative(path)).map_err(io_error).map_err(failed)?;
                Ok(false)
            }
            Err(error) => Err(failed(io_error(error))),
        }
    }

    /// Renames a file or directory; what is at the destination is replaced as by `rename(2)`.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (absolute(from.as_ref())?, absolute(to.as_ref())?);
        self.root
            .rename(relative(&from), relative(&to), RenameFlags::empty())
            .map_err(io_error)
            .map_err(self.failed("rename", &from))
    }

    /// Removes a file, or a directory with all that is in it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for the root.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = absolute(path.as_ref())?;
        if path == Path::new("/") {
            return Err(EngineError::new(ErrorKind::Invalid, "the root of a sandbox cannot be removed"));
        }
        self.root.remove_tree(relative(&path)).map_err(io_error).map_err(self.failed("remove", &path))
    }

    /// Unpacks a tar stream into a directory, which is made if it is missing. Regular files,
    /// directories and links are taken; owners are replaced by `owner`.
    ///
    /// # Errors
    /// `Invalid` for a malformed archive and for entries that lead out of the directory or are of
    /// another kind; what was unpacked before stays.
    pub fn copy_in(&self, archive: impl Read, directory: impl AsRef<Path>, owner: Owner) -> Result<()> {
        let directory = absolute(directory.as_ref())?;
        self.make_directory(&directory, owner)?;
        let malformed = |error| EngineError::caused_by(ErrorKind::Invalid, "the archive is malformed", error);
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries().map_err(malformed)? {
            let mut entry = entry.map_err(malformed)?;
            let name = entry.path().map_err(malformed)?.into_owned();
            let path = directory.join(beneath(&name)?);
            self.unpack(&mut entry, &path, owner)?;
        }
        Ok(())
    }

    fn unpack(&self, entry: &mut tar::Entry<'_, impl Read>, path: &Path, owner: Owner) -> Result<()> {
        let failed = self.failed("unpack", path);
        let mode = entry.header().mode().unwrap_or(0o644);
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                self.make_directory(path, owner)?;
                self.set_mode(path, mode)
            }
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                self.remove_if_no_directory(path)?;
                let mut file = self.create(path, owner, mode)?;
                io::copy(entry, &mut file).map_err(&failed)?;
                let seconds = entry.header().mtime().unwrap_or(0);
                let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::futimens(&file, &times).map_err(io::Error::from).map_err(failed)
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
                self.make_parents(path, owner)?;
                self.remove_if_no_directory(path)?;
                let made = self.root.make_symlink(OsStr::from_bytes(&target), relative(path));
                made.map_err(io_error).map_err(failed)
            }
            // The first name of the file is in the archive too, or there is nothing to link to.
            tar::EntryType::XGlobalHeader => Ok(()),
            other => {
                let message = format!("{}: entries of type {other:?} cannot be copied in", path.display());
                Err(EngineError::new(ErrorKind::Invalid, message))
            }
        }
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        let failed = self.failed("set the mode of", path);
        let directory = self.root.open_directory(relative(path)).map_err(io_error).map_err(&failed)?;
        self.ensure_inside(&directory, path)?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o7777)).map_err(io::Error::from).map_err(failed)
    }

    fn remove_if_no_directory(&self, path: &Path) -> Result<()> {
        match self.root.link_status(relative(path)) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) != FileType::Directory => {
                self.root.remove_file(relative(path)).map_err(io_error).map_err(self.failed("replace", path))
            }
            _ => Ok(()),
        }
    }

    /// Writes a file or directory as a tar stream whose entries begin with its own name, as
    /// `docker cp` does. Fifos, sockets and devices are left out.
    ///
    /// # Errors
    /// `NotFound`, or when the writer fails.
    pub fn copy_out(&self, path: impl AsRef<Path>, writer: impl Write) -> Result<()> {
        let path = absolute(path.as_ref())?;
        let failed = self.failed("copy out", &path);
        let mut builder = tar::Builder::new(writer);
        let name = path.file_name().map_or_else(|| PathBuf::from("."), PathBuf::from);
        let status = self.root.link_status(relative(&path)).map_err(io_error).map_err(&failed)?;
        let root = rustix::fs::fstat(&self.root).map_err(io::Error::from).map_err(&failed)?;
        if status.st_dev != root.st_dev {
            let message = format!("{} is not among the files of sandbox {}", path.display(), self.sandbox);
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        self.pack(&mut builder, &path, &name, &status).map_err(&failed)?;
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            for entry in self.root.walk(relative(&path)).map_err(io_error).map_err(&failed)? {
                // Files of a live sandbox come and go.
                let Ok(entry) = entry else { continue };
                if entry.path == Path::new("") || entry.path == Path::new(".") || entry.status.st_dev != status.st_dev {
                    continue;
                }
                let inside = path.join(&entry.path);
                self.pack(&mut builder, &inside, &name.join(&entry.path), &entry.status).map_err(&failed)?;
            }
        }
        builder.into_inner().map_err(failed).map(|_writer| ())
    }

    fn pack(&self, builder: &mut tar::Builder<impl Write>, path: &Path, name: &Path, status: &Stat) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(status.st_mode & 0o7777);
        header.set_uid(u64::from(self.inside(status.st_uid)));
        header.set_gid(u64::from(self.inside(status.st_gid)));
        header.set_mtime(u64::try_from(status.st_mtime).unwrap_or(0));
        header.set_size(0);
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                builder.append_data(&mut header, name, io::empty())
            }
            FileType::Symlink => {
                header.set_entry_type(tar::EntryType::Symlink);
                let target = self.root.read_link(relative(path)).map_err(io_error)?;
                builder.append_link(&mut header, name, OsStr::from_bytes(&target))
            }
            FileType::RegularFile => {
                let Ok(file) = self.open_read(path) else { return Ok(()) };
                let size = u64::try_from(status.st_size).unwrap_or(0);
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(size);
                // A file that shrinks or grows meanwhile must not break the archive.
                builder.append_data(&mut header, name, file.chain(io::repeat(0)).take(size))
            }
            _ => Ok(()),
        }
    }

    fn entry(&self, path: &Path, status: &Stat) -> Entry {
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        let target = (kind == EntryKind::Symlink).then(|| self.root.read_link(relative(path)).ok()).flatten();
        Entry {
            name: path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned()),
            path: path.to_string_lossy().into_owned(),
            kind,
            size: u64::try_from(status.st_size).unwrap_or(0),
            mode: status.st_mode & 0o7777,
            uid: self.inside(status.st_uid),
            gid: self.inside(status.st_gid),
            modified_ms: status.st_mtime * 1000 + i64::try_from(status.st_mtime_nsec).unwrap_or(0) / 1_000_000,
            symlink_target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        }
    }

    /// A host id as the sandbox sees it; what is outside of its range is `nobody` there.
    fn inside(&self, id: u32) -> u32 {
        id.checked_sub(self.id_base).filter(|id| *id < ID_COUNT).unwrap_or(65534)
    }

    fn give(&self, file: impl AsFd, owner: Owner) -> io::Result<()> {
        let outside = |id: u32| self.id_base + id.min(ID_COUNT - 1);
        let (uid, gid) = (Uid::from_raw(outside(owner.uid)), Gid::from_raw(outside(owner.gid)));
        Ok(rustix::fs::fchown(file, Some(uid), Some(gid))?)
    }

    /// Refuses what lies on another file system than the sandbox's root.
    fn ensure_inside(&self, file: &OwnedFd, path: &Path) -> Result<Stat> {
        let failed = self.failed("use", path);
        let status = rustix::fs::fstat(file).map_err(io::Error::from).map_err(&failed)?;
        let root = rustix::fs::fstat(&self.root).map_err(io::Error::from).map_err(failed)?;
        if status.st_dev == root.st_dev {
            return Ok(status);
        }
        let message = format!("{} is not among the files of sandbox {}", path.display(), self.sandbox);
        Err(EngineError::new(ErrorKind::Invalid, message))
    }

    fn ensure_regular(&self, file: &OwnedFd, path: &Path) -> Result<()> {
        let status = self.ensure_inside(file, path)?;
        if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile {
            return Ok(());
        }
        let message = format!("{} in sandbox {} is no regular file", path.display(), self.sandbox);
        Err(EngineError::new(ErrorKind::Invalid, message))
    }
}

fn io_error(error: BeneathError) -> io::Error {
    error.source.into()
}

/// The path without its leading slash, never empty.
fn relative(path: &Path) -> &Path {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

/// Checks a caller's path and takes `.` and `..` out of it.
fn absolute(path: &Path) -> Result<PathBuf> {
    let refuse = |reason: &str| {
        let shown: String = path.to_string_lossy().chars().take(200).collect();
        Err(EngineError::new(ErrorKind::Invalid, format!("path {shown:?} {reason}")))
    };
    if !path.is_absolute() {
        return refuse("must be absolute");
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return refuse("holds a zero byte");
    }
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    Ok(clean)
}

/// A name in an archive, refused when it leads out.
fn beneath(name: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            _ => {
                let message = format!("{}: an archive's entries must stay below its directory", name.display());
                return Err(EngineError::new(ErrorKind::Invalid, message));
            }
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_and_hostile_ones_refused() {
        assert_eq!(absolute(Path::new("/a/./b/../c")).unwrap(), Path::new("/a/c"));
        assert_eq!(absolute(Path::new("/../..")).unwrap(), Path::new("/"));
        assert_eq!(absolute(Path::new("a")).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(absolute(Path::new("/a\0b")).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(beneath(Path::new("./a/b")).unwrap(), Path::new("a/b"));
        for name in ["../a", "/etc/passwd", "a/../../b"] {
            assert_eq!(beneath(Path::new(name)).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert_eq!(relative(Path::new("/")), Path::new("."));
    }
}
