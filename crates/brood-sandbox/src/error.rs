//! What can go wrong, told so that the reader knows which object is meant and what to do.

use std::io;

/// What kind of failure it is, for callers that branch: the command line's exit codes and HTTP's
/// status codes are made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No such sandbox, template, process or file.
    NotFound,
    /// It exists already, or is being made.
    Conflict,
    /// The request itself is wrong.
    Invalid,
    /// The command exists but cannot be executed (a shell's 126).
    NotExecutable,
    /// The command does not exist (a shell's 127).
    CommandNotFound,
    /// The host lacks the room: disk, memory, descriptors.
    Exhausted,
    /// The host lacks a feature; `brood doctor` tells how to mend it.
    Unsupported,
    /// Anything else.
    Internal,
}

/// A failure of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl EngineError {
    /// An error without a deeper cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error with the cause beneath it; the message must not repeat the cause.
    pub fn caused_by(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// An operating system error, whose kind follows from its number.
    pub fn system(message: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
                ErrorKind::Exhausted
            }
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::AGAIN) => {
                    ErrorKind::Exhausted
                }
                _ => ErrorKind::Internal,
            },
        };
        Self { kind, message: message.into(), source: Some(Box::new(source)) }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message and all causes beneath it, one after the other.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl From<crate::ids::InvalidName> for EngineError {
    fn from(error: crate::ids::InvalidName) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

/// The engine's usual result.
pub type Result<T> = std::result::Result<T, EngineError>;
