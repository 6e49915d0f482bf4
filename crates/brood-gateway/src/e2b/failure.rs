//! Failures in the forms that the clients read.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use brood_sandbox::error::{EngineError, ErrorKind};
use serde::Serialize;
use serde_json::json;

/// Tells clients that trying again within seconds is no use.
const SHOULD_RETRY: &str = "should-retry";

/// A failure of the control plane: `{"code", "message"}` with the code of the status.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) message: String,
    error_code: Option<&'static str>,
}

/// The body of a failure.
#[derive(Debug, Serialize)]
pub(super) struct ErrorObject {
    code: u16,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The body that tells of it.
    pub(super) fn object(self) -> ErrorObject {
        ErrorObject { code: self.status.as_u16(), message: self.message, error_code: self.error_code }
    }

    pub(super) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::not_found(format!("Sandbox {shown} not found"))
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let (status, error_code) = match error.kind() {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, None),
            ErrorKind::Conflict => (StatusCode::CONFLICT, None),
            ErrorKind::Invalid | ErrorKind::NotExecutable | ErrorKind::CommandNotFound => {
                (StatusCode::BAD_REQUEST, None)
            }
            ErrorKind::Exhausted => (StatusCode::SERVICE_UNAVAILABLE, Some("sandbox_capacity_unavailable")),
            ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, None),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, Some("internal_server_error")),
        };
        Self { error_code, ..Self::new(status, error.chain()) }
    }
}

impl From<super::StoreError> for Failure {
    fn from(error: super::StoreError) -> Self {
        tracing::error!(%error, "the gateway's database failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(self.object())).into_response();
        // A host that is full stays so for longer than a client would try.
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

/// A failure on the way to a sandbox, in the form of the official proxy. The clients look for
/// parts of the messages.
#[derive(Debug)]
pub(super) enum RouteFailure<'a> {
    /// No such sandbox, or it was killed or paused.
    NoSandbox(&'a str),
    /// Nothing listens on the port.
    PortClosed(&'a str, u16),
    /// What listens there closed the connection, or spoke no HTTP.
    NoAnswer(&'a str, u16),
    /// The token for ports is wrong or missing.
    Forbidden(&'a str),
    /// The request does not say where it goes.
    BadTarget(&'static str),
}

impl IntoResponse for RouteFailure<'_> {
    fn into_response(self) -> Response {
        let (status, body) = match self {
            Self::NoSandbox(id) => {
                let body = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
                (StatusCode::BAD_GATEWAY, body)
            }
            Self::PortClosed(id, port) => {
                let message = "The sandbox is running but port is not open";
                let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
                (StatusCode::BAD_GATEWAY, body)
            }
            Self::NoAnswer(id, port) => {
                let message = "The server on the port gave no HTTP answer";
                let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
                (StatusCode::BAD_GATEWAY, body)
            }
            Self::Forbidden(id) => {
                let message = "The traffic access token is missing or wrong";
                (StatusCode::FORBIDDEN, json!({ "sandboxId": id, "message": message, "code": 403 }))
            }
            Self::BadTarget(message) => {
                return (StatusCode::BAD_REQUEST, Body::from(message)).into_response();
            }
        };
        (status, Json(body)).into_response()
    }
}

/// Runs an engine call that may wait, on a thread where waiting harms nobody.
pub(super) async fn blocking<T: Send + 'static, E: Into<Failure> + Send + 'static>(
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result.map_err(Into::into),
        Err(error) => {
            tracing::error!(%error, "an engine call panicked");
            let message = "the engine failed in a way that it should not; its log tells more";
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
    }
}
