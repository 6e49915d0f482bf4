//! From frames to pages.

use super::frame::Frame;
use super::zstd_dictionary::Dictionary;
use super::zstd_frame::Decompressor;
use super::{Codec, DecodeError, raw, run_length, same_filled, sparse_delta, zstd_dictionary, zstd_plain, zstd_prefix};
use crate::page::{EntryId, Page};

/// What a frame may need besides its own bytes. The caller looks at the frame's codec and reference and provides
/// what they ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct References<'a> {
    /// The template's page at the key that the page is decoded for.
    pub template: Option<&'a Page>,
    /// The decoded reference page of the frame.
    pub entry: Option<&'a Page>,
    /// The dictionary that the frame names.
    pub dictionary: Option<&'a Dictionary>,
}

/// Decodes frames, one thread's worth: keeps the contexts that are costly to make.
#[derive(Debug)]
pub struct Decoder {
    decompressor: Decompressor,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder with fresh contexts (about 160 KiB).
    #[must_use]
    pub fn new() -> Self {
        Self { decompressor: Decompressor::new() }
    }

    /// Rebuilds the page that `frame` encodes.
    ///
    /// # Errors
    /// [`DecodeError`] if the frame is no page or needs what `references` doesn't have; `page` is then unspecified.
    pub fn decode(&mut self, frame: Frame<'_>, references: References<'_>, page: &mut Page) -> Result<(), DecodeError> {
        let content = frame.content;
        let base = if frame.codec.refers_to_template() {
            references.template.ok_or(DecodeError::MissingTemplate)
        } else {
            let id = frame.reference.unwrap_or(EntryId(EntryId::NONE));
            references.entry.ok_or(DecodeError::MissingReference(id))
        };
        match frame.codec {
            Codec::Raw => raw::decode(content, page),
            Codec::SameFilled => same_filled::decode(content, page),
            Codec::RunLength => run_length::decode(content, page),
            Codec::SparseTemplate | Codec::SparseEntry => sparse_delta::decode(content, base?, page),
            Codec::Zstd => zstd_plain::decode(&mut self.decompressor, content, page),
            Codec::ZstdDictionary => {
                zstd_dictionary::decode(&mut self.decompressor, content, references.dictionary, page)
            }
            Codec::ZstdTemplate | Codec::ZstdEntry => zstd_prefix::decode(&mut self.decompressor, content, base?, page),
            // `frame::parse` never gives this one.
            Codec::Duplicate => Err(DecodeError::UnknownCodec(Codec::Duplicate as u8)),
        }
    }
}
