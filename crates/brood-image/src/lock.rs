//! Lock files that vanish when released.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// An exclusive `flock`, held until dropped. Ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    _locked: File,
}

impl LockFile {
    /// Waits for the lock.
    pub(crate) fn acquire(path: &Path) -> io::Result<Self> {
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            file.lock()?;
            // The previous holder removed the file while this thread waited for it: the lock is on nothing.
            match path.metadata() {
                Ok(named) if same_file(&named, &file.metadata()?) => {
                    return Ok(Self { path: path.to_owned(), _locked: file });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn same_file(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Still locked here, so nobody else can have taken the name.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a lock file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holder_at_a_time_though_the_file_comes_and_goes() {
        const THREADS: u32 = 8;
        const ROUNDS: u32 = 100;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = AtomicBool::new(false);
        let rounds = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _locked = LockFile::acquire(&path).unwrap();
                        assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                        rounds.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        held.store(false, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), THREADS * ROUNDS);
        assert!(!path.exists());
    }
}
