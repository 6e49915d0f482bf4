//! Failures as they travel and as a client sees them.

use std::io;
use std::path::PathBuf;

use brood_sandbox::error::{EngineError, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::frame::FrameError;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ErrorBody {
    /// What kind of failure it is, for programs.
    pub code: ErrorCode,
    /// What went wrong, for people.
    pub message: String,
    /// The sandbox, template, process or path that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Kinds of failure, as words that stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No such sandbox, template, process or file.
    NotFound,
    /// It exists already, is in use, or is being made.
    Conflict,
    /// The request itself is wrong.
    Invalid,
    /// The command exists but cannot be executed.
    NotExecutable,
    /// The command does not exist.
    CommandNotFound,
    /// The host lacks the room.
    Exhausted,
    /// The host lacks a feature.
    Unsupported,
    /// The interface has no such path or method.
    UnknownRoute,
    /// Anything else.
    Internal,
}

impl From<ErrorKind> for ErrorCode {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::NotExecutable => Self::NotExecutable,
            ErrorKind::CommandNotFound => Self::CommandNotFound,
            ErrorKind::Exhausted => Self::Exhausted,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Internal => Self::Internal,
        }
    }
}

impl ErrorCode {
    /// HTTP's status for it.
    pub fn status(self) -> u16 {
        match self {
            Self::NotFound | Self::UnknownRoute => 404,
            Self::Conflict => 409,
            Self::Invalid => 400,
            Self::NotExecutable | Self::CommandNotFound => 422,
            Self::Exhausted => 507,
            Self::Unsupported => 501,
            Self::Internal => 500,
        }
    }

    fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Exhausted => Some("free disk space, memory or descriptors of the host, then try again"),
            Self::Unsupported => Some("`brood doctor` tells what the host lacks and how to mend it"),
            _ => None,
        }
    }
}

impl ErrorBody {
    /// A failure of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), object: None, remedy: code.remedy().map(str::to_owned) }
    }

    /// Names what it is about.
    #[must_use]
    pub fn about(mut self, object: impl Into<String>) -> Self {
        self.object.get_or_insert_with(|| object.into());
        self
    }

    /// Says what to do, unless it says so already.
    #[must_use]
    pub fn remedied_by(mut self, remedy: impl Into<String>) -> Self {
        self.remedy.get_or_insert_with(|| remedy.into());
        self
    }
}

impl From<&EngineError> for ErrorBody {
    fn from(error: &EngineError) -> Self {
        Self::new(error.kind().into(), error.chain())
    }
}

impl From<EngineError> for ErrorBody {
    fn from(error: EngineError) -> Self {
        Self::from(&error)
    }
}

/// What a client's call can fail with.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nothing listens on the socket.
    #[error("no daemon answers on {}", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The daemon refused or failed.
    #[error(transparent)]
    Remote(#[from] ErrorBody),
    /// The connection broke.
    #[error("the connection to the daemon broke")]
    Broken(#[source] io::Error),
    /// HTTP went wrong.
    #[error("the daemon's answer was cut short")]
    Http(#[from] hyper::Error),
    /// The daemon said something that this client does not understand.
    #[error("the daemon sent {0}; are both of the same version?")]
    Protocol(String),
    /// Something could not be put into JSON or read from it.
    #[error("JSON that does not fit")]
    Json(#[from] serde_json::Error),
}

impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<FrameError> for ApiError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_keeps_its_words() {
        let body = ErrorBody::new(ErrorCode::Exhausted, "disk full").about("abc");
        let text = serde_json::to_string(&body).unwrap();
        assert!(text.contains(r#""code":"exhausted""#), "{text}");
        assert_eq!(serde_json::from_str::<ErrorBody>(&text).unwrap(), body);
    }
}
