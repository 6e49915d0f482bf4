//! Processes: started (and attached to, waited for or left alone), listed, signalled, killed.

use std::future::poll_fn;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest as _, Path, Query, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use brood_api::error::ErrorCode;
use brood_api::frame::PROTOCOL;
use brood_api::types::{CompletedProcess, SendSignal};
use brood_sandbox::model::{ProcessInfo, ProcessRequest};
use brood_sandbox::output::{OutputEvent, Stream, SubscribeFrom, Subscription};
use brood_sandbox::process::Process;
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;

use super::NativeState;
use super::failure::{Failure, Input, blocking, parse};
use super::sandboxes::find;
use super::session::{self, Running};

/// Output of each stream that `?wait=true` keeps; a session has no such bound.
const WAIT_OUTPUT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct StartOptions {
    #[serde(default)]
    wait: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AttachFrom {
    #[default]
    Start,
    Now,
}

#[derive(Debug, Deserialize)]
pub(super) struct AttachOptions {
    #[serde(default)]
    from: AttachFrom,
}

/// Starts a process with a reader that was there before its first byte. PID 1 answers within a fraction of a millisecond, so this waits in place: a
/// trip to another thread and back would cost a tool call more than the wait costs the others.
pub(super) fn spawn_with_output(
    state: &NativeState,
    sandbox: &str,
    request: ProcessRequest,
) -> Result<(Arc<Process>, Subscription), Failure> {
    let sandbox = find(state.engine(), sandbox)?;
    Ok(tokio::task::block_in_place(|| sandbox.spawn_with_output(request))?)
}

pub(super) async fn start(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Query(options): Query<StartOptions>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = asked_upgrade(&mut request, PROTOCOL)?;
    let body = Bytes::from_request(request, &state)
        .await
        .map_err(|error| Failure::invalid(format!("the body cannot be read: {}", error.body_text())))?;
    let request = parse(&body)?;
    if upgrade.is_none() && !options.wait {
        return start_alone(&state, &id, request);
    }
    let (process, output) = spawn_with_output(&state, &id, request)?;
    if let Some(upgrade) = upgrade {
        session::serve(state, upgrade, Running::new(process, output));
        return Ok(switching_protocols(PROTOCOL));
    }
    Ok(Json(completed(&process, output).await).into_response())
}

/// Starts a process that nobody waits for.
fn start_alone(state: &NativeState, id: &str, request: ProcessRequest) -> Result<Response, Failure> {
    let sandbox = find(state.engine(), id)?;
    let process = tokio::task::block_in_place(|| sandbox.spawn(request))?;
    Ok((StatusCode::CREATED, Json(process.info())).into_response())
}

pub(super) async fn attach(
    State(state): State<NativeState>,
    Path((id, process)): Path<(String, String)>,
    Query(options): Query<AttachOptions>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = asked_upgrade(&mut request, PROTOCOL)?
        .ok_or_else(|| Failure::invalid(format!("attaching needs an upgrade of the connection to {PROTOCOL}")))?;
    let process = find_process(&state, &id, &process)?;
    let from = match options.from {
        AttachFrom::Start => SubscribeFrom::Start,
        AttachFrom::Now => SubscribeFrom::Now,
    };
    let output = process.subscribe(from);
    session::serve(state, upgrade, Running::new(process, output));
    Ok(switching_protocols(PROTOCOL))
}

/// The upgrade that the client asked for, if it did.
pub(super) fn asked_upgrade(request: &mut Request, known: &'static str) -> Result<Option<OnUpgrade>, Failure> {
    match request.headers().get(UPGRADE) {
        None => Ok(None),
        Some(protocol) if protocol == known => Ok(request.extensions_mut().remove::<OnUpgrade>()),
        Some(protocol) => Err(Failure::invalid(format!("no upgrade to {protocol:?}; {known} is known here"))),
    }
}

pub(super) fn switching_protocols(protocol: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(protocol));
    response
}

async fn completed(process: &Process, mut output: Subscription) -> CompletedProcess {
    let (mut stdout, mut stderr, mut lost_bytes) = (Vec::new(), Vec::new(), 0);
    let exit = loop {
        match poll_fn(|context| output.poll_next(context)).await {
            Some(OutputEvent::Data { stream, bytes }) => {
                let kept = if stream == Stream::Stderr { &mut stderr } else { &mut stdout };
                let fits = bytes.len().min(WAIT_OUTPUT_BYTES_MAX - kept.len());
                kept.extend_from_slice(&bytes[..fits]);
                lost_bytes += (bytes.len() - fits) as u64;
            }
            Some(OutputEvent::Lost { bytes }) => lost_bytes += bytes,
            Some(OutputEvent::Ended(report)) => break report,
            None => break poll_fn(|context| process.poll_exit(context)).await,
        }
    };
    CompletedProcess {
        pid: process.pid(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        lost_bytes,
        exit_code: exit.shell_code(),
        exit,
    }
}

/// The process with this pid or tag.
fn find_process(state: &NativeState, id: &str, text: &str) -> Result<Arc<Process>, Failure> {
    let sandbox = find(state.engine(), id)?;
    match text.parse::<u32>() {
        Ok(pid) => Ok(sandbox.process(pid)?),
        Err(_) => Ok(sandbox.process_by_tag(text)?),
    }
}

pub(super) async fn list(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<Vec<ProcessInfo>>, Failure> {
    Ok(Json(find(state.engine(), &id)?.processes().iter().map(|process| process.info()).collect()))
}

pub(super) async fn inspect(
    State(state): State<NativeState>,
    Path((id, process)): Path<(String, String)>,
) -> Result<Json<ProcessInfo>, Failure> {
    Ok(Json(find_process(&state, &id, &process)?.info()))
}

pub(super) async fn signal(
    State(state): State<NativeState>,
    Path((id, process)): Path<(String, String)>,
    Input(SendSignal { signal }): Input<SendSignal>,
) -> Result<StatusCode, Failure> {
    if !(1..=64).contains(&signal) {
        return Err(Failure::invalid(format!("{signal} is no signal; they go from 1 to 64")));
    }
    let process = find_process(&state, &id, &process)?;
    if process.info().exit.is_some() {
        return Err(Failure::new(ErrorCode::Conflict, format!("process {} has ended already", process.pid())));
    }
    process.signal(signal)?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn kill(
    State(state): State<NativeState>,
    Path((id, process)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    let process = find_process(&state, &id, &process)?;
    if process.info().exit.is_some() {
        return Err(Failure::new(ErrorCode::Conflict, format!("process {} has ended already", process.pid())));
    }
    blocking(move || process.kill()).await?;
    Ok(StatusCode::NO_CONTENT)
}
