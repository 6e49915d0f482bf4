//! Sandboxes: made, listed, looked at, killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_api::error::ErrorCode;
use brood_api::types::{CreateSandboxes, SetTimeout};
use brood_sandbox::engine::Engine;
use brood_sandbox::error::EngineError;
use brood_sandbox::ids::{SANDBOX_ID_LENGTH, SandboxId};
use brood_sandbox::limits::CREATE_COUNT_MAX;
use brood_sandbox::model::{NetworkRequest, SandboxInfo, SandboxState, SandboxStats};
use brood_sandbox::sandbox::Sandbox;

use super::NativeState;
use super::checkpoints::refused;
use super::failure::{Failure, Input, blocking};

/// Threads that one request creates sandboxes with, for each processor: they wait as much as they work.
const CREATORS_PER_PROCESSOR: usize = 2;

/// The sandbox with this id, or with the only id that begins so.
pub(super) fn find(engine: &Engine, text: &str) -> Result<Arc<Sandbox>, Failure> {
    if text.len() == SANDBOX_ID_LENGTH || text.is_empty() {
        return Ok(engine.sandbox(&text.parse::<SandboxId>()?)?);
    }
    if text.len() > SANDBOX_ID_LENGTH || !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        return Err(text.parse::<SandboxId>().map_or_else(Failure::from, |_| Failure::invalid("no id")));
    }
    let mut matching = engine.sandboxes();
    matching.retain(|sandbox| sandbox.id().as_str().starts_with(text));
    match matching.len() {
        1 => Ok(matching.remove(0)),
        0 => {
            Err(Failure::new(ErrorCode::NotFound, format!("no sandbox {text}; `brood ps` lists those that there are"))
                .about(text))
        }
        count => Err(Failure::invalid(format!("{count} sandboxes have ids that begin with {text}; write more of it"))
            .about(text)),
    }
}

pub(super) async fn list(State(state): State<NativeState>) -> Json<Vec<SandboxInfo>> {
    let live = state.engine().sandboxes();
    Json(live.iter().map(|sandbox| sandbox.info()).chain(state.engine().paused()).collect())
}

pub(super) async fn create(
    State(state): State<NativeState>,
    Input(CreateSandboxes { request, count }): Input<CreateSandboxes>,
) -> Result<(StatusCode, Json<Vec<SandboxInfo>>), Failure> {
    check_count(count)?;
    let engine = Arc::clone(state.engine());
    let sandboxes = blocking(move || make_all(count, || engine.create(request.clone()))).await?;
    Ok((StatusCode::CREATED, Json(sandboxes.iter().map(|sandbox| sandbox.info()).collect())))
}

pub(super) fn check_count(count: u32) -> Result<(), Failure> {
    if (1..=CREATE_COUNT_MAX).contains(&count) {
        return Ok(());
    }
    Err(Failure::invalid(format!("{count} sandboxes at once; 1 to {CREATE_COUNT_MAX} are possible")))
}

/// Makes all or none. Each is made from start to end by one thread.
pub(super) fn make_all(
    count: u32,
    make: impl Fn() -> Result<Arc<Sandbox>, EngineError> + Sync,
) -> Result<Vec<Arc<Sandbox>>, EngineError> {
    if count == 1 {
        return Ok(vec![make()?]);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let creators = (processors * CREATORS_PER_PROCESSOR).min(count as usize);
    let left = AtomicU32::new(count);
    let failed = AtomicBool::new(false);
    let take = || {
        let one = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        one.is_ok() && !failed.load(Ordering::Relaxed)
    };
    let create_some = || {
        let mut made = Vec::new();
        while take() {
            match make() {
                Ok(sandbox) => made.push(sandbox),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    return (made, Some(error));
                }
            }
        }
        (made, None)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..creators).map(|_| scope.spawn(create_some)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (made, errors): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let made: Vec<_> = made.into_iter().flatten().collect();
    if made.len() == count as usize {
        return Ok(made);
    }
    for sandbox in &made {
        if let Err(error) = sandbox.kill() {
            tracing::warn!(sandbox = %sandbox.id(), error = error.chain(), "one of an incomplete set is left");
        }
    }
    let panicked =
        || EngineError::new(brood_sandbox::error::ErrorKind::Internal, "creating one of the sandboxes failed");
    Err(errors.into_iter().flatten().next().unwrap_or_else(panicked))
}

pub(super) async fn inspect(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SandboxInfo>, Failure> {
    match find_paused(state.engine(), &id) {
        Some(info) => Ok(Json(info)),
        None => Ok(Json(find(state.engine(), &id)?.info())),
    }
}

/// The only paused sandbox whose id begins so.
fn find_paused(engine: &Engine, text: &str) -> Option<SandboxInfo> {
    let mut matching = engine.paused();
    matching.retain(|info| info.id.as_str().starts_with(text));
    matching.pop().filter(|_| matching.is_empty() && !text.is_empty())
}

pub(super) async fn pause(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SandboxInfo>, Failure> {
    let id = find(state.engine(), &id)?.id().clone();
    let engine = Arc::clone(state.engine());
    blocking(move || engine.pause(&id)).await.map(Json).map_err(refused)
}

pub(super) async fn resume(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SandboxInfo>, Failure> {
    let id = find_paused(state.engine(), &id).map_or_else(|| id.parse::<SandboxId>(), |info| Ok(info.id))?;
    let engine = Arc::clone(state.engine());
    let sandbox = blocking(move || engine.resume(&id)).await?;
    Ok(Json(sandbox.info()))
}

pub(super) async fn kill(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SandboxInfo>, Failure> {
    let engine = Arc::clone(state.engine());
    if let Some(info) = find_paused(&engine, &id) {
        let id = info.id.clone();
        blocking(move || engine.kill(&id)).await?;
        return Ok(Json(SandboxInfo { state: SandboxState::Dead, ..info }));
    }
    let sandbox = find(&engine, &id)?;
    let victim = Arc::clone(&sandbox);
    blocking(move || engine.kill(victim.id())).await?;
    Ok(Json(sandbox.info()))
}

pub(super) async fn stats(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SandboxStats>, Failure> {
    let sandbox = find(state.engine(), &id)?;
    blocking(move || sandbox.stats()).await.map(Json)
}

pub(super) async fn set_timeout(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Input(SetTimeout { timeout_ms }): Input<SetTimeout>,
) -> Result<StatusCode, Failure> {
    find(state.engine(), &id)?.set_timeout(timeout_ms.map(Duration::from_millis))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn set_network(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Input(request): Input<NetworkRequest>,
) -> Result<Json<NetworkRequest>, Failure> {
    let sandbox = find(state.engine(), &id)?;
    blocking(move || sandbox.set_network(request.clone()).map(|()| Json(request))).await
}
