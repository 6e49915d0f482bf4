//! Page codecs: each turns one page into a few bytes and back.
//!
//! | codec | needs | good for |
//! | --- | --- | --- |
//! | [`same_filled`] | nothing | zeroed or patterned pages |
//! | [`run_length`] | nothing | pages that are mostly a few repeated words |
//! | [`duplicate`] | an equal entry | pages that a sibling has too: no bytes at all, one more reference |
//! | [`sparse_delta`] | a reference page | pages of which few words changed |
//! | [`zstd_prefix`] | a reference page | pages whose content moved or changed a lot |
//! | [`zstd_dictionary`] | a trained dictionary | fresh pages that resemble others of the cohort |
//! | [`zstd_plain`] | nothing | fresh pages |
//! | [`raw`] | nothing | noise |
//!
//! [`Encoder`] picks the smallest, [`Decoder`] reads any; [`frame`] is the container that both agree on. Decoders
//! treat every byte as hostile: whatever they are given, they return a page or a [`DecodeError`].

pub mod duplicate;
pub mod frame;
pub mod raw;
pub mod run_length;
pub mod same_filled;
pub mod sparse_delta;
pub mod zstd_dictionary;
pub mod zstd_plain;
pub mod zstd_prefix;

mod decoder;
mod encoder;
mod zstd_frame;

pub use decoder::{Decoder, References};
pub use encoder::{Candidates, Encoded, Encoder, EncoderSettings};

use crate::page::EntryId;

/// How a frame's page is encoded. The discriminant is the number in the frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The page itself.
    Raw = 0,
    /// One 8-byte word, repeated.
    SameFilled = 1,
    /// Runs of repeated words.
    RunLength = 2,
    /// Words that differ from the template's page at the same key.
    SparseTemplate = 3,
    /// Words that differ from a reference page in the pool.
    SparseEntry = 4,
    /// Zstandard on its own.
    Zstd = 5,
    /// Zstandard with a trained dictionary.
    ZstdDictionary = 6,
    /// Zstandard with the template's page as prefix.
    ZstdTemplate = 7,
    /// Zstandard with a reference page in the pool as prefix.
    ZstdEntry = 8,
    /// Equal to a page that is already there; never framed, since a shared entry needs no bytes of its own.
    Duplicate = 9,
}

impl Codec {
    /// Every codec, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Raw,
        Self::SameFilled,
        Self::RunLength,
        Self::SparseTemplate,
        Self::SparseEntry,
        Self::Zstd,
        Self::ZstdDictionary,
        Self::ZstdTemplate,
        Self::ZstdEntry,
        Self::Duplicate,
    ];

    /// From the number in a frame header; [`Codec::Duplicate`] is not a frame.
    #[must_use]
    pub fn from_frame_bits(bits: u8) -> Option<Self> {
        let codec = *Self::ALL.get(usize::from(bits))?;
        (codec != Self::Duplicate).then_some(codec)
    }

    /// A short name for tables and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::SameFilled => "same-filled",
            Self::RunLength => "run-length",
            Self::SparseTemplate => "sparse, template",
            Self::SparseEntry => "sparse, sibling",
            Self::Zstd => "zstd",
            Self::ZstdDictionary => "zstd, dictionary",
            Self::ZstdTemplate => "zstd, template prefix",
            Self::ZstdEntry => "zstd, sibling prefix",
            Self::Duplicate => "duplicate",
        }
    }

    /// Whether the frame names a reference page in the pool.
    #[must_use]
    pub fn refers_to_entry(self) -> bool {
        matches!(self, Self::SparseEntry | Self::ZstdEntry)
    }

    /// Whether decoding needs the template's page at the key that the page was encoded for.
    #[must_use]
    pub fn refers_to_template(self) -> bool {
        matches!(self, Self::SparseTemplate | Self::ZstdTemplate)
    }

    /// Typical decoding time in nanoseconds, measured by `benches/codecs.rs` on pages of Python processes (one
    /// core of a 2024 server); what refers to an entry decodes that first, half of the time by Zstandard. Only ratios matter: it
    /// breaks ties and weighs size against speed.
    #[must_use]
    pub fn decode_cost_ns(self) -> u32 {
        match self {
            Self::Duplicate => 0,
            Self::Raw | Self::SameFilled => 100,
            Self::RunLength | Self::SparseTemplate => 250,
            Self::ZstdTemplate => 1_600,
            Self::SparseEntry => 2_500,
            Self::ZstdEntry => 4_000,
            Self::Zstd | Self::ZstdDictionary => 4_700,
        }
    }
}

/// A set of codecs, for switching them off one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecSet(u16);

impl CodecSet {
    /// All of them.
    pub const ALL: Self = Self((1 << Codec::ALL.len()) - 1);

    /// None but [`Codec::Raw`], which can't be switched off: every page must have an encoding.
    pub const RAW_ONLY: Self = Self(1);

    /// This set without `codec`.
    #[must_use]
    pub const fn without(self, codec: Codec) -> Self {
        Self(self.0 & !(1 << codec as u8) | Self::RAW_ONLY.0)
    }

    /// This set with `codec`.
    #[must_use]
    pub const fn with(self, codec: Codec) -> Self {
        Self(self.0 | 1 << codec as u8)
    }

    /// Whether `codec` may be used.
    #[must_use]
    pub const fn contains(self, codec: Codec) -> bool {
        self.0 & 1 << codec as u8 != 0
    }
}

impl Default for CodecSet {
    fn default() -> Self {
        Self::ALL
    }
}

/// Why bytes are not a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame ends before the length that its header or its content announces.
    #[error("frame truncated: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes needed at least.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// The header names a codec that doesn't exist.
    #[error("unknown codec {0}")]
    UnknownCodec(u8),
    /// The content describes something that is not one page.
    #[error("{codec} content is not one page")]
    Malformed {
        /// The codec's name.
        codec: &'static str,
    },
    /// The frame is a difference to the template's page, and there is none.
    #[error("template page missing")]
    MissingTemplate,
    /// The frame is a difference to an entry that can't be read.
    #[error("reference page {0:?} missing")]
    MissingReference(EntryId),
    /// The frame's dictionary is gone.
    #[error("dictionary version {0} missing")]
    MissingDictionary(u16),
}

impl DecodeError {
    pub(crate) fn malformed(codec: Codec) -> Self {
        Self::Malformed { codec: codec.name() }
    }
}
