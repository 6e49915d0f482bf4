//! The code interpreter: what clients reach on port 49999.
//!
//! `dispatch` has found the sandbox and checked the traffic token, if the sandbox has one, before
//! [`serve`] is called. The envd token (`X-Access-Token`) comes with `/execute` alone.

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};

use super::E2bState;
use super::dispatch::Reached;
use super::failure::RouteFailure;

/// Answers a request to the code interpreter of a sandbox.
pub(super) async fn serve(_state: &E2bState, reached: Reached, _request: Request) -> Response {
    RouteFailure::PortClosed(reached.id(), reached.port).into_response()
}
