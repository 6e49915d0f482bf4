//! From pages to the smallest frame.
//!
//! The order of attempts is what makes it fast: cheap codecs first, each limited to what would still win, and Zstandard
//! (a hundred times slower than a delta) only where the best so far is large enough for it to matter.

use super::frame::{self, HEAD_BYTES, MAX_FRAME_BYTES, REFERENCE_BYTES};
use super::zstd_dictionary::Dictionary;
use super::zstd_frame::Compressor;
use super::{Codec, CodecSet, raw, run_length, same_filled, sparse_delta, zstd_dictionary, zstd_plain, zstd_prefix};
use crate::page::{EntryId, PAGE_SIZE, Page};

/// A sparse delta above this is only tried where Zstandard can't be: it would lose anyway, and finding
/// out where a fresh page stops resembling its reference costs a microsecond.
const SPARSE_WORTH_BYTES: usize = 1_600;

/// The same for runs, which are rarely the best but of pages that are nearly empty.
const RUNS_WORTH_BYTES: usize = 400;

/// If the reference as prefix brings a page below this, Zstandard without it can't do better.
const PREFIX_SETTLES_BYTES: usize = 1_000;

/// How the encoder weighs and limits its attempts.
#[derive(Clone, Copy, Debug)]
pub struct EncoderSettings {
    /// Codecs that may be used.
    pub codecs: CodecSet,
    /// Zstandard's level. On fresh pages of Python heaps: -1 is a third faster than 3 and 9 % larger, 5 twice as slow and 4 %
    /// smaller.
    pub zstd_level: i32,
    /// How many bytes one microsecond of decoding is worth. 0 wants the smallest frame whatever it costs to decode.
    pub bytes_per_microsecond: u32,
    /// A frame of at most this many bytes is good enough; no slower codec is tried.
    pub good_enough_bytes: usize,
}

impl Default for EncoderSettings {
    fn default() -> Self {
        Self { codecs: CodecSet::ALL, zstd_level: 3, bytes_per_microsecond: 4, good_enough_bytes: 160 }
    }
}

impl EncoderSettings {
    /// The limit for a codec that loses above `worth` bytes to Zstandard, if that is there to win.
    fn worth(&self, limit: usize, worth: usize) -> usize {
        if self.codecs.contains(Codec::Zstd) { limit.min(worth) } else { limit }
    }
}

/// What a page may be encoded against.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidates<'a> {
    /// The template's page at the page's key.
    pub template: Option<&'a Page>,
    /// Decoded pages of entries that are not themselves encoded against an entry; best guess first, few.
    pub entries: &'a [(EntryId, &'a Page)],
    /// The cohort's current dictionary.
    pub dictionary: Option<&'a Dictionary>,
}

/// The smallest frame that was found; lives in the encoder's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// The codec that won.
    pub codec: Codec,
    /// The entry that the frame refers to.
    pub reference: Option<EntryId>,
    /// The whole frame.
    pub frame: &'a [u8],
}

/// Encodes pages, one thread's worth: keeps contexts and buffers.
#[derive(Debug)]
pub struct Encoder {
    settings: EncoderSettings,
    compressor: Compressor,
    contest: Contest,
}

impl Encoder {
    /// An encoder with fresh contexts (some 600 KiB once Zstandard has been used).
    #[must_use]
    pub fn new(settings: EncoderSettings) -> Self {
        Self { settings, compressor: Compressor::new(), contest: Contest::new(settings) }
    }

    /// How it weighs.
    #[must_use]
    pub fn settings(&self) -> &EncoderSettings {
        &self.settings
    }

