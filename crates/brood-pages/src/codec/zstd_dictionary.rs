//! Zstandard with a dictionary trained on pages of the cohort: for fresh pages that resemble others.
//!
//! Content: the dictionary's version (two bytes, little endian), then one compressed block.

use std::fmt;
use std::sync::Arc;

use zstd::zstd_safe::{CDict, DDict};

use super::zstd_frame::{Compressor, Decompressor};
use super::{Codec, DecodeError};
use crate::page::Page;

/// A trained dictionary, digested. Immutable; entries name it by its version.
pub struct Dictionary {
    version: u16,
    trained_bytes: usize,
    /// `None` once it is only there for old entries: this direction has the larger tables.
    compress: Option<CDict<'static>>,
    decompress: Arc<DDict<'static>>,
}

impl Dictionary {
    /// Digests a trained dictionary for the given compression level.
    #[must_use]
    pub fn new(version: u16, trained: &[u8], level: i32) -> Self {
        Self {
            version,
            trained_bytes: trained.len(),
            compress: Some(CDict::create(trained, level)),
            decompress: Arc::new(DDict::create(trained)),
        }
    }

    /// The same for decoding only.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self { compress: None, decompress: Arc::clone(&self.decompress), ..*self }
    }

    /// The number that entries know it by, unique within its cohort while any entry needs it.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Bytes of the trained dictionary itself, as it would be stored or sent.
    #[must_use]
    pub fn trained_bytes(&self) -> usize {
        self.trained_bytes
    }

    /// Bytes of memory that it takes, tables included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.compress.as_ref().map_or(0, CDict::sizeof) + self.decompress.sizeof()
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary")
            .field("version", &self.version)
            .field("trained_bytes", &self.trained_bytes)
            .finish_non_exhaustive()
    }
}

/// Appends version and block, or `None` if they would take more than `limit_bytes`.
pub(super) fn encode(
    compressor: &mut Compressor,
    page: &Page,
    dictionary: &Dictionary,
    limit_bytes: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    let prepared = dictionary.compress.as_ref()?;
    let version = dictionary.version.to_le_bytes();
    out.extend_from_slice(&version);
    compressor.block(limit_bytes.checked_sub(version.len())?, out, |context, frame| {
        context.compress_using_cdict(frame, page, prepared)
    })
}

/// The version of the dictionary that `content` needs.
///
/// # Errors
/// [`DecodeError::Malformed`] if there are no two bytes.
pub fn version_of(content: &[u8]) -> Result<u16, DecodeError> {
    let version = content.first_chunk().ok_or(DecodeError::malformed(Codec::ZstdDictionary))?;
    Ok(u16::from_le_bytes(*version))
}

/// Decompresses the block.
pub(super) fn decode(
    decompressor: &mut Decompressor,
    content: &[u8],
    dictionary: Option<&Dictionary>,
    page: &mut Page,
) -> Result<(), DecodeError> {
    let version = version_of(content)?;
    let dictionary =
        dictionary.filter(|dictionary| dictionary.version == version).ok_or(DecodeError::MissingDictionary(version))?;
    decompressor
        .page(&content[2..], page, |context, page, frame| {
            context.decompress_using_ddict(page, frame, &dictionary.decompress)
        })
        .ok_or(DecodeError::malformed(Codec::ZstdDictionary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::testing::{any_page, hostile_content, trained_dictionary};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn identity(page in any_page()) {
            let dictionary = trained_dictionary(7);
            let mut content = Vec::new();
            if encode(&mut Compressor::new(), &page, &dictionary, PAGE_SIZE, &mut content).is_some() {
                prop_assert_eq!(version_of(&content), Ok(7));
                let mut back = [1; PAGE_SIZE];
                let decoded = decode(&mut Decompressor::new(), &content, Some(&dictionary), &mut back);
                prop_assert_eq!(decoded, Ok(()));
                prop_assert_eq!(&back[..], &page[..]);
                let other = trained_dictionary(8);
                let wrong = decode(&mut Decompressor::new(), &content, Some(&other), &mut back);
                prop_assert_eq!(wrong, Err(DecodeError::MissingDictionary(7)));
            }
        }

        #[test]
        fn hostile_content_is_an_answer_or_an_error(mut content in hostile_content(), right: bool) {
            let dictionary = trained_dictionary(7);
            if right && content.len() >= 2 {
                content[..2].copy_from_slice(&7u16.to_le_bytes());
            }
            let mut page = [0; PAGE_SIZE];
            let result = decode(&mut Decompressor::new(), &content, Some(&dictionary), &mut page);
            if let Err(error) = result {
                prop_assert!(
                    error == DecodeError::malformed(Codec::ZstdDictionary)
                        || matches!(error, DecodeError::MissingDictionary(_))
                );
            }
        }
    }
}
