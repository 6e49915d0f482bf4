//! Process sessions: one upgraded connection that runs process after process.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use brood_api::ErrorBody;
use brood_api::error::ErrorCode;
use brood_api::frame::{Decoder, FrameKind};
use brood_api::types::RunRequest;
use brood_sandbox::output::Subscription;
use brood_sandbox::process::Process;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tracing::debug;

use super::outbound::Outbound;
use super::pump::{self, PumpError};
use super::{NativeState, processes};

/// A process with the reader of its output.
pub(super) struct Running {
    process: Arc<Process>,
    subscription: Subscription,
}

impl Running {
    pub(super) fn new(process: Arc<Process>, subscription: Subscription) -> Self {
        Self { process, subscription }
    }
}

/// Serves a connection once HTTP has let go of it.
pub(super) fn serve(state: NativeState, upgrade: OnUpgrade, first: Running) {
    tokio::spawn(async move {
        let guard = state.session_guard();
        match session(&state, upgrade, first).await {
            Ok(()) | Err(PumpError::Gone) => {}
            Err(error) => debug!(%error, "a process session broke"),
        }
        drop(guard);
    });
}

async fn session(state: &NativeState, upgrade: OnUpgrade, first: Running) -> Result<(), PumpError> {
    let upgraded = upgrade.await.map_err(io::Error::other)?;
    let parts = upgraded
        .downcast::<TokioIo<UnixStream>>()
        .map_err(|_| io::Error::other("process sessions are served on the unix socket only"))?;
    let stream = parts.io.into_inner();
    let mut inbound = Decoder::new(&parts.read_buf);
    let mut running = first;
    loop {
        pump::run(&stream, &mut inbound, &running.process, running.subscription).await?;
        running = match next_run(state, &stream, &mut inbound).await? {
            Some(next) => next,
            None => return Ok(()),
        };
    }
}

/// Waits for the next `Run` frame whose process starts; none when the client is done.
async fn next_run(
    state: &NativeState,
    stream: &UnixStream,
    inbound: &mut Decoder,
) -> Result<Option<Running>, PumpError> {
    let mut ended = state.ended();
    loop {
        let payload = tokio::select! {
            payload = run_frame(stream, inbound) => payload?,
            // The daemon is ending; there is nothing left to run.
            _ = ended.wait_for(|ended| *ended) => return Ok(None),
        };
        let Some(payload) = payload else { return Ok(None) };
        let started = serde_json::from_slice::<RunRequest>(&payload)
            .map_err(|error| ErrorBody::new(ErrorCode::Invalid, format!("the request does not fit: {error}")))
            .and_then(|run| {
                processes::spawn_with_output(state, &run.sandbox, run.process).map_err(|failure| failure.0)
            });
        match started {
            Ok((process, output)) => return Ok(Some(Running::new(process, output))),
            Err(body) => {
                let mut outbound = Outbound::default();
                outbound.small(FrameKind::Error, &serde_json::to_vec(&body).unwrap_or_default());
                poll_fn(|context| outbound.poll_flush(stream, context)).await?;
            }
        }
    }
}

async fn run_frame(stream: &UnixStream, inbound: &mut Decoder) -> Result<Option<bytes::Bytes>, PumpError> {
    loop {
        while let Some((kind, payload)) = inbound.next_frame()? {
            match kind {
                FrameKind::Run => return Ok(Some(payload)),
                // Meant for the process that has just ended.
                FrameKind::Stdin | FrameKind::StdinEnd | FrameKind::Resize | FrameKind::Signal => {}
                other => return Err(brood_api::frame::FrameError::Malformed(other).into()),
            }
        }
        stream.readable().await?;
        match stream.try_read_buf(inbound.buffer()) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}
