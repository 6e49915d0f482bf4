//! What a fetch tells its caller while it works.

use std::fmt;

/// The kind of work that a [`ProgressItem`] stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Bytes come from a registry.
    Download,
    /// A layer is being unpacked; the bytes are those of the (compressed) archive.
    Unpack,
    /// A Debian package set is being installed; only lines of text are reported.
    Install,
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Download => "download",
            Self::Unpack => "unpack",
            Self::Install => "install",
        })
    }
}

/// One piece of work: a bar on a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgressItem {
    /// What is being done.
    pub stage: Stage,
    /// To what: the short digest of a layer, a file name or a suite.
    pub name: String,
}

/// Receives what happens. Calls come from several threads at once, and each must return quickly.
///
/// For every item, `started` comes first and once, then any number of `advanced` and `message`, then `finished` unless
/// the fetch fails or is cancelled.
pub trait Progress: Send + Sync {
    /// Work on `item` begins; `total_bytes` is what `advanced` will add up to, where that is known.
    fn started(&self, item: &ProgressItem, total_bytes: Option<u64>) {
        let _unused = (item, total_bytes);
    }

    /// `bytes` more are done.
    fn advanced(&self, item: &ProgressItem, bytes: u64) {
        let _unused = (item, bytes);
    }

    /// A line of text from a tool that does the work, control characters removed.
    fn message(&self, item: &ProgressItem, line: &str) {
        let _unused = (item, line);
    }

    /// The work is done.
    fn finished(&self, item: &ProgressItem) {
        let _unused = item;
    }

    /// Asked often: `true` makes the fetch stop with [`crate::ErrorKind::Cancelled`], leaving nothing behind.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Reports nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}
