//! The client's end of a process session.

use std::io::{self, IoSlice};
use std::sync::Arc;

use brood_sandbox::model::{ExitReport, ProcessRequest, TerminalSize};
use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Semaphore};

use crate::error::{ApiError, ErrorBody};
use crate::frame::{self, Decoder, FrameError, FrameKind, HEADER_BYTES, STDIN_WINDOW_BYTES};
use crate::types::RunRequest;

/// Standard input sent in one frame: small enough that a signal behind it does not wait.
const STDIN_FRAME_BYTES: usize = 64 << 10;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The pseudo-terminal.
    Terminal,
}

/// What the daemon tells of a process.
#[derive(Debug, Clone)]
pub enum SessionEvent {
    /// It runs, with this pid inside the sandbox.
    Started {
        /// The pid.
        pid: u32,
    },
    /// It wrote something.
    Output {
        /// To where.
        stream: OutputStream,
        /// What.
        bytes: Bytes,
    },
    /// Output was dropped while nobody read it.
    Lost {
        /// How much, of all streams.
        bytes: u64,
    },
    /// It ended; this is its last event.
    Exit(ExitReport),
}

/// A connection that runs processes, one after the other.
#[derive(Debug)]
pub struct Session {
    reader: OwnedReadHalf,
    decoder: Decoder,
    writer: SessionWriter,
}

/// The way to a process: cloned for the tasks that forward input and signals.
#[derive(Debug, Clone)]
pub struct SessionWriter {
    half: Arc<Mutex<OwnedWriteHalf>>,
    /// Bytes of standard input that may still be sent; closed when the process has ended.
    window: Arc<Semaphore>,
}

impl Session {
    pub(crate) fn from_upgrade(upgraded: Upgraded) -> Result<Self, ApiError> {
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| ApiError::Protocol("an upgraded connection that is no unix socket".into()))?;
        let (reader, writer) = parts.io.into_inner().into_split();
        Ok(Self {
            reader,
            decoder: Decoder::new(&parts.read_buf),
            writer: SessionWriter { half: Arc::new(Mutex::new(writer)), window: window() },
        })
    }

    /// The way to the process that runs now.
    pub fn writer(&self) -> SessionWriter {
        self.writer.clone()
    }

    /// Runs the next process, once the one before has ended.
    ///
    /// # Errors
    /// When the connection is broken; a refusal of the daemon comes from [`next`](Self::next).
    pub async fn run(&mut self, sandbox: &str, process: &ProcessRequest) -> Result<(), ApiError> {
        let request = RunRequest { sandbox: sandbox.to_owned(), process: process.clone() };
        self.writer.window.close();
        self.writer.window = window();
        self.writer.frame(FrameKind::Run, &serde_json::to_vec(&request)?).await
    }

    /// What happens next; none when the daemon has closed the session.
    ///
    /// # Errors
    /// [`ApiError::Remote`] when the daemon refused to run the process (the session can be used on),
    /// and broken connections.
    pub async fn next(&mut self) -> Result<Option<SessionEvent>, ApiError> {
        loop {
            while let Some((kind, payload)) = self.decoder.next_frame()? {
                if let Some(event) = self.take(kind, payload)? {
                    return Ok(Some(event));
                }
            }
            if self.reader.read_buf(self.decoder.buffer()).await? == 0 {
                self.writer.window.close();
                return Ok(None);
            }
        }
    }

    /// Reads on until the process has ended, and drops its output.
    ///
    /// # Errors
    /// As [`next`](Self::next), and when the session ends before the process.
    pub async fn wait(&mut self) -> Result<ExitReport, ApiError> {
        loop {
            match self.next().await? {
                Some(SessionEvent::Exit(report)) => return Ok(report),
                Some(_) => {}
                None => return Err(ApiError::Broken(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }

    fn take(&mut self, kind: FrameKind, payload: Bytes) -> Result<Option<SessionEvent>, ApiError> {
        Ok(Some(match kind {
            FrameKind::Started => SessionEvent::Started { pid: u32::from_le_bytes(frame::fixed(kind, &payload)?) },
            FrameKind::Stdout | FrameKind::Stderr | FrameKind::Terminal => {
                SessionEvent::Output { stream: stream_of(kind)?, bytes: payload }
            }
            FrameKind::Lost => SessionEvent::Lost { bytes: u64::from_le_bytes(frame::fixed(kind, &payload)?) },
            FrameKind::Exit => {
                self.writer.window.close();
                SessionEvent::Exit(serde_json::from_slice(&payload)?)
            }
            FrameKind::StdinCredit => {
                let bytes = u32::from_le_bytes(frame::fixed(kind, &payload)?) as usize;
                if bytes > STDIN_WINDOW_BYTES {
                    return Err(FrameError::Malformed(kind).into());
                }
                self.writer.window.add_permits(bytes);
                return Ok(None);
            }
            FrameKind::Error => {
                self.writer.window.close();
                return Err(serde_json::from_slice::<ErrorBody>(&payload)?.into());
            }
            FrameKind::Run | FrameKind::Stdin | FrameKind::StdinEnd | FrameKind::Resize | FrameKind::Signal => {
                return Err(ApiError::Protocol(format!("a {kind:?} frame, which only clients send")));
            }
        }))
    }
}

impl SessionWriter {
    /// Sends standard input, waiting while the process does not read.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] once the process has ended; broken connections.
    pub async fn stdin(&self, mut bytes: &[u8]) -> Result<(), ApiError> {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(STDIN_FRAME_BYTES));
            let permit = self.window.acquire_many(piece.len() as u32).await;
            permit.map_err(|_closed| ApiError::Broken(io::ErrorKind::BrokenPipe.into()))?.forget();
            self.frame(FrameKind::Stdin, piece).await?;
            bytes = rest;
        }
        Ok(())
    }

    /// Ends standard input.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn stdin_end(&self) -> Result<(), ApiError> {
        self.frame(FrameKind::StdinEnd, &[]).await
    }

    /// Tells the terminal's new size.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ApiError> {
        let [c0, c1] = size.columns.to_le_bytes();
        let [r0, r1] = size.rows.to_le_bytes();
        self.frame(FrameKind::Resize, &[c0, c1, r0, r1]).await
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn signal(&self, signal: u8) -> Result<(), ApiError> {
        self.frame(FrameKind::Signal, &[signal]).await
    }

    /// Header and payload leave in one system call.
    async fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), ApiError> {
        let header = frame::header(kind, payload.len());
        let mut half = self.half.lock().await;
        let written = half.write_vectored(&[IoSlice::new(&header), IoSlice::new(payload)]).await?;
        if written < HEADER_BYTES {
            half.write_all(&header[written..]).await?;
        }
        half.write_all(&payload[written.saturating_sub(HEADER_BYTES)..]).await?;
        Ok(())
    }
}

fn window() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(STDIN_WINDOW_BYTES))
}

fn stream_of(kind: FrameKind) -> Result<OutputStream, FrameError> {
    match kind {
        FrameKind::Stdout => Ok(OutputStream::Stdout),
        FrameKind::Stderr => Ok(OutputStream::Stderr),
        FrameKind::Terminal => Ok(OutputStream::Terminal),
        other => Err(FrameError::Malformed(other)),
    }
}
