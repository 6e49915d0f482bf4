//! The container of an encoded page.
//!
//! ```text
//! 0       2           6 (only if the codec refers to an entry)      2 + length
//! +-------+-----------+---------------------------------------------+
//! | head  | entry     | content                                     |
//! +-------+-----------+---------------------------------------------+
//! ```
//!
//! *head*, little endian: bits 0 to 11 the length of all that follows, bits 12 to 15 the codec. The length 4,096 of a
//! raw page does not fit and is written as 0. So a frame knows its own end: the pool stores no length beside
//! it, and sixteen near-identical siblings, which pack to some 65 bytes a page, pay two bytes for it.

use super::{Codec, DecodeError};
use crate::page::{EntryId, PAGE_SIZE};

/// Bytes of the head.
pub const HEAD_BYTES: usize = 2;

/// Bytes of the reference's number behind the head.
pub const REFERENCE_BYTES: usize = 4;

/// Bytes of the largest frame: a raw page.
pub const MAX_FRAME_BYTES: usize = HEAD_BYTES + PAGE_SIZE;

const LENGTH_MASK: u16 = 0x0fff;
const CODEC_SHIFT: u32 = 12;

/// A frame taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// How the content is encoded.
    pub codec: Codec,
    /// The entry that the content refers to.
    pub reference: Option<EntryId>,
    /// What the codec wrote.
    pub content: &'a [u8],
}

/// The length in bytes of the whole frame that starts with `bytes`, read from its head alone.
///
/// # Errors
/// [`DecodeError::Truncated`] if there are not even two bytes.
pub fn frame_bytes(bytes: &[u8]) -> Result<usize, DecodeError> {
    let (head, _) = bytes.split_first_chunk().ok_or(DecodeError::Truncated { need: HEAD_BYTES, have: bytes.len() })?;
    let head = u16::from_le_bytes(*head);
    Ok(HEAD_BYTES
        + match usize::from(head & LENGTH_MASK) {
            0 if head >> CODEC_SHIFT == Codec::Raw as u16 => PAGE_SIZE,
            length => length,
        })
}

/// Takes a frame apart; bytes behind its end are ignored.
///
/// # Errors
/// [`DecodeError::Truncated`], [`DecodeError::UnknownCodec`]; the content is not looked at.
pub fn parse(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    let need = frame_bytes(bytes)?;
    let body = bytes.get(HEAD_BYTES..need).ok_or(DecodeError::Truncated { need, have: bytes.len() })?;
    let bits = (u16::from_le_bytes([bytes[0], bytes[1]]) >> CODEC_SHIFT) as u8;
    let codec = Codec::from_frame_bits(bits).ok_or(DecodeError::UnknownCodec(bits))?;
    if !codec.refers_to_entry() {
        return Ok(Frame { codec, reference: None, content: body });
    }
    let (id, content) =
        body.split_first_chunk().ok_or(DecodeError::Truncated { need: HEAD_BYTES + REFERENCE_BYTES, have: need })?;
    Ok(Frame { codec, reference: Some(EntryId::from_bits(u32::from_le_bytes(*id))), content })
}

/// The codec of the frame that starts with `head`, of which two bytes are enough.
///
/// # Errors
/// As [`parse`].
pub fn codec_of(head: &[u8]) -> Result<Codec, DecodeError> {
    let second = *head.get(1).ok_or(DecodeError::Truncated { need: HEAD_BYTES, have: head.len() })?;
    let bits = second >> (CODEC_SHIFT - 8);
    Codec::from_frame_bits(bits).ok_or(DecodeError::UnknownCodec(bits))
}

/// The entry that the frame starting with `head` refers to. Needs the frame's first six bytes only, so the pool
/// can follow references without reading content.
///
/// # Errors
/// As [`parse`].
pub fn reference_of(head: &[u8]) -> Result<Option<EntryId>, DecodeError> {
    if !codec_of(head)?.refers_to_entry() {
        return Ok(None);
    }
    let need = HEAD_BYTES + REFERENCE_BYTES;
    let id = head.get(HEAD_BYTES..).and_then(|rest| rest.first_chunk());
    let id = id.ok_or(DecodeError::Truncated { need, have: head.len() })?;
    Ok(Some(EntryId::from_bits(u32::from_le_bytes(*id))))
}

/// Begins a frame in `out` (cleared first): room for the head, and the reference's number.
pub(crate) fn begin(out: &mut Vec<u8>, reference: Option<EntryId>) {
    out.clear();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    if let Some(id) = reference {
        out.extend_from_slice(&id.to_bits().to_le_bytes());
    }
}

/// Writes the head of the frame that [`begin`] began, now that its content is there.
///
/// # Panics
/// If the content is longer than a page (or as long, and not raw): encoders give up before that.
pub(crate) fn finish(out: &mut [u8], codec: Codec) {
    let length = out.len() - HEAD_BYTES;
    assert!(
        length < PAGE_SIZE || codec == Codec::Raw && length == PAGE_SIZE,
        "{length} bytes of {} content don't fit into a frame",
        codec.name()
    );
    let head = (length as u16 & LENGTH_MASK) | (codec as u16) << CODEC_SHIFT;
    out[..HEAD_BYTES].copy_from_slice(&head.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn head_and_reference_survive_for_every_codec_and_length() {
        for codec in Codec::ALL.into_iter().filter(|c| *c != Codec::Duplicate) {
            for length in [0, 1, 2, 127, 128, 4000, 4090] {
                if codec == Codec::Raw && length == 0 {
                    continue;
                }
                let id = codec.refers_to_entry().then(|| EntryId::from_bits(0xfedc_ba98));
                let mut bytes = Vec::new();
                begin(&mut bytes, id);
                bytes.extend(std::iter::repeat_n(7, length));
                finish(&mut bytes, codec);
                let whole = bytes.len();
                bytes.extend([1; 8]);
                let frame = parse(&bytes).expect("a frame just written");
                assert_eq!(frame.codec, codec);
                assert_eq!(frame.reference, id);
                assert_eq!(frame.content.len(), length);
                assert_eq!(frame_bytes(&bytes), Ok(whole));
                let head = &bytes[..HEAD_BYTES + REFERENCE_BYTES];
                assert_eq!(reference_of(head), Ok(id));
            }
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_reach_beyond_the_buffer(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(frame) = parse(&bytes) {
                prop_assert!(frame.content.len() <= bytes.len() - HEAD_BYTES);
                prop_assert_eq!(reference_of(&bytes), Ok(frame.reference));
            }
        }
    }
}
