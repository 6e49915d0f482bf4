//! A cohort's encoded pages: the pieces of this crate put together.
//!
//! [`Cohort`] is what siblings share: references, indexes, dictionaries. [`Squeezer`] and [`Reader`] are what a thread
//! brings: contexts and buffers. A page is squeezed in two steps, so that whoever shares the pool between threads
//! needs exclusive access only for the short second one:
//!
//! 1. [`Squeezer::prepare`] looks for candidates and encodes; the pool is only read.
//! 2. [`Squeezer::commit`] stores or shares; the pool is changed. If what the plan relies on was freed in between, it says so
//!    and changes nothing.

mod reader;
mod squeezer;

pub use reader::Reader;
pub use squeezer::{Plan, Squeezed, Squeezer};

use std::sync::Arc;

use crate::codec::duplicate::{self, DuplicateIndex};
use crate::page::Page;
use crate::pool::{CohortId, Pool, PoolError, Region};
use crate::reference::{Dictionaries, ReferenceTable, SimilarityIndex, TrainedDictionary, Training};

/// Places in the indexes of a new cohort.
const MIN_INDEX_PLACES: usize = 1 << 7;

/// An index may take one byte for so many entries: what is found twice is usually found soon.
const ENTRIES_PER_INDEX_BYTE: u64 = 2;

/// An index grows if one lookup in so many finds something: what it finds must pay for its memory.
const LOOKUPS_FOR_A_HIT: u64 = 16;

/// What the siblings of a cohort share. Not a lock in sight: one thread at a time changes it.
#[derive(Debug)]
pub struct Cohort {
    id: CohortId,
    references: ReferenceTable,
    duplicates: DuplicateIndex,
    similar: SimilarityIndex,
    duplicate_use: IndexUse,
    similar_use: IndexUse,
    dictionaries: Dictionaries,
}

/// How well an index did since it was last looked at.
#[derive(Clone, Copy, Debug)]
struct IndexUse {
    places: usize,
    lookups: u64,
    hits: u64,
}

impl IndexUse {
    const NEW: Self = Self { places: MIN_INDEX_PLACES, lookups: 0, hits: 0 };

    /// The larger size that the index should have from now on, if it earned one.
    fn grown(&mut self, entries: u64, place_bytes: usize) -> Option<usize> {
        if self.lookups < self.places as u64 {
            return None;
        }
        let earned = self.hits * LOOKUPS_FOR_A_HIT > self.lookups;
        (self.lookups, self.hits) = (0, 0);
        let affordable = (entries / ENTRIES_PER_INDEX_BYTE) as usize / place_bytes;
        if !earned || affordable < self.places * 2 {
            return None;
        }
        self.places = 1 << affordable.ilog2();
        Some(self.places)
    }
}

impl Cohort {
    /// A cohort without pages.
    #[must_use]
    pub fn new(id: CohortId) -> Self {
        Self {
            id,
            references: ReferenceTable::new(),
            duplicates: DuplicateIndex::with_capacity(MIN_INDEX_PLACES),
            similar: SimilarityIndex::with_capacity(MIN_INDEX_PLACES),
            duplicate_use: IndexUse::NEW,
            similar_use: IndexUse::NEW,
            dictionaries: Dictionaries::new(),
        }
    }

    /// The cohort's number in the pool.
    #[must_use]
    pub fn id(&self) -> CohortId {
        self.id
    }

    /// Its elected references.
    #[must_use]
    pub fn references(&self) -> &ReferenceTable {
        &self.references
    }

    /// Its dictionaries.
    #[must_use]
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.dictionaries
    }

    /// Memory of references' table and indexes, in bytes; dictionaries count themselves.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.references.heap_bytes() + self.duplicates.memory_bytes() + self.similar.memory_bytes()
    }

    /// To be called at the end of a batch of pages: makes this batch's references available, lets the indexes grow.
    ///
    /// # Errors
    /// [`PoolError`] of the pool.
    pub fn settle<R: Region>(&mut self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        let entries = pool.cohort_usage(self.id).entries;
        if let Some(places) = self.duplicate_use.grown(entries, duplicate::SLOT_BYTES) {
            self.duplicates = DuplicateIndex::with_capacity(places);
        }
        if let Some(places) = self.similar_use.grown(entries, SimilarityIndex::PLACE_BYTES) {
            self.similar = SimilarityIndex::with_capacity(places);
        }
        self.references.settle(pool)
    }

    /// Drops references that nothing else needs; see [`ReferenceTable::prune`].
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn prune_references<R: Region>(&mut self, pool: &mut Pool<R>) -> Result<usize, PoolError> {
        self.references.prune(pool, 0)
    }

    /// Pages to train a dictionary on, if that is promising now.
    pub fn training<R: Region>(&mut self, pool: &Pool<R>, reader: &mut Reader) -> Option<Training> {
        if !self.dictionaries.wants_training(pool, self.id) {
            return None;
        }
        let mut dictionaries = std::mem::take(&mut self.dictionaries);
        let set = Arc::clone(dictionaries.set());
        let decode = |entry, page: &mut Page| {
            pool.cohort_of(entry) == Some(self.id) && reader.page(pool, &set, entry, None, page).is_ok()
        };
        let training = dictionaries.training(pool, self.id, decode);
        self.dictionaries = dictionaries;
        training
    }

    /// Uses a trained dictionary for new pages.
    pub fn install<R: Region>(&mut self, pool: &Pool<R>, trained: &TrainedDictionary) {
        self.dictionaries.install(pool, self.id, trained);
    }

    /// Drops dictionary versions that no entry needs any more.
    pub fn retire_dictionaries<R: Region>(&mut self, pool: &Pool<R>) -> usize {
        self.dictionaries.retire(pool, self.id)
    }

    /// Gives back all that the cohort itself holds in the pool.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn release<R: Region>(self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        self.references.release(pool)
    }
}
