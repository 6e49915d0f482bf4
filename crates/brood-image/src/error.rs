//! Why an image could not be had.

use std::io;
use std::path::PathBuf;

use crate::origin::{DebianError, RegistryError};
use crate::unpack::UnpackError;

/// What a caller can branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The file, directory, image or suite does not exist.
    NotFound,
    /// The registry wants other credentials.
    Unauthorized,
    /// The image is hostile or beyond the limits, or of a kind that cannot be used.
    Refused,
    /// The bytes are damaged, or not those that were promised.
    Corrupt,
    /// The disk is full.
    DiskFull,
    /// A registry or mirror cannot be reached, or a tool is not installed: trying later or installing it helps.
    Unavailable,
    /// The caller asked to stop.
    Cancelled,
    /// Anything else.
    Other,
}

/// Why an image could not be had. Every message begins with the source as the user wrote it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file or directory that the source names cannot be opened.
    #[error("{origin}: cannot open {}; check that it exists and that this user may read it", .path.display())]
    Open {
        /// The source.
        origin: String,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// What the source names is of another kind.
    #[error("{origin}: {} is {found}, but {wanted} is needed", .path.display())]
    WrongKind {
        /// The source.
        origin: String,
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What is needed.
        wanted: &'static str,
    },
    /// The directory of layers cannot be used.
    #[error("{origin}: cannot use the directory of layers")]
    Store {
        /// The source.
        origin: String,
        /// Why.
        source: Box<UnpackError>,
    },
    /// The image is not what an image should be, or not for this machine.
    #[error("{origin}: this image cannot be used: {reason}")]
    Image {
        /// The source.
        origin: String,
        /// Why.
        reason: String,
    },
    /// A Debian package set could not be installed.
    #[error("{origin}: cannot install")]
    Debian {
        /// The source.
        origin: String,
        /// Why.
        source: DebianError,
    },
    /// A registry did not give what was asked of it.
    #[error("{origin}: cannot pull")]
    Registry {
        /// The source.
        origin: String,
        /// Why.
        source: Box<RegistryError>,
    },
    /// A layer cannot be unpacked.
    #[error("{origin}: cannot unpack {what}")]
    Unpack {
        /// The source.
        origin: String,
        /// Which layer.
        what: String,
        /// Why.
        source: Box<UnpackError>,
    },
}

impl ImageError {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Other,
            },
            Self::Image { .. } => ErrorKind::Refused,
            Self::Registry { source, .. } => source.kind(),
            Self::Debian { source, .. } => source.kind(),
            Self::WrongKind { .. } => ErrorKind::NotFound,
            Self::Unpack { source, .. } | Self::Store { source, .. } => source.kind(),
        }
    }
}

impl UnpackError {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } | Self::Limit { .. } => ErrorKind::Refused,
            Self::Corrupt(_) | Self::Compression { .. } | Self::DigestMismatch { .. } => ErrorKind::Corrupt,
            Self::DiskFull { .. } => ErrorKind::DiskFull,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::OtherIdRange { .. } | Self::OtherFormat { .. } | Self::IdRange { .. } | Self::Io { .. } => {
                ErrorKind::Other
            }
        }
    }
}
