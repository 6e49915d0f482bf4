//! Forks of a running sandbox, and snapshots: checkpoints with a name, which sandboxes start from.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use brood_sandbox::ids::SandboxId;
use brood_sandbox::sandbox::Sandbox;
use serde::{Deserialize, Serialize};

use super::create::timeout;
use super::lifecycle::find;
use super::listing::{NEXT_TOKEN, PAGE_MAX};
use super::views::Created;
use super::{Answer, Input, Query};
use crate::e2b::E2bState;
use crate::e2b::failure::{ErrorObject, Failure, blocking};
use crate::e2b::record::Record;
use crate::e2b::time::now_ms;

/// Forks of one request.
const FORKS_MAX: u32 = 20;
const FORK_TIMEOUT_S: i64 = 300;
/// The tag of a name that comes without one.
const TAG: &str = "default";

/// A snapshot, which lives as long as the daemon does.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) checkpoint: String,
    names: Vec<String>,
    sandbox: SandboxId,
}

/// All snapshots, oldest first.
#[derive(Debug, Default)]
pub(in crate::e2b) struct Snapshots {
    taken: Mutex<Vec<Snapshot>>,
}

impl Snapshots {
    fn add(&self, snapshot: Snapshot) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for other in taken.iter_mut() {
            // A name means the newest.
            other.names.retain(|name| !snapshot.names.contains(name));
        }
        taken.push(snapshot);
    }

    /// The snapshot of this id or name, with or without its tag.
    pub(super) fn find(&self, text: &str) -> Option<Snapshot> {
        let tagged = with_tag(text);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.iter().find(|one| one.checkpoint == text || one.names.contains(&tagged)).cloned()
    }

    pub(super) fn remove(&self, checkpoint: &str) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| one.checkpoint != checkpoint);
    }
}

fn with_tag(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}:{TAG}") }
}

#[derive(Debug, Deserialize)]
pub(super) struct Fork {
    #[serde(default)]
    timeout: Option<i64>,
    #[serde(default)]
    count: Option<u32>,
}

/// One of the forks that were asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Forked {
    Sandbox(Created),
    Error(ErrorObject),
}

pub(super) async fn fork(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Fork>,
) -> Answer<Vec<Forked>> {
    let count = asked.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(Failure::invalid(format!("count must be 1 to {FORKS_MAX}")));
    }
    let lives = timeout(asked.timeout.unwrap_or(FORK_TIMEOUT_S))?;
    let sandbox = find(&state, &id)?;
    let record = state.records().of(&sandbox);
    let forks = fork_all(&state, sandbox, count).await?;
    let told = forks.into_iter().map(|fork| {
        let made = fork.and_then(|fork| {
            let id = fork.id().to_string();
            let own = Record { started_ms: now_ms(), ends_ms: None, ..(*record).clone() };
            state.records().insert(&id, own);
            state.set_end(&fork, lives)?;
            Ok(Created::of(&state, &id, &state.records().of(&fork)))
        });
        made.map_or_else(|failure| Forked::Error(failure.object()), Forked::Sandbox)
    });
    Ok((StatusCode::CREATED, Json(told.collect())))
}

/// Freezes once and goes on from that as often as asked.
async fn fork_all(
    state: &E2bState,
    sandbox: Arc<Sandbox>,
    count: u32,
) -> Result<Vec<Result<Arc<Sandbox>, Failure>>, Failure> {
    let engine = Arc::clone(state.engine());
    blocking(move || {
        let checkpoint = sandbox.checkpoint(None, true)?.id;
        let forks = (0..count).map(|_| engine.fork(checkpoint.as_str()).map_err(Failure::from)).collect();
        // The forks stay whole without it.
        if let Err(error) = engine.remove_checkpoint(checkpoint.as_str(), false) {
            tracing::warn!(error = error.chain(), "the checkpoint of a fork is left");
        }
        Ok::<_, Failure>(forks)
    })
    .await
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Take {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    memory: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(super) struct Taken {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

pub(super) async fn take(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(asked): Input<Take>,
) -> Answer<Taken> {
    let sandbox = find(&state, &id)?;
    let names: Vec<String> = asked.name.iter().map(|name| with_tag(&name.trim().to_ascii_lowercase())).collect();
    let is_name = |name: &String| name.parse::<brood_sandbox::ids::TemplateName>().is_ok();
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        let shown: String = name.chars().take(80).collect();
        return Err(Failure::invalid(format!("{shown:?} cannot be the name of a snapshot")));
    }
    let (frozen, with_processes) = (Arc::clone(&sandbox), asked.memory != Some(false));
    let info = blocking(move || frozen.checkpoint(None, with_processes)).await?;
    let checkpoint = info.id.to_string();
    let taken = Taken { snapshot_id: checkpoint.clone(), names: names.clone() };
    state.snapshots().add(Snapshot { checkpoint, names, sandbox: sandbox.id().clone() });
    Ok((StatusCode::CREATED, Json(taken)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filters {
    #[serde(rename = "sandboxID")]
    sandbox: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// `GET /snapshots`, newest first. The cursor is the id of the last one seen.
pub(super) async fn list(
    State(state): State<E2bState>,
    Query(filters): Query<Filters>,
) -> Result<(HeaderMap, Json<Vec<Taken>>), Failure> {
    let limit = filters.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failure::invalid(format!("limit must be 1 to {PAGE_MAX}")));
    }
    let all = state.snapshots().taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let name = filters.name.as_deref().map(with_tag);
    let fits = |one: &&Snapshot| {
        filters.sandbox.as_deref().is_none_or(|id| one.sandbox.as_str() == id)
            && name.as_ref().is_none_or(|name| one.names.contains(name))
    };
    let mut found: Vec<&Snapshot> = all.iter().rev().filter(fits).collect();
    if let Some(last) = filters.next_token.as_deref().filter(|token| !token.is_empty()) {
        let at = found.iter().position(|one| one.checkpoint == last);
        found.drain(..at.ok_or_else(|| Failure::invalid("nextToken is not valid"))? + 1);
    }
    let mut headers = HeaderMap::new();
    if found.len() > limit
        && let Ok(next) = HeaderValue::from_str(&found[limit - 1].checkpoint)
    {
        headers.insert(NEXT_TOKEN, next);
    }
    let page = found.into_iter().take(limit);
    let page = page.map(|one| Taken { snapshot_id: one.checkpoint.clone(), names: one.names.clone() });
    Ok((headers, Json(page.collect())))
}
