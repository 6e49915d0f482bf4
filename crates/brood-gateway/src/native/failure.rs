//! Failures as answers, and the extractor and helper that all handlers use.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use brood_api::ErrorBody;
use brood_api::error::ErrorCode;
use brood_sandbox::error::EngineError;
use serde::de::DeserializeOwned;

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure(pub(super) ErrorBody);

impl Failure {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(ErrorBody::new(code, message))
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }

    pub(super) fn about(self, object: impl Into<String>) -> Self {
        Self(self.0.about(object))
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self(error.into())
    }
}

impl From<brood_sandbox::ids::InvalidName> for Failure {
    fn from(error: brood_sandbox::ids::InvalidName) -> Self {
        Self::invalid(error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// A JSON body; what does not fit is refused with the place where it does not.
#[derive(Debug)]
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Failure::invalid(format!("the body cannot be read: {}", error.body_text())))?;
        parse(&bytes).map(Self)
    }
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::invalid(format!("the body does not fit: {error}")))
}

/// Runs an engine call that may wait, on a thread where waiting harms nobody.
pub(super) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => Ok(result?),
        Err(error) => {
            tracing::error!(%error, "an engine call panicked");
            Err(Failure::new(ErrorCode::Internal, "the engine failed in a way that it should not; its log tells more"))
        }
    }
}
