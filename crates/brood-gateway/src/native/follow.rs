//! Logs and events: what happened so far, and on request what happens from now on.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use brood_sandbox::events::Follow;
use brood_sandbox::model::SandboxState;
use brood_sandbox::sandbox::Sandbox;
use futures::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::failure::Failure;
use super::sandboxes::find;
use super::{NativeState, json_lines};

#[derive(Debug, Deserialize)]
pub(super) struct LogOptions {
    #[serde(default)]
    follow: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct EventOptions {
    /// Only events with greater numbers.
    #[serde(default)]
    since: u64,
    #[serde(default)]
    follow: bool,
}

pub(super) async fn events(State(state): State<NativeState>, Query(options): Query<EventOptions>) -> Response {
    let log = state.engine().events();
    let next = options.since.saturating_add(1);
    if !options.follow {
        return json_lines(Body::from(lines(&log.since(next).0)));
    }
    json_lines(Body::from_stream(follow(log, next, state.ended(), None)))
}

pub(super) async fn logs(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Query(options): Query<LogOptions>,
) -> Result<Response, Failure> {
    let sandbox = find(state.engine(), &id)?;
    let log = sandbox.logs();
    if !options.follow {
        return Ok(json_lines(Body::from(lines(&log.since(0).0))));
    }
    Ok(json_lines(Body::from_stream(follow(log, 0, state.ended(), Some(sandbox)))))
}

/// Records from `next` on, until the daemon ends or the sandbox that they are of is gone.
fn follow<T: Clone + Serialize + Send + 'static>(
    log: Follow<T>,
    next: u64,
    ended: watch::Receiver<bool>,
    of: Option<Arc<Sandbox>>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    futures::stream::unfold((log, next, ended, of, false), |(log, next, mut ended, of, last)| async move {
        if last {
            return None;
        }
        let over = || of.as_ref().is_some_and(|sandbox| sandbox.info().state == SandboxState::Dead);
        let more = poll_fn(|context| match log.poll_since(context, next) {
            // The engine's last record of a sandbox comes when it is dead already.
            Poll::Pending if over() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(found) => Poll::Ready(Some(found)),
        });
        let (found, last) = tokio::select! {
            biased;
            found = more => (found, false),
            _ = ended.wait_for(|ended| *ended) => (Some(log.since(next)), true),
        };
        let (records, next) = found?;
        Some((Ok(lines(&records)), (log, next, ended, of, last)))
    })
}

fn lines(values: &[impl Serialize]) -> Bytes {
    let mut bytes = Vec::new();
    for value in values {
        // Plain data always becomes JSON.
        if serde_json::to_writer(&mut bytes, value).is_ok() {
            bytes.push(b'\n');
        }
    }
    bytes.into()
}
