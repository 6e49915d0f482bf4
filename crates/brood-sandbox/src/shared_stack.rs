//! Layer stacks that get shorter while they are in use.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use brood_deltafs::{LayerId, LayerStack, Store};

use crate::error::Result;
use crate::process::lock;
use crate::storage;

/// The files of a frozen state, as a stack that may be exchanged for a shorter one that means the
/// same. Whoever mounts takes the [`current`](Self::current) one; mounts that exist keep theirs.
///
/// Layers that nothing else refers to go when it is dropped.
#[derive(Debug)]
pub(crate) struct SharedStack {
    store: Store,
    current: Mutex<LayerStack>,
    /// Held while a shorter stack is made, so that nobody merges the same layers twice.
    shortening: Mutex<()>,
}

impl SharedStack {
    pub(crate) fn new(store: &Store, stack: LayerStack) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), current: Mutex::new(stack), shortening: Mutex::default() })
    }

    pub(crate) fn current(&self) -> LayerStack {
        lock(&self.current).clone()
    }

    /// Merges layers that lie above the `pinned` ones until the stack is about
    /// [`DEPTH_AIM`](brood_deltafs::DEPTH_AIM) deep above these. Milliseconds to seconds: for the
    /// background.
    pub(crate) fn shorten(&self, pinned: &HashSet<LayerId>) -> Result<()> {
        let _alone = lock(&self.shortening);
        let stack = self.current();
        let shorter = self.store.shortened(&stack, pinned).map_err(storage::store_error)?;
        let Some(shorter) = shorter else { return Ok(()) };
        let before = std::mem::replace(&mut *lock(&self.current), shorter);
        drop(stack);
        self.store.release(before).map_err(storage::store_error)?;
        Ok(())
    }
}

impl Drop for SharedStack {
    fn drop(&mut self) {
        let stack = std::mem::replace(&mut *lock(&self.current), LayerStack::new([]));
        if let Err(error) = self.store.release(stack) {
            tracing::error!(%error, "layers of a frozen state stay until the next start");
        }
    }
}
