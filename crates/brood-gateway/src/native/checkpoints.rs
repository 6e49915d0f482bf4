//! Checkpoints: taken, put back to, forked, compared, listed, removed.
//!
//! A capture or restore belongs to the thread that began it, since the kernel lets only the tracing
//! thread work on a task: each is one call of the engine inside [`blocking`].

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use brood_api::error::ErrorCode;
use brood_api::types::{FileChange, FileChangeKind, Fork, Rollback, TakeCheckpoint};
use brood_deltafs::{Change, ChangeKind};
use brood_sandbox::checkpoint::CheckpointInfo;
use brood_sandbox::engine::Engine;
use brood_sandbox::error::EngineError;
use brood_sandbox::ids::{SandboxId, TemplateName};
use brood_sandbox::model::{CreateRequest, SandboxInfo};
use brood_sandbox::sandbox::Sandbox;
use serde::Deserialize;

use super::failure::{Failure, Input, blocking};
use super::sandboxes::{self, check_count, make_all};
use super::{NativeState, json_lines};

/// What to do about a process that cannot be captured.
const REFUSED_REMEDY: &str =
    "end that process, or freeze the files alone (`--no-processes`); docs/checkpoint.md lists what cannot be captured";

#[derive(Debug, Deserialize)]
pub(super) struct RemoveOptions {
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct DiffOptions {
    old: String,
    new: String,
}

/// A state with files of its own.
enum FileState {
    Checkpoint(CheckpointInfo),
    Sandbox(Arc<Sandbox>),
}

/// What a fork can come from.
enum Origin {
    Template(TemplateName),
    State(FileState),
}

pub(super) async fn take(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Input(TakeCheckpoint { name, with_processes }): Input<TakeCheckpoint>,
) -> Result<(StatusCode, Json<CheckpointInfo>), Failure> {
    let sandbox = sandboxes::find(state.engine(), &id)?;
    let info = blocking(move || sandbox.checkpoint(name, with_processes)).await.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(info)))
}

/// The host may lack nothing: then it is a process that must go.
pub(super) fn refused(mut failure: Failure) -> Failure {
    if failure.0.code == ErrorCode::Unsupported {
        failure.0.remedy = Some(REFUSED_REMEDY.to_owned());
    }
    failure
}

pub(super) async fn rollback(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Input(Rollback { checkpoint }): Input<Rollback>,
) -> Result<Json<CheckpointInfo>, Failure> {
    let sandbox = sandboxes::find(state.engine(), &id)?;
    let checkpoint = find_for(state.engine(), &sandbox, &checkpoint)?;
    blocking(move || sandbox.rollback(checkpoint.id.as_str())).await.map(Json)
}

/// The checkpoint with this id, beginning of one, or name. Of those with the same name the one of
/// the sandbox's own template is meant: it could not be put back to another.
fn find_for(engine: &Engine, sandbox: &Sandbox, text: &str) -> Result<CheckpointInfo, Failure> {
    match engine.checkpoint(text) {
        Ok(info) => Ok(info),
        Err(error) => {
            let template = sandbox.info().template;
            let is_meant = |info: &CheckpointInfo| info.template == template && info.name.as_deref() == Some(text);
            engine.checkpoints().into_iter().find(is_meant).ok_or_else(|| error.into())
        }
    }
}

pub(super) async fn fork(
    State(state): State<NativeState>,
    Input(Fork { from, count }): Input<Fork>,
) -> Result<(StatusCode, Json<Vec<SandboxInfo>>), Failure> {
    check_count(count)?;
    let engine = Arc::clone(state.engine());
    let origin = fork_origin(state.engine(), &from)?;
    let forks = blocking(move || fork_all(&engine, origin, count)).await.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(forks.iter().map(|sandbox| sandbox.info()).collect())))
}

fn fork_all(engine: &Engine, origin: Origin, count: u32) -> Result<Vec<Arc<Sandbox>>, EngineError> {
    match origin {
        Origin::Template(template) => make_all(count, || engine.create(CreateRequest::plain(template.clone()))),
        Origin::State(FileState::Checkpoint(checkpoint)) => make_all(count, || engine.fork(checkpoint.id.as_str())),
        Origin::State(FileState::Sandbox(sandbox)) => {
            let checkpoint = sandbox.checkpoint(None, true)?;
            make_all(count, || engine.fork(checkpoint.id.as_str())).inspect_err(|_| {
                if let Err(error) = engine.remove_checkpoint(checkpoint.id.as_str(), false) {
                    tracing::warn!(error = error.chain(), "the checkpoint of a fork that failed is left");
                }
            })
        }
    }
}

