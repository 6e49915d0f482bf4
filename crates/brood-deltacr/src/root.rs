//! The root directory of a sandbox, and opening files beneath it.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{Result, kernel};

/// A sandbox's root directory. Paths are resolved as a process inside would, and never leave it.
#[derive(Debug)]
pub struct SandboxRoot {
    directory: OwnedFd,
}

impl SandboxRoot {
    /// The root directory that a process sees.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn of_process(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{}/root", pid.as_raw_nonzero());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(kernel(pid, "open the root directory"))?;
        Ok(Self { directory })
    }

    /// A directory of the engine's choice, such as a new mount that is to become the root.
    #[must_use]
    pub fn at(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Opens an absolute path inside; the path is one that the kernel reported, so no part of it
    /// may be a symbolic link by now.
    pub(crate) fn open(&self, path: &str, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "inside").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = SandboxRoot::at(rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap());
        root.open("/file", OFlags::RDONLY).unwrap();
        root.open("/../../file", OFlags::RDONLY).unwrap();
        assert_eq!(root.open("/etc/passwd", OFlags::RDONLY).unwrap_err(), Errno::NOENT);
        assert_eq!(root.open("/link", OFlags::RDONLY).unwrap_err(), Errno::LOOP);
    }
}