    /// Finds the best frame for `page`. Always succeeds, since a raw page is a frame too. Whether the page
    /// is equal to a candidate is for the caller to see first (an equal page needs no frame).
    pub fn encode(&mut self, page: &Page, candidates: Candidates<'_>) -> Encoded<'_> {
        self.contest.clear();
        let same = |_, out: &mut Vec<u8>| same_filled::encode(page, out);
        if self.contest.attempt(Codec::SameFilled, None, same) {
            return self.contest.winner(page);
        }
        let base = self.try_deltas(page, candidates);
        if !self.good_enough() {
            let worth = self.settings.worth(usize::MAX, RUNS_WORTH_BYTES);
            let runs = |limit: usize, out: &mut Vec<u8>| run_length::encode(page, limit.min(worth), out);
            self.contest.attempt(Codec::RunLength, None, runs);
        }
        if !self.good_enough() {
            self.try_zstd(page, base, candidates.dictionary);
        }
        self.contest.winner(page)
    }

    fn good_enough(&self) -> bool {
        self.contest.best_bytes() <= self.settings.good_enough_bytes
    }

    /// Sparse deltas against each candidate. Returns the one that the page resembles most.
    fn try_deltas<'a>(&mut self, page: &Page, candidates: Candidates<'a>) -> Option<Base<'a>> {
        let entries = candidates.entries.iter().map(|(id, page)| Base { entry: Some(*id), page });
        let template = candidates.template.map(|page| Base { entry: None, page });
        let mut best = None;
        for base in template.into_iter().chain(entries) {
            let won = self.contest.attempt(base.sparse(), base.entry, |limit, out| {
                let limit = self.settings.worth(limit, SPARSE_WORTH_BYTES);
                sparse_delta::encode(page, base.page, limit, out)
            });
            if won || best.is_none() {
                best = Some(base);
            }
            if self.good_enough() {
                break;
            }
        }
        best
    }

    fn try_zstd(&mut self, page: &Page, base: Option<Base<'_>>, dictionary: Option<&Dictionary>) {
        let Self { settings, compressor, contest } = self;
        let level = settings.zstd_level;
        if let Some(base) = base {
            contest.attempt(base.prefix(), base.entry, |limit, out| {
                zstd_prefix::encode(compressor, page, base.page, level, limit, out)
            });
            if contest.best_bytes() <= PREFIX_SETTLES_BYTES {
                return;
            }
        }
        if let Some(dictionary) = dictionary {
            contest.attempt(Codec::ZstdDictionary, None, |limit, out| {
                zstd_dictionary::encode(compressor, page, dictionary, limit, out)
            });
        }
        if dictionary.is_none() || !settings.codecs.contains(Codec::ZstdDictionary) {
            contest.attempt(Codec::Zstd, None, |limit, out| zstd_plain::encode(compressor, page, level, limit, out));
        }
    }
}

/// A page to encode against.
#[derive(Clone, Copy)]
struct Base<'a> {
    /// `None`: the template's page.
    entry: Option<EntryId>,
    page: &'a Page,
}

impl Base<'_> {
    fn sparse(self) -> Codec {
        match self.entry {
            None => Codec::SparseTemplate,
            Some(_) => Codec::SparseEntry,
        }
    }

    fn prefix(self) -> Codec {
        match self.entry {
            None => Codec::ZstdTemplate,
            Some(_) => Codec::ZstdEntry,
        }
    }
}

/// The best frame so far and the buffer of the next attempt.
#[derive(Debug)]
struct Contest {
    settings: EncoderSettings,
    best: Vec<u8>,
    trial: Vec<u8>,
    /// `None` while nothing beats the raw page, which is not written before the end.
    codec: Option<Codec>,
    reference: Option<EntryId>,
}

impl Contest {
    fn new(settings: EncoderSettings) -> Self {
        Self {
            settings,
            best: Vec::with_capacity(2 * MAX_FRAME_BYTES),
            trial: Vec::with_capacity(2 * MAX_FRAME_BYTES),
            codec: None,
            reference: None,
        }
    }

    fn clear(&mut self) {
        self.codec = None;
        self.reference = None;
    }

    fn best_bytes(&self) -> usize {
        self.codec.map_or(MAX_FRAME_BYTES, |_| self.best.len())
    }

    /// What decoding by `codec` costs, in bytes.
    fn cost_bytes(&self, codec: Codec) -> usize {
        let rate = u64::from(self.settings.bytes_per_microsecond);
        (u64::from(codec.decode_cost_ns()) * rate / 1_000) as usize
    }

