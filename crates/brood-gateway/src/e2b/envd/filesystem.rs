//! The file system service.

use std::path::Path;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::error::ErrorKind;
use brood_sandbox::files::EntryKind;

use super::entries::describe;
use super::messages::{Empty, EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest};
use super::user::{Acting, named};
use super::{Envd, watch};
use crate::e2b::connect::{self, Code, RpcError};

/// Most entries of a list, which is one message.
const ENTRIES_MAX: usize = 100_000;

pub(super) async fn call(envd: Envd, method: &str, request: Request) -> Response {
    match method {
        "Stat" => connect::unary(request, |headers, message| acting(envd, headers, message, stat)).await,
        "ListDir" => connect::unary(request, |headers, message| acting(envd, headers, message, list)).await,
        "MakeDir" => connect::unary(request, |headers, message| acting(envd, headers, message, make_directory)).await,
        "Move" => connect::unary(request, |headers, message| acting(envd, headers, message, rename)).await,
        "Remove" => connect::unary(request, |headers, message| acting(envd, headers, message, remove)).await,
        "WatchDir" => connect::server_stream(request, |headers, message| watch::stream(envd, headers, message)).await,
        "CreateWatcher" => connect::unary(request, |headers, message| watch::create(envd, headers, message)).await,
        "GetWatcherEvents" => connect::unary(request, |_, message| async move { watch::take(&envd, &message) }).await,
        "RemoveWatcher" => connect::unary(request, |_, message| async move { watch::remove(&envd, &message) }).await,
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Runs a call as the user that it names, on a thread where waiting for a disk harms nobody.
pub(super) async fn acting<Q: Send + 'static, A: Send + 'static>(
    envd: Envd,
    headers: HeaderMap,
    message: Q,
    call: impl FnOnce(&Acting, Q) -> Result<A, RpcError> + Send + 'static,
) -> Result<A, RpcError> {
    let done = tokio::task::spawn_blocking(move || {
        let acting = Acting::of(&envd, named(&headers).as_deref())?;
        call(&acting, message)
    });
    done.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a file operation panicked");
        Err(RpcError::new(Code::Internal, "the file operation failed in a way that it should not"))
    })
}

fn entry(acting: &Acting, path: &Path) -> Result<EntryInfo, RpcError> {
    let found = acting.files.stat(path)?;
    Ok(describe(&acting.files, &acting.files.names(), found))
}

fn stat(acting: &Acting, message: PathRequest) -> Result<EntryResponse, RpcError> {
    Ok(EntryResponse { entry: Some(entry(acting, &acting.path(&message.path)?)?) })
}

/// Depth first, in the order of names, without the directory itself.
fn list(acting: &Acting, message: ListDirRequest) -> Result<ListDirResponse, RpcError> {
    let path = acting.path(&message.path)?;
    if acting.files.stat_followed(&path)?.kind != EntryKind::Directory {
        return Err(RpcError::invalid(format!("{} is not a directory", path.display())));
    }
    let names = acting.files.names();
    let mut entries = Vec::new();
    // What is left to list, deepest level last; each level in reverse, so that its first comes first.
    let mut levels = vec![listed(acting, &path)?];
    while let Some(level) = levels.last_mut() {
        let Some(found) = level.pop() else {
            levels.pop();
            continue;
        };
        let below = (found.kind == EntryKind::Directory && levels.len() < message.depth.max(1) as usize)
            .then(|| found.path.clone());
        entries.push(describe(&acting.files, &names, found));
        if entries.len() > ENTRIES_MAX {
            let message = format!("{} has more than {ENTRIES_MAX} entries: list it with less depth", path.display());
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        if let Some(below) = below {
            // It may be gone again, or not be among the sandbox's files.
            levels.push(listed(acting, Path::new(&below)).unwrap_or_default());
        }
    }
    Ok(ListDirResponse { entries })
}

/// What is in a directory, the last name first.
fn listed(acting: &Acting, path: &Path) -> Result<Vec<brood_sandbox::files::Entry>, RpcError> {
    let mut entries = acting.files.list(path)?;
    entries.sort_by(|a, b| b.name.cmp(&a.name));
    Ok(entries)
}

fn make_directory(acting: &Acting, message: PathRequest) -> Result<EntryResponse, RpcError> {
    let path = acting.path(&message.path)?;
    if !acting.files.make_directory(&path, acting.owner())? {
        return Err(RpcError::new(Code::AlreadyExists, format!("directory {} exists already", path.display())));
    }
    Ok(EntryResponse { entry: Some(entry(acting, &path)?) })
}

fn rename(acting: &Acting, message: MoveRequest) -> Result<EntryResponse, RpcError> {
    let (source, destination) = (acting.path(&message.source)?, acting.path(&message.destination)?);
    acting.files.stat(&source)?;
    if let Some(parent) = destination.parent() {
        acting.files.make_directory(parent, acting.owner())?;
    }
    acting.files.rename(&source, &destination)?;
    Ok(EntryResponse { entry: Some(entry(acting, &destination)?) })
}

fn remove(acting: &Acting, message: PathRequest) -> Result<Empty, RpcError> {
    let path = acting.path(&message.path)?;
    match acting.files.remove(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(Empty {}),
    }
}
