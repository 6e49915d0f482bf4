//! Directories for work in progress, found and removed after a process that was killed.
//!
//! Each is locked by who works in it. `flock`s end with their process, so one without a lock is what a killed process
//! left. Making and judging happen under the lock of the parent, so that nobody judges a directory between its making and
//! its locking.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::lock::LockFile;

/// Prefix of the names of such directories.
const PREFIX: &str = ".partial-";

/// A directory that is removed when dropped, unless it was renamed before. Locked all the while.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    locked: File,
}

impl Scratch {
    /// A new directory in `parent`, accessible to root alone.
    pub(crate) fn make(parent: &Path) -> io::Result<Self> {
        let _parent_locked = LockFile::acquire(&parent.join(".lock"))?;
        let permissions = fs::Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(PREFIX).permissions(permissions).tempdir_in(parent)?;
        let locked = File::open(made.path())?;
        locked.lock()?;
        Ok(Self { path: made.keep(), locked })
    }

    /// Removes those of killed processes.
    pub(crate) fn remove_stale(parent: &Path) -> io::Result<()> {
        let mut stale = Vec::new();
        {
            let _parent_locked = LockFile::acquire(&parent.join(".lock"))?;
            for entry in fs::read_dir(parent)? {
                let entry = entry?;
                if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                    continue;
                }
                // Gone or renamed meanwhile, or locked by a process that works in it: not ours to remove.
                let path = entry.path();
                let Ok(locked) = File::open(&path) else { continue };
                if locked.try_lock().is_ok() {
                    stale.push(Self { path, locked });
                }
            }
        }
        for scratch in stale {
            tracing::info!(path = %scratch.path.display(), "removing what a killed process left half-made");
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory.
    pub(crate) fn directory(&self) -> &File {
        &self.locked
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove what is half-made");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let kept = Scratch::make(parent.path()).unwrap();
        let abandoned = parent.path().join(".partial-abandoned");
        fs::create_dir_all(abandoned.join("tree/deep")).unwrap();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        Scratch::remove_stale(parent.path()).unwrap();
        assert!(kept.path().is_dir() && other.is_dir() && !abandoned.exists());
        let path = kept.path().to_owned();
        drop(kept);
        assert!(!path.exists());
    }
}