    /// Runs `encode` with the number of content bytes that would still win, and keeps its frame if it does.
    fn attempt(
        &mut self,
        codec: Codec,
        reference: Option<EntryId>,
        encode: impl FnOnce(usize, &mut Vec<u8>) -> Option<()>,
    ) -> bool {
        if !self.settings.codecs.contains(codec) {
            return false;
        }
        let leader = self.codec.unwrap_or(Codec::Raw);
        let slower = codec.decode_cost_ns() >= leader.decode_cost_ns();
        let overhead =
            HEAD_BYTES + reference.map_or(0, |_| REFERENCE_BYTES) + self.cost_bytes(codec) + usize::from(slower);
        let budget = self.best_bytes() + self.cost_bytes(leader);
        // A frame's length has twelve bits.
        let limit = budget.saturating_sub(overhead).min(PAGE_SIZE - 1 - REFERENCE_BYTES);
        frame::begin(&mut self.trial, reference);
        let start = self.trial.len();
        if encode(limit, &mut self.trial).is_none() || self.trial.len() - start > limit {
            return false;
        }
        frame::finish(&mut self.trial, codec);
        std::mem::swap(&mut self.best, &mut self.trial);
        self.codec = Some(codec);
        self.reference = reference;
        true
    }

    fn winner(&mut self, page: &Page) -> Encoded<'_> {
        let codec = *self.codec.get_or_insert_with(|| {
            frame::begin(&mut self.best, None);
            raw::encode(page, &mut self.best);
            frame::finish(&mut self.best, Codec::Raw);
            Codec::Raw
        });
        Encoded { codec, reference: self.reference, frame: &self.best }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Decoder, References};
    use crate::testing::{any_page, edited_page, trained_dictionary};
    use proptest::prelude::*;

    fn decode(bytes: &[u8], candidates: Candidates<'_>) -> Page {
        let frame = frame::parse(bytes).expect("an encoder's frame");
        let entry = frame.reference.and_then(|id| {
            let mut entries = candidates.entries.iter();
            entries.find(|(other, _)| *other == id).map(|(_, page)| *page)
        });
        let references = References { template: candidates.template, entry, dictionary: candidates.dictionary };
        let mut page = [1; PAGE_SIZE];
        Decoder::new().decode(frame, references, &mut page).expect("an encoder's frame");
        page
    }

    #[test]
    fn an_equal_page_still_gets_a_frame_that_decodes() {
        let page: Page = std::array::from_fn(|i| ((i * i) >> 3) as u8);
        let candidates = Candidates { template: Some(&page), ..Default::default() };
        let mut encoder = Encoder::new(EncoderSettings::default());
        let frame = encoder.encode(&page, candidates).frame.to_vec();
        assert!(frame.len() < 40, "{} bytes", frame.len());
        assert_eq!(decode(&frame, candidates), page);
    }

    #[test]
    fn noise_is_stored_raw() {
        let mut state = 1u64;
        let page: Page = std::array::from_fn(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        });
        let mut encoder = Encoder::new(EncoderSettings::default());
        let encoded = encoder.encode(&page, Candidates::default());
        assert_eq!(encoded.codec, Codec::Raw);
        assert_eq!(encoded.frame.len(), MAX_FRAME_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]
        #[test]
        fn identity_whatever_is_switched_off(
            (template, page) in edited_page(),
            sibling in any_page(),
            bits in 0u16..1024,
            bytes_per_microsecond in prop_oneof![Just(0u32), Just(4), Just(1000)],
            has_template: bool,
        ) {
            let dictionary = trained_dictionary(1);
            let codecs = Codec::ALL.into_iter().fold(CodecSet::ALL, |set, codec| {
                if bits >> codec as u16 & 1 == 0 { set.without(codec) } else { set }
            });
            let settings = EncoderSettings { codecs, bytes_per_microsecond, ..Default::default() };
            let entries = [(EntryId(5), &*sibling)];
            let candidates = Candidates {
                template: has_template.then_some(&template),
                entries: &entries,
                dictionary: Some(&dictionary),
            };
            let mut encoder = Encoder::new(settings);
            let encoded = encoder.encode(&page, candidates);
            prop_assert!(codecs.contains(encoded.codec));
            prop_assert!(encoded.frame.len() <= MAX_FRAME_BYTES);
            let back = decode(encoded.frame, candidates);
            prop_assert_eq!(&back[..], &page[..]);
        }
    }
}
