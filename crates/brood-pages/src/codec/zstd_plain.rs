//! Zstandard on its own: for fresh pages that resemble nothing known. Some 4:1 on heaps of Python programs.
//!
//! Content: one compressed block.

use super::zstd_frame::{Compressor, Decompressor};
use super::{Codec, DecodeError};
use crate::page::Page;

/// Appends the block, or `None` if it would take more than `limit_bytes`.
pub(super) fn encode(
    compressor: &mut Compressor,
    page: &Page,
    level: i32,
    limit_bytes: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    compressor.block(limit_bytes, out, |context, frame| context.compress(frame, page, level))
}

/// Decompresses the block.
pub(super) fn decode(decompressor: &mut Decompressor, content: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    decompressor
        .page(content, page, |context, page, frame| context.decompress(page, frame))
        .ok_or(DecodeError::malformed(Codec::Zstd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::testing::{any_page, hostile_content};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn identity(page in any_page(), level in -3i32..=6) {
            let mut content = Vec::new();
            if encode(&mut Compressor::new(), &page, level, PAGE_SIZE, &mut content).is_some() {
                let mut back = [1; PAGE_SIZE];
                prop_assert_eq!(decode(&mut Decompressor::new(), &content, &mut back), Ok(()));
                prop_assert_eq!(&back[..], &page[..]);
            }
        }

        #[test]
        fn hostile_content_is_an_answer_or_an_error(content in hostile_content()) {
            let mut page = [0; PAGE_SIZE];
            if let Err(error) = decode(&mut Decompressor::new(), &content, &mut page) {
                prop_assert_eq!(error, DecodeError::malformed(Codec::Zstd));
            }
        }
    }
}
