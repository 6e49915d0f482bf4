//! Frames on their way to a client: written in as few system calls as the socket takes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use brood_api::frame::{self, FrameKind, PAYLOAD_BYTES_MAX};
use bytes::{Buf as _, Bytes};
use tokio::net::UnixStream;

/// Pieces in one vectored write; the kernel takes 1024, and a few dozen already fill the socket.
const PIECES_AT_ONCE: usize = 32;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Outbound {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one frame, or several when the payload is too long for one.
    pub(super) fn frame(&mut self, kind: FrameKind, mut payload: Bytes) {
        loop {
            let piece = payload.split_to(payload.len().min(PAYLOAD_BYTES_MAX));
            self.push(Bytes::copy_from_slice(&frame::header(kind, piece.len())));
            if !piece.is_empty() {
                self.push(piece);
            }
            if payload.is_empty() {
                break;
            }
        }
    }

    /// Adds a frame whose payload is a few bytes, in one piece.
    pub(super) fn small(&mut self, kind: FrameKind, payload: &[u8]) {
        self.push(frame::encode(kind, payload).into());
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes what the socket takes now. Ready when all is written.
    pub(super) fn poll_flush(&mut self, stream: &UnixStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pieces.is_empty() {
            std::task::ready!(stream.poll_write_ready(context))?;
            let mut slices = [IoSlice::new(&[]); PIECES_AT_ONCE];
            let count = self.pieces.len().min(PIECES_AT_ONCE);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
            }
            match stream.try_write_vectored(&slices[..count]) {
                Ok(written) => self.written(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn written(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(first) = self.pieces.front_mut() {
            if count < first.len() {
                first.advance(count);
                break;
            }
            count -= first.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use brood_api::frame::Decoder;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn long_payloads_arrive_whole_and_in_order() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let content: Bytes = (0..PAYLOAD_BYTES_MAX + 12_345).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        let mut outbound = Outbound::default();
        outbound.small(FrameKind::Started, &[1, 0, 0, 0]);
        outbound.frame(FrameKind::Stdout, content.clone());
        outbound.frame(FrameKind::Stdout, Bytes::new());
        let total = outbound.bytes();
        let read = tokio::spawn(async move {
            let mut all = vec![0u8; total];
            far.read_exact(&mut all).await.unwrap();
            all
        });
        poll_fn(|context| outbound.poll_flush(&near, context)).await.unwrap();
        assert!(outbound.pieces.is_empty() && outbound.bytes() == 0);
        let mut decoder = Decoder::new(&read.await.unwrap());
        let mut arrived = Vec::new();
        let mut frames = 0;
        while let Some((kind, payload)) = decoder.next_frame().unwrap() {
            frames += 1;
            if kind == FrameKind::Stdout {
                arrived.extend_from_slice(&payload);
            }
        }
        assert_eq!((frames, arrived == content), (4, true));
    }
}
