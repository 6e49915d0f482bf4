//! One process and one client, joined: a single task moves bytes both ways, so that no hop between
//! threads is added to a tool call's latency.
//!
//! Nothing here queues without bound. Output is taken from the process only while little of it waits
//! for the socket; input is bounded by the client's window.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use brood_api::frame::{self, Decoder, FrameError, FrameKind, STDIN_WINDOW_BYTES};
use brood_sandbox::model::TerminalSize;
use brood_sandbox::output::{OutputEvent, Stream, Subscription};
use brood_sandbox::process::Process;
use bytes::{Buf as _, Bytes};
use tokio::net::UnixStream;
use tracing::debug;

use super::outbound::Outbound;

/// Output that may wait for the socket: enough to keep it full.
const OUTBOUND_BYTES_AHEAD: usize = 512 << 10;
/// Input after which the client's window is opened again: rarely enough to cost nothing.
const CREDIT_BYTES: usize = STDIN_WINDOW_BYTES / 4;

/// Why a pump stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum PumpError {
    /// The client closed its end, or the connection broke. The process lives on.
    #[error("the client is gone")]
    Gone,
    /// The client broke the protocol. The process lives on.
    #[error(transparent)]
    Protocol(#[from] FrameError),
    /// The connection broke.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Moves everything between client and process until the process has ended and all is written.
pub(super) async fn run(
    stream: &UnixStream,
    inbound: &mut Decoder,
    process: &Arc<Process>,
    subscription: Subscription,
) -> Result<(), PumpError> {
    let mut outbound = Outbound::default();
    outbound.small(FrameKind::Started, &process.pid().to_le_bytes());
    let mut pump = Pump { stream, inbound, outbound, process, subscription, stdin: Stdin::default(), ended: false };
    poll_fn(|context| pump.poll(context)).await
}

struct Pump<'a> {
    stream: &'a UnixStream,
    inbound: &'a mut Decoder,
    outbound: Outbound,
    process: &'a Arc<Process>,
    subscription: Subscription,
    stdin: Stdin,
    ended: bool,
}

/// Standard input on its way to the process.
#[derive(Default)]
struct Stdin {
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// Taken off the queue, but not yet credited to the client.
    consumed_bytes: usize,
    end_asked: bool,
    closed: bool,
}

impl Pump<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PumpError>> {
        loop {
            let mut progress = self.receive(context)?;
            progress |= self.feed(context);
            progress |= self.collect(context);
            let queued = self.outbound.bytes();
            let flushed = self.outbound.poll_flush(self.stream, context)?;
            progress |= self.outbound.bytes() < queued;
            if self.ended && flushed.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    /// Takes what the client sent. False when nothing is there, in which case the task is woken for more.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, PumpError> {
        let mut progress = false;
        loop {
            while let Some((kind, payload)) = self.inbound.next_frame()? {
                self.obey(kind, payload)?;
                progress = true;
            }
            match self.stream.poll_read_ready(context)? {
                Poll::Pending => return Ok(progress),
                Poll::Ready(()) => match self.stream.try_read_buf(self.inbound.buffer()) {
                    Ok(0) => return Err(PumpError::Gone),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    fn obey(&mut self, kind: FrameKind, payload: Bytes) -> Result<(), PumpError> {
        match kind {
            FrameKind::Stdin => {
                self.stdin.queued_bytes += payload.len();
                if self.stdin.queued_bytes > STDIN_WINDOW_BYTES {
                    return Err(FrameError::Malformed(kind).into());
                }
                self.stdin.queue.push_back(payload);
            }
            FrameKind::StdinEnd => self.stdin.end_asked = true,
            FrameKind::Resize => {
                let [c0, c1, r0, r1] = frame::fixed(kind, &payload)?;
                let size = TerminalSize { columns: u16::from_le_bytes([c0, c1]), rows: u16::from_le_bytes([r0, r1]) };
                told(self.process.resize(size));
            }
            FrameKind::Signal => {
                let [signal] = frame::fixed(kind, &payload)?;
                told(self.process.signal(signal));
            }
            other => return Err(FrameError::Malformed(other).into()),
        }
        Ok(())
    }

    /// Writes what the process takes of its input, and opens the client's window for it.
    fn feed(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(first) = self.stdin.queue.front_mut() {
            let taken = match self.process.write_stdin(first) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.process.poll_stdin(context) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => break,
                },
                // The process has closed its input or is gone. What else comes is taken and dropped,
                // so that the client is not stuck with it.
                Err(_) => first.len(),
            };
            progress = true;
            self.stdin.consumed_bytes += taken;
            if taken == first.len() {
                self.stdin.queue.pop_front();
            } else {
                first.advance(taken);
            }
        }
        if self.stdin.queue.is_empty() && self.stdin.end_asked && !self.stdin.closed {
            self.process.close_stdin();
            self.stdin.closed = true;
        }
        if self.stdin.consumed_bytes >= CREDIT_BYTES {
            // Bounded by the window, far below 2^32.
            let credit = self.stdin.consumed_bytes as u32;
            self.outbound.small(FrameKind::StdinCredit, &credit.to_le_bytes());
            self.stdin.queued_bytes -= self.stdin.consumed_bytes;
            self.stdin.consumed_bytes = 0;
        }
        progress
    }

    /// Takes output from the process while the socket keeps up.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        while !self.ended && self.outbound.bytes() < OUTBOUND_BYTES_AHEAD {
            let Poll::Ready(event) = self.subscription.poll_next(context) else { break };
            progress = true;
            match event {
                Some(OutputEvent::Data { stream, bytes }) => {
                    self.outbound.frame(kind_of(stream), Bytes::from_owner(bytes));
                }
                Some(OutputEvent::Lost { bytes }) => self.outbound.small(FrameKind::Lost, &bytes.to_le_bytes()),
                Some(OutputEvent::Ended(report)) => {
                    // Plain numbers and words always become JSON.
                    let report = serde_json::to_vec(&report).unwrap_or_default();
                    self.outbound.small(FrameKind::Exit, &report);
                    self.ended = true;
                }
                None => self.ended = true,
            }
        }
        progress
    }
}

fn kind_of(stream: Stream) -> FrameKind {
    match stream {
        Stream::Stdout => FrameKind::Stdout,
        Stream::Stderr => FrameKind::Stderr,
        Stream::Terminal => FrameKind::Terminal,
    }
}

/// A signal or resize that comes after the end is nobody's fault; the exit is told anyway.
fn told(result: Result<(), brood_sandbox::error::EngineError>) {
    if let Err(error) = result {
        debug!(error = error.chain(), "a process could not be told");
    }
}
