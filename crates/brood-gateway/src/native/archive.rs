//! Files in and out of a sandbox, as tar archives that are streamed with bounded memory.

use std::io::{self, Read, Write};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use brood_api::types::{FileEntry, FileKind};
use brood_sandbox::files::{Entry, EntryKind, Owner};
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::NativeState;
use super::failure::{Failure, blocking};
use super::sandboxes::find;

/// Pieces of an archive between the connection and the thread that works on it.
const PIECES_AHEAD: usize = 16;
/// Bytes that the packing thread hands over at once.
const PIECE_BYTES: usize = 128 << 10;

#[derive(Debug, Deserialize)]
pub(super) struct At {
    path: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct StatOptions {
    path: String,
    /// Tell of what a link leads to, when that is a directory.
    #[serde(default)]
    follow: bool,
}

pub(super) async fn stat(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Query(StatOptions { path, follow }): Query<StatOptions>,
) -> Result<Json<FileEntry>, Failure> {
    let sandbox = find(state.engine(), &id)?;
    let look = move || {
        let files = sandbox.files()?;
        let mut entry = files.stat(&path)?;
        if follow && entry.kind == EntryKind::Symlink && files.list(&path).is_ok() {
            entry.kind = EntryKind::Directory;
        }
        Ok(entry)
    };
    Ok(Json(described(blocking(look).await?)))
}

fn described(entry: Entry) -> FileEntry {
    FileEntry {
        name: entry.name,
        path: entry.path,
        kind: match entry.kind {
            EntryKind::File => FileKind::File,
            EntryKind::Directory => FileKind::Directory,
            EntryKind::Symlink => FileKind::Symlink,
            EntryKind::Other => FileKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        modified_ms: entry.modified_ms,
        target: entry.symlink_target,
    }
}

/// Answers once the first bytes are there, so that what is missing or forbidden has its own status.
/// A failure after that breaks the answer off.
pub(super) async fn copy_out(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Query(At { path }): Query<At>,
) -> Result<Response, Failure> {
    let sandbox = find(state.engine(), &id)?;
    let files = sandbox.files()?;
    let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
    let packer = tokio::task::spawn_blocking(move || {
        let mut writer = PieceWriter { sender, piece: Vec::with_capacity(PIECE_BYTES) };
        let result = files.copy_out(&path, &mut writer);
        match &result {
            Ok(()) => drop(writer.flush()),
            // Before the first bytes the error is the answer; later this breaks it off.
            Err(error) => drop(writer.sender.blocking_send(Err(io::Error::other(error.chain())))),
        }
        result
    });
    let first = match receiver.recv().await {
        Some(Ok(piece)) => piece,
        Some(Err(_)) | None => {
            return match packer.await {
                Ok(Err(error)) => Err(error.into()),
                _ => Err(Failure::new(brood_api::error::ErrorCode::Internal, "the archive came out empty")),
            };
        }
    };
    let rest =
        futures::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let mut response = Response::new(Body::from_stream(futures::stream::iter([Ok(first)]).chain(rest)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}

pub(super) async fn copy_in(
    State(state): State<NativeState>,
    Path(id): Path<String>,
    Query(At { path }): Query<At>,
    body: Body,
) -> Result<StatusCode, Failure> {
    let sandbox = find(state.engine(), &id)?;
    let files = sandbox.files()?;
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
    let unpacker = blocking(move || {
        let reader = PieceReader { receiver, rest: Bytes::new() };
        files.copy_in(reader, &path, Owner::default())
    });
    let carry = async move {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            // The unpacker has refused the archive: it says why, and the rest is not wanted.
            if sender.send(piece.map_err(io::Error::other)).await.is_err() {
                break;
            }
        }
    };
    let (result, ()) = tokio::join!(unpacker, carry);
    result?;
    Ok(StatusCode::NO_CONTENT)
}

struct PieceWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct PieceReader {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
