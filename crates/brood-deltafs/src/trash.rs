//! Removal in the background.
//!
//! What is deleted moves into the `trash` of its home by one rename, so it is
//! gone from its place at once; a thread removes it there. What a crash leaves
//! in the trash is removed at the next start.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use brood_kernel::beneath::{list_directory, remove_tree_at};
use brood_kernel::mount::open_directory;
use rustix::io::Errno;

use crate::error::{Named, Result};
use crate::home::Home;
use crate::id::random_name;

#[derive(Debug, Default)]
struct State {
    /// Trash directories that something may have been put into since they
    /// were last emptied.
    dirty: BTreeSet<PathBuf>,
    /// The thread is emptying one.
    busy: bool,
    /// The store is being closed; what is left waits for the next start.
    closing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that empties trash directories.
#[derive(Debug)]
pub(crate) struct Trash {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Trash {
    /// Starts the thread. `root` is for the error message.
    pub(crate) fn new(root: &Path) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let worker = std::thread::Builder::new()
            .name("deltafs-trash".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared)
            })
            .named("start the thread that removes in", root)?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// Empties the trash of `home`, which an earlier process may have filled.
    pub(crate) fn empty(&self, home: &Home) {
        self.shared.lock().dirty.insert(home.trash());
        self.shared.changed.notify_all();
    }

    /// Moves `path`, which is on the file system of `home`, into its trash.
    /// Nothing happens when it does not exist.
    pub(crate) fn throw(&self, home: &Home, path: &Path) -> Result<()> {
        let name = random_name().named("name in trash for", path)?;
        match fs::rename(path, home.trash().join(name)) {
            Ok(()) => self.empty(home),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).named("move to trash", path),
        }
        Ok(())
    }

    /// Waits until everything thrown so far was removed, or could not be.
    pub(crate) fn wait_empty(&self) {
        let mut state = self.shared.lock();
        while !state.dirty.is_empty() || state.busy {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::error!("the trash thread panicked");
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.closing {
            return;
        }
        let Some(path) = state.dirty.pop_first() else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.busy = true;
        drop(state);
        remove_all(shared, &path);
        state = shared.lock();
        state.busy = false;
        shared.changed.notify_all();
    }
}

/// Removes what is in the trash directory `path` now, one entry after the
/// other. What cannot be removed stays, is reported, and is tried again next
/// time.
fn remove_all(shared: &Shared, path: &Path) {
    let listed = open_directory(path)
        .map_err(|error| error.source)
        .and_then(|trash| Ok((list_directory(trash.as_fd())?, trash)));
    let (entries, trash) = match listed {
        Ok(listed) => listed,
        // The space was removed as a whole meanwhile.
        Err(Errno::NOENT) => return,
        Err(errno) => {
            tracing::error!(path = %path.display(), %errno, "cannot read the trash");
            return;
        }
    };
    for entry in entries {
        if shared.lock().closing {
            return;
        }
        if let Err(errno) = remove_tree_at(trash.as_fd(), &entry.name) {
            let path = path.join(&entry.name);
            tracing::error!(path = %path.display(), %errno, "cannot remove from the trash");
        }
    }
}
