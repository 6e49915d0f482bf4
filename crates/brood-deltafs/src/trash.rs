//! Removal in the background.
//!
//! What is deleted moves into `trash/` by one rename, so it is gone from its
//! place at once; a thread removes it there. What a crash leaves in the trash
//! is removed at the next start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use brood_kernel::beneath::{list_directory, remove_tree_at};
use brood_kernel::mount::open_directory;
use std::os::fd::AsFd;

use crate::error::{Named, Result};
use crate::id::random_name;

#[derive(Debug, Default)]
struct State {
    /// Something may have been put into the trash since the last round.
    dirty: bool,
    /// The thread is in a round.
    busy: bool,
    /// The store is being closed; what is left waits for the next start.
    closing: bool,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The trash directory and its thread.
#[derive(Debug)]
pub(crate) struct Trash {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Trash {
    /// Takes `path`, which must exist, and starts removing what is in it.
    pub(crate) fn new(path: PathBuf) -> Result<Self> {
        let state = Mutex::new(State { dirty: true, ..State::default() });
        let shared = Arc::new(Shared { path, state, changed: Condvar::new() });
        let worker = std::thread::Builder::new()
            .name("deltafs-trash".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared)
            })
            .named("start the thread for", &shared.path)?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// Moves `path` into the trash. False when it does not exist.
    pub(crate) fn throw(&self, path: &Path) -> Result<bool> {
        let name = random_name().named("name in trash for", path)?;
        match fs::rename(path, self.shared.path.join(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).named("move to trash", path),
        }
        self.shared.lock().dirty = true;
        self.shared.changed.notify_all();
        Ok(true)
    }

    /// Waits until everything thrown so far was removed, or could not be.
    pub(crate) fn wait_empty(&self) {
        let mut state = self.shared.lock();
        while state.dirty || state.busy {
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
            tracing::error!(path = %self.shared.path.display(), "the trash thread panicked");
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.closing {
            return;
        }
        if !state.dirty {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        state.dirty = false;
        state.busy = true;
        drop(state);
        remove_all(shared);
        state = shared.lock();
        state.busy = false;
        shared.changed.notify_all();
    }
}

/// One round: removes what is there now, one entry after the other. What
/// cannot be removed stays, is reported, and is tried again next time.
fn remove_all(shared: &Shared) {
    let listed = open_directory(&shared.path)
        .map_err(|error| error.source)
        .and_then(|trash| Ok((list_directory(trash.as_fd())?, trash)));
    let (entries, trash) = match listed {
        Ok(listed) => listed,
        Err(errno) => {
            tracing::error!(path = %shared.path.display(), %errno, "cannot read the trash");
            return;
        }
    };
    for entry in entries {
        if shared.lock().closing {
            return;
        }
        if let Err(errno) = remove_tree_at(trash.as_fd(), &entry.name) {
            let path = shared.path.join(&entry.name);
            tracing::error!(path = %path.display(), %errno, "cannot remove from the trash");
        }
    }
}
