//! The frames of a process session: eight bytes of header, then the payload.
//!
//! ```text
//! byte 0     kind
//! bytes 1-3  zero, reserved
//! bytes 4-7  length of the payload, little-endian
//! ```
//!
//! `docs/native-api.md` tells which frame may be sent when. Standard input is sent against a window:
//! at most [`STDIN_WINDOW_BYTES`] may be on the way, and [`FrameKind::StdinCredit`] opens it again.
//! Signals and resizes therefore never wait behind input that the process does not read.

use bytes::{Buf, Bytes, BytesMut};

/// The name of this protocol in HTTP's `Upgrade` header.
pub const PROTOCOL: &str = "brood-process/1";
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 8;
/// Longest payload: room for the kernel's longest argument list as JSON, and a bound on what one
/// peer can make the other buffer.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Bytes of standard input that may be sent before a credit arrives: four times a pipe's size, so
/// that a fast reader never waits for the window.
pub const STDIN_WINDOW_BYTES: usize = 256 << 10;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client: run this process. Payload: JSON of [`RunRequest`](crate::types::RunRequest).
    Run = 1,
    /// Client: bytes of standard input.
    Stdin = 2,
    /// Client: standard input ends here. No payload.
    StdinEnd = 3,
    /// Client: the terminal's new size. Payload: columns and rows, two bytes each, little-endian.
    Resize = 4,
    /// Client: send this signal. Payload: its number, one byte.
    Signal = 5,
    /// Server: the process runs. Payload: its pid inside the sandbox, four bytes, little-endian.
    Started = 64,
    /// Server: bytes of standard output.
    Stdout = 65,
    /// Server: bytes of standard error.
    Stderr = 66,
    /// Server: bytes of the terminal.
    Terminal = 67,
    /// Server: output that was dropped because nobody read it. Payload: how many bytes, of all
    /// streams, eight bytes, little-endian.
    Lost = 68,
    /// Server: the process ended; no more output follows. Payload: JSON of
    /// [`ExitReport`](brood_sandbox::model::ExitReport).
    Exit = 69,
    /// Server: this many more bytes of standard input may be sent. Payload: four bytes, little-endian.
    StdinCredit = 70,
    /// Server: the last request failed. Payload: JSON of [`ErrorBody`](crate::ErrorBody).
    Error = 71,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Run,
            2 => Self::Stdin,
            3 => Self::StdinEnd,
            4 => Self::Resize,
            5 => Self::Signal,
            64 => Self::Started,
            65 => Self::Stdout,
            66 => Self::Stderr,
            67 => Self::Terminal,
            68 => Self::Lost,
            69 => Self::Exit,
            70 => Self::StdinCredit,
            71 => Self::Error,
            _ => return None,
        })
    }
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind is not one of [`FrameKind`].
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    /// A reserved byte is not zero.
    #[error("a frame whose reserved bytes are not zero")]
    Reserved,
    /// The payload would be longer than [`PAYLOAD_BYTES_MAX`].
    #[error("a frame of {0} bytes, more than {PAYLOAD_BYTES_MAX}")]
    TooLong(u32),
    /// The payload is not what its kind asks for.
    #[error("a {0:?} frame with a malformed payload")]
    Malformed(FrameKind),
}

/// The header of a frame with `length` bytes of payload.
///
/// # Panics
/// When `length` exceeds [`PAYLOAD_BYTES_MAX`]; callers split what they send.
pub fn header(kind: FrameKind, length: usize) -> [u8; HEADER_BYTES] {
    assert!(length <= PAYLOAD_BYTES_MAX, "a payload of {length} bytes is split before it is sent");
    let mut bytes = [0u8; HEADER_BYTES];
    bytes[0] = kind as u8;
    // The assertion above keeps the length far below 2^32.
    bytes[4..].copy_from_slice(&(length as u32).to_le_bytes());
    bytes
}

/// A frame with a payload that is small or must be sent in one piece.
pub fn encode(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&header(kind, payload.len()));
    bytes.extend_from_slice(payload);
    bytes
}

/// Cuts a stream of bytes into frames. Payloads are slices of the buffer that was read into.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// A decoder that begins with bytes that were read already.
    pub fn new(begun: &[u8]) -> Self {
        Self { buffer: BytesMut::from(begun) }
    }

    /// Where the next bytes of the stream are to be appended, with room for some.
    pub fn buffer(&mut self) -> &mut BytesMut {
        /// A first read that fits most tool calls, and the size that bulk transfers settle at.
        const ROOM_BYTES: (usize, usize) = (8 << 10, 256 << 10);
        let room = if self.buffer.capacity() >= ROOM_BYTES.0 { ROOM_BYTES.1 } else { ROOM_BYTES.0 };
        if self.buffer.capacity() - self.buffer.len() < room / 4 {
            self.buffer.reserve(room);
        }
        &mut self.buffer
    }

    /// The next frame, if all of it is there.
    ///
    /// # Errors
    /// When the bytes are no frame; the stream is then of no more use.
    pub fn next_frame(&mut self) -> Result<Option<(FrameKind, Bytes)>, FrameError> {
        let Some((head, _)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, r1, r2, r3, l0, l1, l2, l3] = *head;
        if [r1, r2, r3] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let kind = FrameKind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let payload_bytes = length as usize;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        if self.buffer.len() < HEADER_BYTES + payload_bytes {
            // One allocation for a long frame instead of one per read.
            self.buffer.reserve(HEADER_BYTES + payload_bytes - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some((kind, self.buffer.split_to(payload_bytes).freeze())))
    }
}

/// The fixed-size integers at the start of a payload.
///
/// # Errors
/// [`FrameError::Malformed`] when the payload has another length.
pub fn fixed<const N: usize>(kind: FrameKind, payload: &[u8]) -> Result<[u8; N], FrameError> {
    payload.try_into().map_err(|_| FrameError::Malformed(kind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_headers_are_refused() {
        let refuse = |bytes: &[u8]| Decoder::new(bytes).next_frame().unwrap_err();
        assert_eq!(refuse(&[9, 0, 0, 0, 0, 0, 0, 0]), FrameError::UnknownKind(9));
        assert_eq!(refuse(&[2, 1, 0, 0, 0, 0, 0, 0]), FrameError::Reserved);
        assert_eq!(refuse(&[2, 0, 0, 0, 255, 255, 255, 255]), FrameError::TooLong(u32::MAX));
        assert_eq!(fixed::<4>(FrameKind::Resize, &[1, 2]), Err(FrameError::Malformed(FrameKind::Resize)));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            payloads in prop::collection::vec((0usize..7, prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            cuts in prop::collection::vec(1usize..97, 1..40),
        ) {
            const KINDS: [FrameKind; 7] = [
                FrameKind::Stdin, FrameKind::Stdout, FrameKind::Stderr, FrameKind::Terminal,
                FrameKind::Run, FrameKind::Exit, FrameKind::Error,
            ];
            let expected: Vec<_> = payloads.iter().map(|(k, p)| (KINDS[*k], p.clone())).collect();
            let stream: Vec<u8> = expected.iter().flat_map(|(k, p)| encode(*k, p)).collect();
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, tail) = rest.split_at((*cut).min(rest.len()));
                decoder.buffer().extend_from_slice(piece);
                rest = tail;
                while let Some((kind, payload)) = decoder.next_frame().unwrap() {
                    got.push((kind, payload.to_vec()));
                }
            }
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }
}
