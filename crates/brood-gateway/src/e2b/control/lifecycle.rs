//! The life of a sandbox after its creation: prolonged, connected to, killed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_sandbox::error::ErrorKind;
use brood_sandbox::ids::SandboxId;
use brood_sandbox::model::SandboxInfo;
use brood_sandbox::sandbox::Sandbox;
use serde::Deserialize;

use super::create::timeout;
use super::views::Created;
use super::{Answer, Input};
use crate::e2b::E2bState;
use crate::e2b::failure::Failure;
use crate::e2b::time::now_ms;

/// Life given by connect when the client does not say, in seconds.
const CONNECT_TIMEOUT_S: i64 = 300;

#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    timeout: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Refresh {
    #[serde(default)]
    duration: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Connect {
    #[serde(default)]
    timeout: Option<i64>,
}

/// The live sandbox that a path names.
pub(super) fn find(state: &E2bState, id: &str) -> Result<Arc<Sandbox>, Failure> {
    let plain = id.split_once('-').map_or(id, |(id, _client)| id);
    let known: SandboxId = plain.parse().map_err(|_| Failure::no_sandbox(id))?;
    state.engine().sandbox(&known).map_err(|_| Failure::no_sandbox(id))
}

/// The paused sandbox that a path names.
pub(super) fn find_paused(state: &E2bState, id: &str) -> Option<SandboxInfo> {
    let plain = id.split_once('-').map_or(id, |(id, _client)| id);
    state.engine().paused().into_iter().find(|info| info.id.as_str() == plain)
}

pub(super) async fn kill(State(state): State<E2bState>, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let plain = id.split_once('-').map_or(&*id, |(id, _client)| id);
    let victim: SandboxId = plain.parse().map_err(|_| Failure::no_sandbox(&id))?;
    let engine = Arc::clone(state.engine());
    let killed = tokio::task::spawn_blocking(move || engine.kill(&victim)).await;
    match killed {
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Err(Failure::no_sandbox(&id)),
        Ok(Err(error)) => Err(error.into()),
        _ => {
            state.records().remove(plain);
            Ok(StatusCode::NO_CONTENT)
        }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Pause {
    #[serde(default)]
    memory: Option<bool>,
}

pub(super) async fn pause(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Pause>,
) -> Result<StatusCode, Failure> {
    if asked.memory == Some(false) {
        return Err(Failure::invalid("pausing without memory is not supported by this server"));
    }
    let sandbox = match find(&state, &id) {
        Ok(sandbox) => sandbox,
        Err(_) if find_paused(&state, &id).is_some() => {
            return Err(Failure::conflict(format!("Sandbox {id} is already paused")));
        }
        Err(failure) => return Err(failure),
    };
    state.pause(sandbox.id()).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn resume(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Connect>,
) -> Answer<Created> {
    if find(&state, &id).is_ok() {
        return Err(Failure::conflict(format!("Sandbox {id} is already running")));
    }
    connect(State(state), Path(id), Input(asked)).await
}

pub(super) async fn set_timeout(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Timeout>,
) -> Result<StatusCode, Failure> {
    let sandbox = find(&state, &id)?;
    state.set_end(&sandbox, timeout(asked.timeout)?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// An older way to prolong a life; it never shortens one.
pub(super) async fn refresh(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Refresh>,
) -> Result<StatusCode, Failure> {
    let sandbox = find(&state, &id)?;
    extend(&state, &sandbox, asked.duration.unwrap_or(CONNECT_TIMEOUT_S))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn connect(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Connect>,
) -> Answer<Created> {
    let seconds = asked.timeout.unwrap_or(CONNECT_TIMEOUT_S);
    let lives = timeout(seconds)?;
    let (status, sandbox) = match find(&state, &id) {
        Ok(sandbox) => {
            extend(&state, &sandbox, seconds)?;
            (StatusCode::OK, sandbox)
        }
        Err(failure) => {
            let paused = find_paused(&state, &id).ok_or(failure)?;
            (StatusCode::CREATED, state.resume(&paused.id, lives).await?)
        }
    };
    let record = state.records().of(&sandbox);
    Ok((status, Json(Created::of(&state, sandbox.id().as_str(), &record))))
}

/// Sets the end so many seconds from now, unless it is later already.
fn extend(state: &E2bState, sandbox: &Arc<Sandbox>, seconds: i64) -> Result<(), Failure> {
    let timeout = timeout(seconds)?;
    let ends_ms = now_ms().saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    let record = state.records().of(sandbox);
    match record.ends_ms.or(sandbox.info().expires_ms) {
        // No end at all is the latest one.
        None => Ok(()),
        Some(later) if later >= ends_ms => Ok(()),
        Some(_) => state.set_end(sandbox, timeout),
    }
}
