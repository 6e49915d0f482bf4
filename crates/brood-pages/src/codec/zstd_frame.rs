//! Zstandard frames of exactly one page, without what they all share.
//!
//! A frame of a 4,096-byte page begins with seven bytes that never change (magic number, descriptor, content size)
//! and three that follow from its length (the header of its one block). They are cut off when a page is encoded and
//! put back before it is decoded: ten bytes of some hundred.
//!
//! Contexts are reused and own nothing foreign: references and dictionaries are lent for one call each.

use zstd::zstd_safe::{self, CCtx, DCtx};

use crate::page::{PAGE_SIZE, Page};

/// Magic number, descriptor (single segment, two-byte content size, no checksum, no dictionary id), 4,096 - 256.
const HEADER: [u8; 7] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];
const BLOCK_HEADER_BYTES: usize = 3;
/// Low bits of a block header: last block, of the kind "compressed".
const LAST_COMPRESSED: u32 = 0b101;

/// What a trained dictionary begins with. The simple calls would read a page that begins so as one.
const DICTIONARY_MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();

/// The part of `reference` that serves as prefix: all of it, unless it looks like a trained dictionary. Then
/// its first byte is left out; what is left can't look like one, since the magic number doesn't overlap itself.
pub(super) fn as_prefix(reference: &Page) -> &[u8] {
    let skip = usize::from(reference.starts_with(&DICTIONARY_MAGIC));
    &reference[skip..]
}

/// A reusable compression context and its buffer.
pub(super) struct Compressor {
    context: CCtx<'static>,
    frame: Vec<u8>,
}

impl Compressor {
    pub(super) fn new() -> Self {
        Self { context: CCtx::create(), frame: Vec::with_capacity(zstd_safe::compress_bound(PAGE_SIZE)) }
    }

    /// Runs `compress` and appends the block to `out`; `None` if that takes more than `limit_bytes` or Zstandard
    /// found nothing to compress (it then stores, which other codecs do shorter).
    pub(super) fn block(
        &mut self,
        limit_bytes: usize,
        out: &mut Vec<u8>,
        compress: impl FnOnce(&mut CCtx<'static>, &mut Vec<u8>) -> zstd_safe::SafeResult,
    ) -> Option<()> {
        self.frame.clear();
        compress(&mut self.context, &mut self.frame).ok()?;
        let block = only_block(&self.frame)?;
        if block.len() > limit_bytes {
            return None;
        }
        out.extend_from_slice(block);
        Some(())
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

/// The content of the frame's only block, or `None` if the frame isn't one that [`Decompressor::page`] would rebuild.
fn only_block(frame: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = frame.split_first_chunk::<4>()?;
    let (&descriptor, rest) = rest.split_first()?;
    // A dictionary may have left its id (0, 1, 2 or 4 bytes); our own headers name the dictionary.
    let id_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (size, rest) = rest.get(id_bytes..)?.split_first_chunk::<2>()?;
    if *magic != HEADER[..4] || descriptor & !3 != HEADER[4] || *size != HEADER[5..] {
        return None;
    }
    let (head, block) = rest.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
    (*head == block_header(block.len())).then_some(block)
}

fn block_header(block_bytes: usize) -> [u8; BLOCK_HEADER_BYTES] {
    let [a, b, c, _] = (LAST_COMPRESSED | (block_bytes as u32) << 3).to_le_bytes();
    [a, b, c]
}

/// A reusable decompression context and its buffer.
pub(super) struct Decompressor {
    context: DCtx<'static>,
    frame: Vec<u8>,
}

impl Decompressor {
    pub(super) fn new() -> Self {
        Self { context: DCtx::create(), frame: Vec::with_capacity(HEADER.len() + BLOCK_HEADER_BYTES + PAGE_SIZE) }
    }

    /// Rebuilds the frame around `block` and lets `decompress` fill the page; `None` unless exactly a page came out.
    pub(super) fn page(
        &mut self,
        block: &[u8],
        page: &mut Page,
        decompress: impl FnOnce(&mut DCtx<'static>, &mut [u8], &[u8]) -> zstd_safe::SafeResult,
    ) -> Option<()> {
        self.frame.clear();
        self.frame.extend_from_slice(&HEADER);
        self.frame.extend_from_slice(&block_header(block.len()));
        self.frame.extend_from_slice(block);
        let bytes = decompress(&mut self.context, page, &self.frame).ok()?;
        (bytes == PAGE_SIZE).then_some(())
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_never_looks_like_a_dictionary() {
        let mut page = [0x37; PAGE_SIZE];
        page[..4].copy_from_slice(&DICTIONARY_MAGIC);
        page[4..8].copy_from_slice(&DICTIONARY_MAGIC);
        assert!(!as_prefix(&page).starts_with(&DICTIONARY_MAGIC));
        assert_eq!(as_prefix(&[1; PAGE_SIZE]).len(), PAGE_SIZE);
    }
}
