//! Zstandard with a reference page as prefix: for pages whose content moved, grew or changed in many places. Worth more
//! than any dictionary, and faster, because a prefix of one page takes next to nothing to digest.
//!
//! Content: one compressed block. The prefix is always taken as raw bytes, even if it begins like a trained dictionary
//! (`as_prefix` in the module `zstd_frame` says how).

use super::zstd_frame::{Compressor, Decompressor, as_prefix};
use super::{Codec, DecodeError};
use crate::page::Page;

/// Appends the block, or `None` if it would take more than `limit_bytes`.
pub(super) fn encode(
    compressor: &mut Compressor,
    page: &Page,
    reference: &Page,
    level: i32,
    limit_bytes: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    compressor
        .block(limit_bytes, out, |context, frame| context.compress_using_dict(frame, page, as_prefix(reference), level))
}

/// Decompresses the block.
pub(super) fn decode(
    decompressor: &mut Decompressor,
    content: &[u8],
    reference: &Page,
    page: &mut Page,
) -> Result<(), DecodeError> {
    decompressor
        .page(content, page, |context, page, frame| context.decompress_using_dict(page, frame, as_prefix(reference)))
        .ok_or(DecodeError::malformed(Codec::ZstdEntry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::testing::{any_page, edited_page, hostile_content};
    use proptest::prelude::*;

    fn check(page: &Page, reference: &Page) -> Result<(), TestCaseError> {
        let mut content = Vec::new();
        let encoded = encode(&mut Compressor::new(), page, reference, 1, PAGE_SIZE, &mut content);
        if encoded.is_some() {
            let mut back = [1; PAGE_SIZE];
            let decoded = decode(&mut Decompressor::new(), &content, reference, &mut back);
            prop_assert_eq!(decoded, Ok(()));
            prop_assert_eq!(&back[..], &page[..]);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn identity((reference, page) in edited_page()) {
            check(&page, &reference)?;
        }

        #[test]
        fn identity_when_the_reference_begins_like_a_dictionary(mut reference in any_page(), page in any_page()) {
            reference[..4].copy_from_slice(&0xec30_a437_u32.to_le_bytes());
            check(&page, &reference)?;
        }

        #[test]
        fn hostile_content_is_an_answer_or_an_error(content in hostile_content(), reference in any_page()) {
            let mut page = [0; PAGE_SIZE];
            if let Err(error) = decode(&mut Decompressor::new(), &content, &reference, &mut page) {
                prop_assert_eq!(error, DecodeError::malformed(Codec::ZstdEntry));
            }
        }
    }
}
