//! The native interface: everything that the command line does, under `/brood/v1`.
//!
//! `docs/native-api.md` describes it. Failures are [`ErrorBody`](brood_api::ErrorBody) as JSON.
//! Sandboxes may be named by a unique beginning of their id.

mod archive;
mod build;
mod checkpoints;
mod failure;
mod follow;
mod groups;
mod memory;
mod outbound;
mod ports;
mod processes;
mod pump;
mod sandboxes;
mod session;
mod templates;

use std::future::Future;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use brood_api::error::ErrorCode;
use brood_api::types::{PREFIX, VersionInfo};
use brood_sandbox::engine::Engine;
use tokio::sync::{mpsc, watch};

use failure::Failure;

/// Longest JSON body: the kernel's longest argument list, escaped.
const JSON_BODY_BYTES_MAX: usize = 16 << 20;
/// Version of the interface; it changes when an older client would no longer understand.
const API_VERSION: u32 = 1;

/// What all handlers share.
#[derive(Debug, Clone)]
pub struct NativeState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    version: &'static str,
    started_ms: u64,
    /// Turns true when a client asks the daemon to end.
    shutdown: watch::Sender<bool>,
    /// Turns true when the engine is gone and streams that would go on must end.
    ended: watch::Sender<bool>,
    /// Cloned into each process session; closed once none is left.
    sessions: std::sync::Mutex<Option<mpsc::Sender<()>>>,
    sessions_gone: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl NativeState {
    /// The state of an interface to this engine.
    pub fn new(engine: Arc<Engine>, version: &'static str) -> Self {
        let (sessions, sessions_gone) = mpsc::channel(1);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self(Arc::new(Shared {
            engine,
            version,
            started_ms: u64::try_from(now_ms).unwrap_or(u64::MAX),
            shutdown: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            sessions: std::sync::Mutex::new(Some(sessions)),
            sessions_gone: tokio::sync::Mutex::new(sessions_gone),
        }))
    }

    /// Ends when a client asks the daemon to end.
    pub fn shutdown_asked(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut asked = self.0.shutdown.subscribe();
        async move {
            // The sender lives as long as this state; should it go, nobody can ask any more.
            if asked.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// To be called when the engine is gone: ends streams that would go on, and waits until the
    /// process sessions have told their clients how their processes ended.
    pub async fn drain(&self) {
        self.0.ended.send_replace(true);
        drop(self.0.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        while self.0.sessions_gone.lock().await.recv().await.is_some() {}
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Kept by a session as long as it lives; none once the daemon ends.
    fn session_guard(&self) -> Option<mpsc::Sender<()>> {
        self.0.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn ended(&self) -> watch::Receiver<bool> {
        self.0.ended.subscribe()
    }
}

/// The native interface.
pub fn router(state: NativeState) -> Router {
    let archive = Router::new()
        .route("/sandboxes/{id}/archive", get(archive::copy_out).put(archive::copy_in))
        .layer(DefaultBodyLimit::disable());
    let routes = Router::new()
        .route("/version", get(version))
        .route("/shutdown", post(shutdown))
        .route("/templates", get(templates::list).post(build::build))
        .route("/templates/{name}", get(templates::inspect).delete(templates::remove))
        .route("/templates/{name}/history", get(templates::history))
        .route("/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/sandboxes/{id}", get(sandboxes::inspect).delete(sandboxes::kill))
        .route("/sandboxes/{id}/stats", get(sandboxes::stats))
        .route("/sandboxes/{id}/timeout", put(sandboxes::set_timeout))
        .route("/sandboxes/{id}/network", put(sandboxes::set_network))
        .route("/sandboxes/{id}/look-ups", get(groups::look_ups))
        .route("/sandboxes/{id}/ports/{port}", get(ports::connect))
        .route("/groups", get(groups::list).post(groups::create))
        .route("/groups/{name}", axum::routing::delete(groups::remove))
        .route("/sandboxes/{id}/checkpoints", post(checkpoints::take))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/rollback", post(checkpoints::rollback))
        .route("/sandboxes/{id}/squeeze", post(memory::squeeze))
        .route("/sandboxes/{id}/restore-pages", post(memory::restore_pages))
        .route("/forks", post(checkpoints::fork))
        .route("/checkpoints", get(checkpoints::list))
        .route("/checkpoints/{checkpoint}", get(checkpoints::inspect).delete(checkpoints::remove))
        .route("/diff", get(checkpoints::diff))
        .route("/sandboxes/{id}/logs", get(follow::logs))
        .route("/sandboxes/{id}/processes", get(processes::list).post(processes::start))
        .route("/sandboxes/{id}/processes/{process}", get(processes::inspect).delete(processes::kill))
        .route("/sandboxes/{id}/processes/{process}/signal", post(processes::signal))
        .route("/sandboxes/{id}/processes/{process}/attach", get(processes::attach))
        .route("/sandboxes/{id}/files/stat", get(archive::stat))
        .route("/events", get(follow::events))
        .layer(DefaultBodyLimit::max(JSON_BODY_BYTES_MAX))
        .merge(archive);
    Router::new()
        .nest(PREFIX, routes)
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_route)
        .with_state(state)
}

async fn version(State(state): State<NativeState>) -> Json<VersionInfo> {
    Json(VersionInfo {
        version: state.0.version.to_owned(),
        api: API_VERSION,
        pid: std::process::id(),
        started_ms: state.0.started_ms,
    })
}

async fn shutdown(State(state): State<NativeState>) -> StatusCode {
    state.0.shutdown.send_replace(true);
    StatusCode::ACCEPTED
}

async fn unknown_route(method: axum::http::Method, uri: axum::http::Uri) -> Failure {
    Failure::new(ErrorCode::UnknownRoute, format!("the interface has no {method} {}", uri.path()))
}

/// An answer of one JSON value a line.
fn json_lines(body: axum::body::Body) -> Response {
    let mut response = Response::new(body);
    let kind = axum::http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(axum::http::header::CONTENT_TYPE, kind);
    response
}
