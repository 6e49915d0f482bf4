//! Zstandard dictionaries of a cohort: sampled, trained, judged, versioned, retired.
//!
//! Dictionaries gain little once references exist, so one has to earn its place: it is installed only if, on pages that it
//! was not trained on, it saves more than it costs. Training takes up to seconds; it is a value ([`Training`]) that any
//! thread can run.

use std::sync::Arc;

use crate::codec::zstd_dictionary::Dictionary;
use crate::codec::{Candidates, Codec, CodecSet, Encoder, EncoderSettings};
use crate::page::{EntryId, Page};
use crate::pool::{CohortId, Pool, Region};

/// Dictionaries may take this part of the pool's frames: 2 %.
const POOL_PART: u64 = 50;

/// Pages in the sample. Training time grows with it; gains no longer do.
const SAMPLE_PAGES: usize = 768;

/// Pages without which there is nothing to learn.
const MIN_SAMPLE_PAGES: usize = 128;

/// Dictionary sizes to choose from, in bytes.
const SIZES: [usize; 3] = [64 << 10, 32 << 10, 16 << 10];

/// What a digested dictionary takes at least, as a multiple of its own bytes; what it really takes is known afterwards.
const MIN_DIGESTED_FACTOR: u64 = 3;

/// A dictionary must save this multiple of its memory on the pages that are stored now.
const PAYS_FACTOR: f64 = 2.0;

/// A new version is trained when so many times the fresh pages of the last training have been stored since.
const RETRAIN_GROWTH: u64 = 4;

/// The versions that entries may need, as of some moment. Whoever decodes keeps a shared copy, so that it never waits for
/// who encodes; an entry that is newer than the copy gives [`MissingDictionary`], which means: fetch the set again.
///
/// [`MissingDictionary`]: crate::codec::DecodeError::MissingDictionary
#[derive(Clone, Debug, Default)]
pub struct DictionarySet {
    versions: Vec<Arc<Dictionary>>,
}

impl DictionarySet {
    /// The dictionary of this version.
    #[must_use]
    pub fn get(&self, version: u16) -> Option<&Dictionary> {
        self.versions.iter().find(|dictionary| dictionary.version() == version).map(AsRef::as_ref)
    }
}

/// The dictionaries of one cohort.
#[derive(Debug, Default)]
pub struct Dictionaries {
    /// All versions; the current one is the last, if [`Dictionaries::has_current`].
    set: Arc<DictionarySet>,
    has_current: bool,
    /// A uniform sample of entries that were stored without reference (reservoir sampling).
    sample: Vec<EntryId>,
    /// Fresh pages seen since the last training.
    seen: u64,
    /// Fresh pages that must have been seen before the next.
    train_at: u64,
    next_version: u16,
    random: u64,
}

impl Dictionaries {
    /// No dictionaries yet.
    #[must_use]
    pub fn new() -> Self {
        Self { train_at: MIN_SAMPLE_PAGES as u64 * 4, random: 0x853c_49e6_748f_ea9b, ..Default::default() }
    }

    /// The dictionary for new pages.
    #[must_use]
    pub fn current(&self) -> Option<&Dictionary> {
        self.set.versions.last().filter(|_| self.has_current).map(AsRef::as_ref)
    }

    /// All versions, for decoding.
    #[must_use]
    pub fn set(&self) -> &Arc<DictionarySet> {
        &self.set
    }

