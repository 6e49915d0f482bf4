//! Tells the two planes apart, and finds the sandbox that traffic is for.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::ids::SandboxId;
use brood_sandbox::sandbox::Sandbox;
use tower::ServiceExt as _;

use super::deadline::WOKEN_FOR;
use super::edge::{Plane, Seen};
use super::failure::{Failure, RouteFailure};
use super::record::Record;
use super::target::Target;
use super::tokens::Purpose;
use super::{E2bState, envd, ports};

/// Port of files and processes.
pub(super) const ENVD_PORT: u16 = 49983;
/// Port of the code interpreter, which is a server inside like any other, but runs code.
pub(super) const INTERPRETER_PORT: u16 = 49999;
/// Header with the token for files and processes.
pub(super) const ACCESS_TOKEN_HEADER: &str = "x-access-token";
/// Header with the token for all other ports.
pub(super) const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";

/// Both planes.
#[derive(Debug, Clone)]
pub(super) struct Planes {
    pub(super) state: E2bState,
    pub(super) control: Router,
}

/// A live sandbox that a request has reached.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) record: Arc<Record>,
    pub(super) port: u16,
}

impl Reached {
    pub(super) fn id(&self) -> &str {
        self.sandbox.id().as_str()
    }
}

/// Every request comes here first.
pub(super) async fn dispatch(State(planes): State<Planes>, request: Request) -> Response {
    let seen = Seen::of(&request);
    let state = planes.state.clone();
    let (plane, mut response) = route(planes, request).await;
    let status = response.status();
    seen.answered(&state, plane, status, response.headers_mut());
    response
}

async fn route(planes: Planes, request: Request) -> (Plane, Response) {
    let state = &planes.state;
    let target = match Target::of(request.uri(), request.headers()) {
        Ok(Some(target)) => target,
        Ok(None) => {
            if let Some(reached) = envd::signed_file_target(state, &request) {
                return (Plane::Envd, envd::serve(state, reached, request).await);
            }
            if envd::is_signed_file(&request) {
                let message = "the signature fits no sandbox";
                return (Plane::Envd, Failure::new(StatusCode::UNAUTHORIZED, message).into_response());
            }
            // The router's error type has no values.
            let Ok(response) = planes.control.oneshot(request).await;
            return (Plane::Control, response);
        }
        Err(bad) => return (Plane::Port, RouteFailure::BadTarget(bad.0).into_response()),
    };
    let plane = match target.port {
        ENVD_PORT => Plane::Envd,
        INTERPRETER_PORT => Plane::Interpreter,
        _ => Plane::Port,
    };
    let Some(reached) = reach(state, &target).await else {
        return (plane, RouteFailure::NoSandbox(&target.id).into_response());
    };
    if plane != Plane::Envd && !may_pass(state, &reached, &request) {
        return (plane, RouteFailure::Forbidden(reached.id()).into_response());
    }
    let response = match plane {
        Plane::Envd => envd::serve(state, reached, request).await,
        Plane::Interpreter | Plane::Port | Plane::Control => ports::serve(reached, request).await,
    };
    (plane, response)
}

/// The sandbox, if it lives, or is paused and wants to be woken by traffic.
async fn reach(state: &E2bState, target: &Target) -> Option<Reached> {
    let id: SandboxId = target.id.parse().ok()?;
    let sandbox = match state.engine().sandbox(&id) {
        Ok(sandbox) => sandbox,
        Err(_) if state.records().find(id.as_str()).is_some_and(|record| record.auto_resume) => {
            match state.resume(&id, WOKEN_FOR).await {
                Ok(sandbox) => sandbox,
                Err(failure) => {
                    tracing::warn!(sandbox = %id, reason = failure.message, "traffic could not wake a sandbox");
                    return None;
                }
            }
        }
        Err(_) => return None,
    };
    let record = state.records().of(&sandbox);
    Some(Reached { sandbox, record, port: target.port })
}

/// Whether the request may reach a port other than envd's.
///
/// The interpreter runs code, so that it asks for a token whenever envd does. Its clients send
/// envd's token with some calls and the one for traffic with others.
fn may_pass(state: &E2bState, reached: &Reached, request: &Request) -> bool {
    let given = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let fits = |purpose, name| given(name).is_some_and(|token| state.tokens().fits(purpose, reached.id(), token));
    match reached.port {
        INTERPRETER_PORT if reached.record.secure => {
            fits(Purpose::Traffic, TRAFFIC_TOKEN_HEADER) || fits(Purpose::Envd, ACCESS_TOKEN_HEADER)
        }
        _ => reached.record.public_traffic || fits(Purpose::Traffic, TRAFFIC_TOKEN_HEADER),
    }
}
