//! What can go wrong in the store.

use std::io;
use std::path::{Path, PathBuf};

use brood_kernel::mount::MountError;
use rustix::io::Errno;

use crate::id::{LayerId, SpaceId, UpperId};

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A store operation that failed. Unless a variant says otherwise nothing was
/// changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the store open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The state directory.
        path: PathBuf,
    },
    /// A file operation on the store's own directories.
    #[error("{step} {}", path.display())]
    File {
        /// What was tried.
        step: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No such layer.
    #[error("no layer {id} in the store")]
    NoLayer {
        /// The id asked for.
        id: LayerId,
    },
    /// No such upper.
    #[error("no upper {id} in the store")]
    NoUpper {
        /// The id asked for.
        id: UpperId,
    },
    /// No such space.
    #[error("no space {id} in the store")]
    NoSpace {
        /// The id asked for.
        id: SpaceId,
    },
    /// This host cannot limit what a sandbox writes.
    #[error("disk limits are not possible here: {reason}")]
    NoLimits {
        /// Why, and what would mend it.
        reason: String,
    },
    /// A disk limit outside what can be set up.
    #[error("a disk limit of {bytes} bytes is outside {min} to {max}")]
    LimitRange {
        /// The limit asked for.
        bytes: u64,
        /// Smallest limit.
        min: u64,
        /// Largest limit.
        max: u64,
    },
    /// Making the file system of a space failed.
    #[error("mkfs.ext4 of {}: {message}", image.display())]
    MakeFileSystem {
        /// The image file.
        image: PathBuf,
        /// What the program printed.
        message: String,
    },
    /// Mounting the file system of a space failed.
    #[error("mounting space {id}")]
    MountSpace {
        /// The space.
        id: SpaceId,
        /// Why not.
        #[source]
        source: MountError,
    },
    /// A stack cannot be mounted because it is empty or too deep.
    #[error("a stack of {depth} layers cannot be mounted: 1 to {max} can")]
    Depth {
        /// Layers in the stack.
        depth: usize,
        /// Layers that may be mounted.
        max: usize,
    },
    /// Layers that cannot be squashed into one, because their files cannot be
    /// linked.
    #[error("layers {one} and {other} are in different spaces")]
    Apart {
        /// One of them.
        one: LayerId,
        /// Another.
        other: LayerId,
    },
    /// A name that means something else in the layer of an image.
    #[error("{} cannot be in the layer of an image: the format takes such a name for a removal", path.display())]
    NotExportable {
        /// The path inside.
        path: PathBuf,
    },
    /// The kernel refused to mount a stack.
    #[error("mounting the stack on top of layer {top}")]
    Mount {
        /// Topmost layer.
        top: LayerId,
        /// Why not.
        #[source]
        source: MountError,
    },
}

impl StoreError {
    /// Whether the disk, or the limit of the sandbox, is full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        let errno = match self {
            Self::File { source, .. } => Errno::from_io_error(source),
            Self::Mount { source, .. } => Some(source.source),
            _ => None,
        };
        matches!(errno, Some(Errno::NOSPC | Errno::DQUOT))
    }
}

/// Adds the step and the path to an error of the standard library.
pub(crate) trait Named<T> {
    fn named(self, step: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Named<T> for std::result::Result<T, E> {
    fn named(self, step: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| StoreError::File { step, path: path.to_owned(), source: source.into() })
    }
}
