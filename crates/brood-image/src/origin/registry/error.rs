//! Why a registry did not give what was asked of it.

use std::io;
use std::path::PathBuf;

use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::secrets::RegistryAuth;

use crate::digest::{Digest, DigestSyntaxError};
use crate::{ErrorKind, UnpackError};

/// Why a registry did not give what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No such repository, tag or blob, as far as these credentials see.
    #[error("{registry} has no such image; check the name and tag")]
    NotFound {
        /// The registry.
        registry: String,
    },
    /// Wrong credentials, or none where some are needed.
    #[error(
        "{registry} refuses access {}; log in with 'skopeo login' or 'docker login', or give other credentials",
        if *.had_credentials { "with the credentials it was given" } else { "without credentials" }
    )]
    Unauthorized {
        /// The registry.
        registry: String,
        /// Whether any were sent.
        had_credentials: bool,
    },
    /// Too many requests.
    #[error("{registry} allows no more requests for now; wait, or log in for a higher limit")]
    RateLimited {
        /// The registry.
        registry: String,
    },
    /// The connection failed, or the registry failed to answer.
    #[error("cannot reach {registry}; check the network, the proxy settings and the registry's name")]
    Unreachable {
        /// The registry.
        registry: String,
        /// What went wrong.
        source: OciDistributionError,
    },
    /// No bytes came for a long time.
    #[error("{registry} stopped sending; try again")]
    Stalled {
        /// The registry.
        registry: String,
    },
    /// A layer broke off again and again.
    #[error("the download of {blob} from {registry} broke off at byte {bytes} after {attempts} attempts; try again")]
    Broken {
        /// The registry.
        registry: String,
        /// Digest of the layer's archive.
        blob: Digest,
        /// Bytes that arrived.
        bytes: u64,
        /// Attempts that were made.
        attempts: u32,
        /// What the last attempt failed with.
        source: Box<RegistryError>,
    },
    /// More bytes than the manifest says.
    #[error("{registry} sends more than the {bytes} bytes that the manifest says {blob} has")]
    TooLong {
        /// The registry.
        registry: String,
        /// Digest of the layer's archive.
        blob: Digest,
        /// Its size by the manifest.
        bytes: u64,
    },
    /// Other bytes than those that were asked for.
    #[error("{what} has the digest {actual}, but {expected} was promised; nothing was kept")]
    DigestMismatch {
        /// Which bytes.
        what: &'static str,
        /// The digest asked for.
        expected: Digest,
        /// The digest of what came.
        actual: Digest,
    },
    /// A digest that cannot be checked.
    #[error(transparent)]
    Digest(DigestSyntaxError),
    /// The file of credentials cannot be used.
    #[error("cannot use the credentials in {}: {reason}", .path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The cache of downloads cannot be used.
    #[error("cannot use {path}; check that its disk has space")]
    Io {
        /// The file or directory.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Anything else that the registry or the client says.
    #[error("{registry} gave an answer that cannot be used")]
    Other {
        /// The registry.
        registry: String,
        /// What it was.
        source: OciDistributionError,
    },
}

impl RegistryError {
    /// Sorts what the client library reports.
    pub(super) fn new(registry: &str, auth: &RegistryAuth, error: OciDistributionError) -> Self {
        let registry = registry.to_owned();
        let had_credentials = *auth != RegistryAuth::Anonymous;
        let by_status = |code: u16, registry: String, error| match code {
            401 | 403 => Self::Unauthorized { registry, had_credentials },
            404 => Self::NotFound { registry },
            429 => Self::RateLimited { registry },
            500.. => Self::Unreachable { registry, source: error },
            _ => Self::Other { registry, source: error },
        };
        match &error {
            OciDistributionError::AuthenticationFailure(_) | OciDistributionError::UnauthorizedError { .. } => {
                Self::Unauthorized { registry, had_credentials }
            }
            OciDistributionError::ImageManifestNotFoundError(_) => Self::NotFound { registry },
            OciDistributionError::ServerError { code, .. } => by_status(*code, registry, error),
            OciDistributionError::RegistryError { envelope, .. } => {
                let code = match envelope.errors.first().map(|error| &error.code) {
                    Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => 401,
                    Some(OciErrorCode::Toomanyrequests) => 429,
                    Some(
                        OciErrorCode::ManifestUnknown
                        | OciErrorCode::NameUnknown
                        | OciErrorCode::NotFound
                        | OciErrorCode::BlobUnknown,
                    ) => 404,
                    _ => 400,
                };
                by_status(code, registry, error)
            }
            OciDistributionError::RequestError(_) | OciDistributionError::IoError(_) => {
                Self::Unreachable { registry, source: error }
            }
            _ => Self::Other { registry, source: error },
        }
    }

    /// Whether the same request may well succeed a moment later.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Stalled { .. })
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Unauthorized { .. } | Self::Credentials { .. } => ErrorKind::Unauthorized,
            Self::RateLimited { .. } | Self::Unreachable { .. } | Self::Stalled { .. } | Self::Broken { .. } => {
                ErrorKind::Unavailable
            }
            Self::TooLong { .. } | Self::DigestMismatch { .. } => ErrorKind::Corrupt,
            Self::Digest(_) => ErrorKind::Refused,
            Self::Io { path, source } => {
                let again = io::Error::from(source.kind());
                UnpackError::io("use", path.clone(), again).kind()
            }
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Other { .. } => ErrorKind::Other,
        }
    }
}
