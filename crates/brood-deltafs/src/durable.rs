//! Making layers survive a power failure.

use std::collections::BTreeSet;
use std::fs::File;

use crate::error::{Named, Result};
use crate::home::Home;
use crate::layer::{Layer, LayerStack};
use crate::store::Store;

impl Store {
    /// Returns when every layer of `stack` is on the disk. Until then layers
    /// survive the end of the daemon, but not that of the machine: uppers are
    /// mounted `volatile`, so that no sandbox waits for the disk.
    ///
    /// Writes out all of the file system, other sandboxes' data included:
    /// milliseconds to seconds. For the background.
    ///
    /// # Errors
    /// EIO when the kernel could not write something.
    pub fn make_durable(&self, stack: &LayerStack) -> Result<()> {
        let homes: BTreeSet<Home> = stack.layers().iter().map(Layer::home).collect();
        for home in homes {
            let path = home.layers();
            let directory = File::open(&path).named("open", &path)?;
            rustix::fs::syncfs(&directory).named("write out", &path)?;
            if &home != self.home() {
                // An image is a file on the store's own file system.
                let path = self.home().layers();
                let directory = File::open(&path).named("open", &path)?;
                rustix::fs::syncfs(&directory).named("write out", &path)?;
            }
        }
        Ok(())
    }
}
