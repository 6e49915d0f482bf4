//! Who may use the control plane: holders of an API key.

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::E2bState;
use super::failure::Failure;

/// Most of a refused request that is read before the answer.
const DRAINED_BYTES_MAX: usize = 64 << 10;
/// The owner of everything that is made without a key.
pub(super) const ANONYMOUS: &str = "anonymous";

/// The id of the key that a request came with.
#[derive(Debug, Clone)]
pub(super) struct KeyId(pub(super) String);

/// Lets requests with a valid key through.
pub(super) async fn check(State(state): State<E2bState>, mut request: Request, next: Next) -> Response {
    let id = match given(request.headers()) {
        Some(key) => state.keys().find(key),
        None => None,
    };
    let id = match id {
        Some(id) => id,
        None if state.settings().anonymous => ANONYMOUS.to_owned(),
        None => {
            // An unread request would cost the client its connection.
            drop(axum::body::to_bytes(request.into_body(), DRAINED_BYTES_MAX).await);
            let message = "the API key is missing or not valid; `brood key create` makes one";
            return Failure::new(StatusCode::UNAUTHORIZED, message).into_response();
        }
    };
    if !state.counts().may_send(&id) {
        let mut response =
            Failure::new(StatusCode::TOO_MANY_REQUESTS, "too many requests with this key").into_response();
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    request.extensions_mut().insert(KeyId(id));
    next.run(request).await
}

/// The key, from either of the headers that clients use.
fn given(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok();
    }
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
