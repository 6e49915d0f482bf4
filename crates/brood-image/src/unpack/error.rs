//! Why a layer was not unpacked.

use std::io;

use super::path::EntryPath;
use crate::digest::Digest;
use crate::options::IdShift;
use crate::tar_stream::TarError;

/// What is wrong with an entry that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path has a component `..`.
    #[error("its path climbs with '..'")]
    ParentStep,
    /// The path is empty, or names the root of the layer for something that is no directory.
    #[error("it has no name")]
    NoName,
    /// The path holds a zero byte.
    #[error("its path holds a zero byte")]
    ZeroByte,
    /// The path is longer than the limit.
    #[error("its path is longer than {limit} bytes")]
    PathTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// More directories below each other than the limit.
    #[error("it lies more than {limit} directories deep")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// A directory on the way is a symbolic link that leads out of the layer, or in circles.
    #[error("the symbolic link '{link}' on its way points to '{target}', out of the layer or in a circle")]
    EscapingLink {
        /// The link's name.
        link: String,
        /// Where it points.
        target: String,
    },
    /// Something on the way is no directory.
    #[error("'{component}' on its way is no directory")]
    ParentNotDirectory {
        /// The component's name.
        component: String,
    },
    /// A hard link to something that the layer does not hold, or that must not be linked.
    #[error("it is a hard link to '{target}', which is no file of this layer")]
    HardLinkTarget {
        /// The target's path in the archive.
        target: String,
    },
    /// A symbolic link without a usable target.
    #[error("its link target is empty, too long or holds a zero byte")]
    LinkTarget,
    /// A block device.
    #[error("it is a block device ({major}:{minor}); images may not bring devices")]
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A character device outside the standard set.
    #[error("it is a character device ({major}:{minor}) outside the standard set; images may not bring devices")]
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// An entry of a kind that no file system object corresponds to.
    #[error("it is of the unknown kind '{}'", .kind.escape_debug())]
    UnknownKind {
        /// The type flag.
        kind: char,
    },
    /// A name that begins with `.wh.` but marks nothing.
    #[error("'.wh.' names are reserved for whiteouts, and this one marks nothing")]
    WhiteoutName,
    /// An extended attribute with an impossible name or a value beyond the limit.
    #[error("its extended attribute '{name}' has an impossible name or more than {limit} bytes")]
    Xattr {
        /// The attribute's name.
        name: String,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Why a layer was not unpacked. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// An entry that no honest archive holds.
    #[error("refused entry '{path}': {reason}")]
    Refused {
        /// The entry's path, control characters escaped.
        path: String,
        /// What is wrong with it.
        reason: Refusal,
    },
    /// More than the limits allow.
    #[error("the layer has more than {limit} {what}; raise the limit if you trust its maker")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The bytes are no tar archive, or a damaged one.
    #[error("{0}; get the archive again")]
    Corrupt(String),
    /// Compressed data cannot be decoded.
    #[error("cannot decompress the archive ({format}); get it again")]
    Compression {
        /// The format.
        format: &'static str,
        /// What the decoder says.
        source: io::Error,
    },
    /// The bytes are not those that were asked for.
    #[error("{what} has the digest {actual}, but {expected} was promised; nothing was kept")]
    DigestMismatch {
        /// Which bytes.
        what: &'static str,
        /// The digest that the manifest or configuration names.
        expected: Digest,
        /// The digest of what came.
        actual: Digest,
    },
    /// The layer exists, unpacked for another range of ids.
    #[error(
        "layer {digest} was unpacked for {} ids from {}, but {} from {} are configured; \
         restore that setting or remove the layer's directory",
        .found.count, .found.base, .wanted.count, .wanted.base
    )]
    OtherIdRange {
        /// The layer.
        digest: Digest,
        /// The range it was unpacked for.
        found: IdShift,
        /// The range that is configured.
        wanted: IdShift,
    },
    /// The layer exists, unpacked by another version of this program in another way.
    #[error(
        "layer {digest} was unpacked in format {found}, this version makes format {wanted}; remove the layer's directory"
    )]
    OtherFormat {
        /// The layer.
        digest: Digest,
        /// Its format.
        found: u32,
        /// The format of this version.
        wanted: u32,
    },
    /// The configured range leaves the 32 bits that ids have.
    #[error("ids from {base} on leave no room for {count} of them below {}; choose a lower base", u32::MAX)]
    IdRange {
        /// First id.
        base: u32,
        /// How many.
        count: u32,
    },
    /// The disk is full.
    #[error("the disk that holds '{path}' is full (while trying to {action}); free space or move the state directory")]
    DiskFull {
        /// What was being done.
        action: &'static str,
        /// To which path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action} '{path}'")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl UnpackError {
    pub(crate) fn io(action: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }
}

impl From<TarError> for UnpackError {
    /// Readers below the tar reader report what stopped them as an `io::Error` around an [`UnpackError`].
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read { offset, source } => match source.downcast::<Self>() {
                Ok(inner) => inner,
                Err(source) => Self::Io { action: "read the archive", path: format!("byte {offset}"), source },
            },
            TarError::HeaderTooBig { limit } => Self::Limit { what: "bytes in the headers of one entry", limit },
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// Names the object of a failed system call.
pub(super) trait IoContext<T> {
    fn at(self, action: &'static str, path: &EntryPath) -> Result<T, UnpackError>;
}

impl<T> IoContext<T> for rustix::io::Result<T> {
    fn at(self, action: &'static str, path: &EntryPath) -> Result<T, UnpackError> {
        self.map_err(|errno| UnpackError::io(action, path.to_string(), errno.into()))
    }
}
