//! How much disk layers and uppers occupy.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use brood_kernel::beneath::Root;
use rustix::io::Errno;

use crate::error::{Named, Result};
use crate::layer::{Layer, LayerStack};
use crate::upper::Upper;

/// Bytes of a block in `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Disk space and inodes of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk: holes do not count, a file with several links counts
    /// once.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// A figure and when it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    at: Instant,
    usage: DiskUsage,
}

impl Layer {
    /// What the layer occupies. Read once, remembered from then on.
    ///
    /// # Errors
    /// As reading directories.
    pub fn usage(&self) -> Result<DiskUsage> {
        if let Some(usage) = self.0.usage.get() {
            return Ok(*usage);
        }
        let usage = read([self.path()])?;
        Ok(*self.0.usage.get_or_init(|| usage))
    }
}

impl LayerStack {
    /// What layers of this stack occupy that are not in `base`, the stack of
    /// its template for example. Files that merged layers share count once.
    ///
    /// # Errors
    /// As reading directories.
    pub fn usage_beyond(&self, base: &Self) -> Result<DiskUsage> {
        let own = self.layers().iter().filter(|layer| !base.layers().contains(layer));
        read(own.map(Layer::path))
    }
}

impl Upper {
    /// What the changes in the upper occupy, at most `age_max` ago. Reading a
    /// big upper takes a while: a microsecond or two a file.
    ///
    /// # Errors
    /// As reading directories.
    pub fn usage(&self, age_max: Duration) -> Result<DiskUsage> {
        let lock = || self.usage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(taken) = *lock()
            && taken.at.elapsed() <= age_max
        {
            return Ok(taken.usage);
        }
        // Not under the lock: whoever is content with an older figure shall not wait.
        let at = Instant::now();
        let usage = read([self.changes().as_path()])?;
        *lock() = Some(Taken { at, usage });
        Ok(usage)
    }
}

/// Adds up what is below `trees`, their roots included.
fn read<'p>(trees: impl IntoIterator<Item = &'p Path>) -> Result<DiskUsage> {
    let mut usage = DiskUsage::default();
    let mut linked = HashSet::new();
    for tree in trees {
        let root = Root::open(tree).map_err(|error| error.source).named("open", tree)?;
        let status = rustix::fs::fstat(&root).named("status of", tree)?;
        count(&mut usage, &status);
        let walk = root.walk(Path::new(".")).map_err(|error| error.source).named("read", tree)?;
        for entry in walk {
            let entry = match entry.map_err(|error| error.source) {
                // Deeper than a path can be long: somebody plays games. What
                // may be written is up to the limit, not to this figure.
                Err(Errno::NAMETOOLONG) => continue,
                entry => entry.named("read", tree)?,
            };
            let is_new = entry.status.st_nlink < 2
                || entry.kind() == rustix::fs::FileType::Directory
                || linked.insert((entry.status.st_dev, entry.status.st_ino));
            if is_new {
                count(&mut usage, &entry.status);
            }
        }
    }
    Ok(usage)
}

fn count(usage: &mut DiskUsage, status: &rustix::fs::Stat) {
    usage.bytes += u64::try_from(status.st_blocks).unwrap_or(0) * BLOCK_BYTES;
    usage.inodes += 1;
}