    /// Hears of an entry that was stored without reference.
    pub fn stored(&mut self, entry: EntryId) {
        self.seen += 1;
        if self.sample.len() < SAMPLE_PAGES {
            self.sample.push(entry);
            return;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let at = (self.random % self.seen) as usize;
        if let Some(place) = self.sample.get_mut(at) {
            *place = entry;
        }
    }

    /// Whether enough was stored since the last training for another to be promising, and the pool is large enough to carry a
    /// dictionary at all.
    #[must_use]
    pub fn wants_training<R: Region>(&self, pool: &Pool<R>, cohort: CohortId) -> bool {
        self.seen >= self.train_at
            && self.affordable_bytes(pool, cohort) >= SIZES[SIZES.len() - 1] as u64 * MIN_DIGESTED_FACTOR
    }

    /// Memory that a new dictionary may take beside the old versions. (The current one becomes an old one that decodes only.)
    fn affordable_bytes<R: Region>(&self, pool: &Pool<R>, cohort: CohortId) -> u64 {
        let limit = pool.cohort_usage(cohort).frame_bytes / POOL_PART;
        let held = self.set.versions.iter().map(|dictionary| dictionary.retired().memory_bytes() as u64);
        limit.saturating_sub(held.sum())
    }

    /// Takes the sample for training; `decode` gives an entry's page if it is still there. `None` if too few are.
    pub fn training<R: Region>(
        &mut self,
        pool: &Pool<R>,
        cohort: CohortId,
        mut decode: impl FnMut(EntryId, &mut Page) -> bool,
    ) -> Option<Training> {
        let memory_bytes = self.affordable_bytes(pool, cohort);
        let mut pages = Vec::with_capacity(self.sample.len());
        for entry in self.sample.drain(..) {
            let mut page = Box::new([0; _]);
            if decode(entry, &mut page) {
                pages.push(page);
            }
        }
        self.train_at = (self.seen.max(1)).saturating_mul(RETRAIN_GROWTH);
        self.seen = 0;
        let usage = pool.cohort_usage(cohort).by_codec;
        let fresh_bytes = usage.of(Codec::Zstd).1 + usage.of(Codec::ZstdDictionary).1;
        (pages.len() >= MIN_SAMPLE_PAGES).then_some(Training {
            pages,
            memory_bytes,
            fresh_bytes,
            current: self.set.versions.last().filter(|_| self.has_current).cloned(),
        })
    }

    /// Makes a trained dictionary the one for new pages. The one before stays for as long as entries need it.
    pub fn install<R: Region>(&mut self, pool: &Pool<R>, cohort: CohortId, trained: &TrainedDictionary) {
        while pool.dictionary_uses(cohort, self.next_version) != 0 || self.set.get(self.next_version).is_some() {
            self.next_version = self.next_version.wrapping_add(1);
        }
        let dictionary = Dictionary::new(self.next_version, &trained.bytes, trained.level);
        self.next_version = self.next_version.wrapping_add(1);
        let former = self.set.versions.iter().map(|former| Arc::new(former.retired()));
        self.set = Arc::new(DictionarySet { versions: former.chain([Arc::new(dictionary)]).collect() });
        self.has_current = true;
        self.retire(pool, cohort);
    }

    /// Drops old versions that no entry needs any more; returns how many.
    pub fn retire<R: Region>(&mut self, pool: &Pool<R>, cohort: CohortId) -> usize {
        let current = self.current().map(Dictionary::version);
        let needed = |version| Some(version) == current || pool.dictionary_uses(cohort, version) != 0;
        let left: Vec<_> =
            self.set.versions.iter().filter(|dictionary| needed(dictionary.version())).cloned().collect();
        let retired = self.set.versions.len() - left.len();
        if retired != 0 {
            self.set = Arc::new(DictionarySet { versions: left });
        }
        retired
    }

    /// Memory of all versions, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let digested = self.set.versions.iter().map(|dictionary| dictionary.memory_bytes());
        digested.sum::<usize>() + self.sample.capacity() * size_of::<EntryId>()
    }
}

/// Pages to train on, and what the result must beat.
#[derive(Debug)]
pub struct Training {
    pages: Vec<Box<Page>>,
    memory_bytes: u64,
    fresh_bytes: u64,
    current: Option<Arc<Dictionary>>,
}

/// A dictionary that paid on pages it was not trained on.
#[derive(Debug)]
pub struct TrainedDictionary {
    bytes: Vec<u8>,
    level: i32,
    /// The share by which it makes fresh pages smaller than without it (or than the dictionary before).
    pub gain: f64,
}

impl Training {
    /// Trains on half of the sample and judges by the other half; `None` if the gain doesn't justify it. Takes up to seconds.
    #[must_use]
    pub fn run(&self, level: i32) -> Option<TrainedDictionary> {
        let (learn, judge): (Vec<_>, Vec<_>) = self.pages.iter().enumerate().partition(|(i, _)| i % 2 == 0);
        let learn: Vec<&[u8]> = learn.into_iter().map(|(_, page)| page.as_slice()).collect();
        let (bytes, trained) = self.train(&learn, level)?;
        let judge: Vec<&Page> = judge.into_iter().map(|(_, page)| &**page).collect();
        let before = encoded_bytes(&judge, self.current.as_deref(), level);
        let after = encoded_bytes(&judge, Some(&trained), level);
        let gain = 1.0 - after as f64 / before.max(1) as f64;
        let pays = gain * self.fresh_bytes as f64 > PAYS_FACTOR * trained.memory_bytes() as f64;
        pays.then_some(TrainedDictionary { bytes, level, gain })
    }
}

impl Training {
    /// The largest dictionary whose digested form stays within the memory.
    fn train(&self, learn: &[&[u8]], level: i32) -> Option<(Vec<u8>, Dictionary)> {
        let sizes = SIZES.into_iter().filter(|size| *size as u64 * MIN_DIGESTED_FACTOR <= self.memory_bytes);
        let mut candidates = sizes.filter_map(|size| {
            let bytes = zstd::dict::from_samples(learn, size).ok()?;
            let dictionary = Dictionary::new(0, &bytes, level);
            Some((bytes, dictionary))
        });
        candidates.find(|(_, dictionary)| dictionary.memory_bytes() as u64 <= self.memory_bytes)
    }
}

fn encoded_bytes(pages: &[&Page], dictionary: Option<&Dictionary>, level: i32) -> usize {
    let codecs = CodecSet::RAW_ONLY.with(Codec::Zstd).with(Codec::ZstdDictionary);
    let mut encoder = Encoder::new(EncoderSettings { codecs, zstd_level: level, ..Default::default() });
    let candidates = Candidates { dictionary, ..Default::default() };
    pages.iter().map(|page| encoder.encode(page, candidates).frame.len()).sum()
}