/// What a fork is asked from. Whole names come before beginnings of ids, and a name that is a
/// checkpoint's and a template's is refused rather than guessed at.
fn fork_origin(engine: &Engine, text: &str) -> Result<Origin, Failure> {
    let template = text.parse::<TemplateName>().ok().filter(|name| engine.template(name).is_ok());
    let Some(template) = template else { return find_state(engine, text).map(Origin::State) };
    match engine.checkpoint(text) {
        Ok(checkpoint) if checkpoint.name.as_deref() == Some(text) => {
            let message = format!(
                "{text:?} is a template and a checkpoint: give the id {} of the checkpoint, or use `brood create`",
                checkpoint.id
            );
            Err(Failure::invalid(message).about(text))
        }
        _ => Ok(Origin::Template(template)),
    }
}

/// A live sandbox or a checkpoint.
fn find_state(engine: &Engine, text: &str) -> Result<FileState, Failure> {
    if let Some(sandbox) = text.parse::<SandboxId>().ok().and_then(|id| engine.sandbox(&id).ok()) {
        return Ok(FileState::Sandbox(sandbox));
    }
    let checkpoint = engine.checkpoint(text);
    match (checkpoint, sandboxes::find(engine, text)) {
        (Ok(checkpoint), Ok(_)) if checkpoint.name.as_deref() != Some(text) => {
            let message = format!("{text:?} begins the ids of a sandbox and of a checkpoint: write more of it");
            Err(Failure::invalid(message).about(text))
        }
        (Ok(checkpoint), _) => Ok(FileState::Checkpoint(checkpoint)),
        (Err(_), Ok(sandbox)) => Ok(FileState::Sandbox(sandbox)),
        (Err(error), Err(_)) if error.kind() != brood_sandbox::error::ErrorKind::NotFound => Err(error.into()),
        (Err(_), Err(failure)) if failure.0.code == ErrorCode::Invalid && failure.0.object.is_some() => Err(failure),
        (Err(_), Err(_)) => {
            let shown: String = text.chars().take(80).collect();
            let message = format!("nothing is called {shown:?}; `brood tree` shows sandboxes and checkpoints");
            Err(Failure::new(ErrorCode::NotFound, message).about(shown))
        }
    }
}

pub(super) async fn list(State(state): State<NativeState>) -> Json<Vec<CheckpointInfo>> {
    Json(state.engine().checkpoints())
}

pub(super) async fn inspect(
    State(state): State<NativeState>,
    Path(checkpoint): Path<String>,
) -> Result<Json<CheckpointInfo>, Failure> {
    Ok(Json(state.engine().checkpoint(&checkpoint)?))
}

pub(super) async fn remove(
    State(state): State<NativeState>,
    Path(checkpoint): Path<String>,
    Query(RemoveOptions { recursive }): Query<RemoveOptions>,
) -> Result<Json<Vec<CheckpointInfo>>, Failure> {
    let engine = Arc::clone(state.engine());
    blocking(move || engine.remove_checkpoint(&checkpoint, recursive)).await.map(Json)
}

pub(super) async fn diff(
    State(state): State<NativeState>,
    Query(DiffOptions { old, new }): Query<DiffOptions>,
) -> Result<Response, Failure> {
    let engine = Arc::clone(state.engine());
    let (old, new) = (whole_id(&engine, &old)?, whole_id(&engine, &new)?);
    let changes = blocking(move || engine.diff(&old, &new)).await?;
    let mut lines = Vec::new();
    for change in &changes {
        // Text and two plain values always become JSON.
        lines.extend(serde_json::to_vec(&file_change(change)).unwrap_or_default());
        lines.push(b'\n');
    }
    Ok(json_lines(Body::from(lines)))
}

fn whole_id(engine: &Engine, text: &str) -> Result<String, Failure> {
    Ok(match find_state(engine, text)? {
        FileState::Checkpoint(checkpoint) => checkpoint.id.to_string(),
        FileState::Sandbox(sandbox) => sandbox.id().to_string(),
    })
}

fn file_change(change: &Change) -> FileChange {
    FileChange {
        path: format!("/{}", change.path.to_string_lossy()),
        kind: match change.kind {
            ChangeKind::Added => FileChangeKind::Added,
            ChangeKind::Deleted => FileChangeKind::Deleted,
            ChangeKind::Modified { .. } => FileChangeKind::Changed,
        },
        directory: change.is_directory,
    }
}
