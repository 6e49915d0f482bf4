//! The control plane: sandboxes and templates as REST.

mod builds;
mod create;
mod idempotency;
mod lifecycle;
mod listing;
mod network;
mod observe;
mod plan;
mod snapshots;
mod templates;
mod views;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::{E2bState, auth};

pub(super) use builds::Builds;
pub(super) use idempotency::Idempotency;
pub(super) use observe::{Samples, sample};
pub(super) use snapshots::Snapshots;

/// Longest JSON body: definitions of templates with many steps fit many times.
const JSON_BODY_BYTES_MAX: usize = 4 << 20;
/// Longest text of a refusal.
const REFUSAL_BYTES_MAX: usize = 4096;

/// The control plane.
pub(super) fn router(state: E2bState) -> Router {
    let guarded = Router::new()
        .route("/sandboxes", get(listing::list_running).post(create::create_v1))
        .route("/v2/sandboxes", get(listing::list).post(create::create_v2))
        .route("/sandboxes/metrics", get(observe::metrics_of_many))
        .route("/sandboxes/{id}", get(listing::inspect).delete(lifecycle::kill))
        .route("/sandboxes/{id}/timeout", post(lifecycle::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(lifecycle::refresh))
        .route("/sandboxes/{id}/connect", post(lifecycle::connect))
        .route("/v2/sandboxes/{id}/connect", post(lifecycle::connect))
        .route("/sandboxes/{id}/pause", post(lifecycle::pause))
        .route("/sandboxes/{id}/resume", post(lifecycle::resume))
        .route("/sandboxes/{id}/fork", post(snapshots::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::take))
        .route("/snapshots", get(snapshots::list))
        .route("/templates", get(builds::list).post(builds::register))
        .route("/v2/templates", get(builds::list).post(builds::register))
        .route("/v3/templates", post(builds::register))
        .route("/templates/tags", post(builds::assign_tags).delete(builds::remove_tags))
        .route("/templates/aliases/{alias}", get(builds::alias))
        .route("/templates/{id}", get(builds::inspect).delete(templates::remove))
        .route("/templates/{id}/tags", get(builds::tags))
        .route("/templates/{id}/files/{hash}", get(builds::upload_link))
        .route("/templates/{id}/builds/{build}/status", get(builds::status))
        .route("/v2/templates/{id}/builds/{build}", post(builds::start))
        .route("/sandboxes/{id}/network", put(network::replace))
        .route("/sandboxes/{id}/metrics", get(observe::metrics))
        .route("/sandboxes/{id}/logs", get(observe::logs_v1))
        .route("/v2/sandboxes/{id}/logs", get(observe::logs_v2))
        .route("/metrics", get(counts))
        .layer(DefaultBodyLimit::max(JSON_BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(state.clone(), auth::check));
    Router::new()
        .route("/health", get(health))
        .route("/uploads/{hash}", put(builds::upload).layer(DefaultBodyLimit::disable()))
        .merge(guarded)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::map_response(in_our_form))
        .with_state(state)
}

async fn health() -> &'static str {
    "OK"
}

/// Refusals that the framework makes by itself, before a handler, are put into the form that clients read.
async fn in_our_form(response: Response) -> Response {
    let status = response.status();
    let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    if status.as_u16() < 400 || response.headers().get(CONTENT_TYPE).is_some_and(is_json) {
        return response;
    }
    let told = axum::body::to_bytes(response.into_body(), REFUSAL_BYTES_MAX).await.unwrap_or_default();
    let told = String::from_utf8_lossy(&told).into_owned();
    Failure::new(status, if told.is_empty() { status.to_string() } else { told }).into_response()
}

/// For Prometheus, which can send a key as its bearer token.
async fn counts(State(state): State<E2bState>) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], state.counts().text(&state))
}

async fn unknown_route(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    Failure::not_found(format!("there is no {method} {path}"))
}

async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} takes no {method}"))
}

/// A JSON body. No body at all is the same as an empty object, since clients leave it out.
#[derive(Debug)]
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Failure::new(error.status(), format!("the body cannot be read: {}", error.body_text())))?;
        parse(&bytes).map(Self)
    }
}

/// Reads a JSON body, whatever its content type says.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| Failure::invalid(format!("the body does not fit: {error}")))
}

/// The query of a request; what does not fit is refused in the usual form.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> axum::extract::FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Failure> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(error) => Err(Failure::invalid(error.body_text())),
        }
    }
}

/// The answer of a call that succeeded with this status.
type Answer<T> = Result<(StatusCode, Json<T>), Failure>;
