//! Content on its way between an asynchronous connection and a file, whose calls wait: a few pieces
//! are in flight, however big the whole is.

use std::fs::File;
use std::io::{self, Read, Write};

use axum::body::Body;
use brood_sandbox::error::EngineError;
use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;

/// Pieces in flight, each as long as one read.
const PIECES_AHEAD: usize = 8;
const PIECE_BYTES: usize = 128 << 10;

/// Why content did not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    /// The connection broke, or what came over it is malformed.
    #[error("the content breaks off or is malformed: {0}")]
    Source(String),
    /// The file system has no room.
    #[error("not enough space in the sandbox")]
    NoSpace,
    /// The file could not be made or written.
    #[error("{0}")]
    File(String),
}

impl TransferError {
    fn of_write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::File(error.to_string()),
        }
    }
}

impl From<EngineError> for TransferError {
    fn from(error: EngineError) -> Self {
        if error.kind() == brood_sandbox::error::ErrorKind::Exhausted {
            return Self::NoSpace;
        }
        Self::File(error.chain())
    }
}

/// The far end of a channel as something to read from.
struct Pieces {
    receiver: mpsc::Receiver<Result<Bytes, String>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Writes all that `content` gives to the file that `open` opens.
pub(super) async fn receive<E: std::fmt::Display>(
    mut content: impl Stream<Item = Result<Bytes, E>> + Unpin,
    gzip: bool,
    open: impl FnOnce() -> Result<File, TransferError> + Send + 'static,
) -> Result<(), TransferError> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let writer = tokio::task::spawn_blocking(move || {
        let mut file = open()?;
        let pieces = Pieces { receiver, piece: Bytes::new() };
        if gzip { copy(MultiGzDecoder::new(pieces), &mut file) } else { copy(pieces, &mut file) }
    });
    while let Some(piece) = content.next().await {
        let broken = piece.is_err();
        let sent = sender.send(piece.map_err(|error| error.to_string())).await;
        // The writer has failed, which it tells itself.
        if sent.is_err() || broken {
            break;
        }
    }
    drop(sender);
    writer.await.unwrap_or_else(|error| Err(TransferError::File(error.to_string())))
}

fn copy(mut source: impl Read, file: &mut File) -> Result<(), TransferError> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = source.read(&mut buffer).map_err(|error| TransferError::Source(error.to_string()))?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..count]).map_err(|error| TransferError::of_write(&error))?;
    }
}

/// The next `length` bytes of a file as a body.
pub(super) fn send(file: File, length: u64, gzip: bool) -> Body {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, io::Error>>(PIECES_AHEAD);
    tokio::task::spawn_blocking(move || {
        let sink = Sink(sender.clone());
        let content = file.take(length);
        let sent = if gzip { send_gzip(content, sink) } else { send_plain(content, sink) };
        if let Err(error) = sent {
            // Breaks the body off, so that the client does not take it for whole; if the client is
            // gone nobody hears it.
            drop(sender.blocking_send(Err(error)));
        }
    });
    Body::from_stream(futures::stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    }))
}

fn send_plain(mut content: io::Take<File>, sink: Sink) -> io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let count = content.read(&mut piece)?;
        if count == 0 {
            // A file that was cut meanwhile would leave the client waiting for the rest.
            return if content.limit() == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        piece.truncate(count);
        sink.give(piece.into())?;
    }
}

fn send_gzip(mut content: io::Take<File>, sink: Sink) -> io::Result<()> {
    let mut encoder = GzEncoder::new(io::BufWriter::with_capacity(PIECE_BYTES, sink), Compression::fast());
    io::copy(&mut content, &mut encoder)?;
    encoder.finish()?.flush()
}

struct Sink(mpsc::Sender<Result<Bytes, io::Error>>);

impl Sink {
    fn give(&self, piece: Bytes) -> io::Result<()> {
        self.0.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.give(Bytes::copy_from_slice(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
