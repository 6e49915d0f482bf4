//! The pool and the cohorts: what all squeezed sandboxes of a host share.
//!
//! Lock order: a cohort, the pool. The pager only reads the pool; it never waits for a page that is being encoded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use brood_pages::codec::{Codec, EncoderSettings};
use brood_pages::cohort::{Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, CohortUsage, Pool, PoolUsage};
use brood_pages::{EntryId, Page, PageKey, PageNumber};

use crate::cohort::{Kin, SharedCohort};
use crate::error::{Error, Result};
use crate::pool_memory::PoolMemory;

/// Readers that are kept for the next who decodes; each has contexts of some 150 KiB.
const READERS_KEPT: usize = 8;

/// Blocks that one round of compaction empties at most: 4 MiB, some milliseconds under the pool's lock.
const COMPACTED_BLOCKS: usize = 64;

/// How the engine encodes, and how much it may keep.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Most physical memory of the pool, in bytes.
    pub pool_bytes_max: u64,
    /// Codecs and their weights.
    pub encoder: EncoderSettings,
}

impl Default for EngineSettings {
    fn default() -> Self {
        // All that entry names reach; a host's operator sets less.
        Self { pool_bytes_max: 60 << 30, encoder: EncoderSettings::default() }
    }
}

/// Encoded pages of all sandboxes.
#[derive(Debug)]
pub struct MemoryEngine {
    settings: EngineSettings,
    pool: RwLock<Pool<PoolMemory>>,
    cohorts: Mutex<HashMap<CohortId, Arc<SharedCohort>>>,
    readers: Mutex<Vec<Reader>>,
}

/// Where a page's content is kept once its memory was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Zeros need no keeping.
    Zero,
    /// It is the template's.
    AsTemplate,
    /// In an entry of the pool, to which whoever has this holds a reference.
    Pooled(EntryId, Codec),
}

impl MemoryEngine {
    /// An engine with an empty pool.
    ///
    /// # Errors
    /// [`Error::PoolMemory`].
    pub fn new(settings: EngineSettings) -> Result<Arc<Self>> {
        let memory = PoolMemory::new(settings.pool_bytes_max).map_err(Error::PoolMemory)?;
        Ok(Arc::new(Self {
            settings,
            pool: RwLock::new(Pool::new(memory, settings.pool_bytes_max)),
            cohorts: Mutex::default(),
            readers: Mutex::default(),
        }))
    }

    /// The cohort of this number, made on first use.
    pub fn cohort(&self, id: CohortId) -> Arc<SharedCohort> {
        let mut cohorts = self.cohorts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cohorts.entry(id).or_insert_with(|| Arc::new(SharedCohort::new(id))))
    }

    /// Contexts for encoding, one thread's worth.
    #[must_use]
    pub fn squeezer(&self) -> Squeezer {
        Squeezer::new(self.settings.encoder)
    }

    /// Finds out how a page is kept best, and keeps it.
    ///
    /// # Errors
    /// [`Error::Pool`] when the pool is full; nothing is kept then.
    pub fn keep(&self, squeezer: &mut Squeezer, kin: &Kin, page: PageNumber, content: &Page) -> Result<Kept> {
        let mut template = [0; brood_pages::PAGE_SIZE];
        let has_template = kin.copy_template(page, &mut template)?;
        let template = has_template.then_some(&template);
        let key = PageKey { lineage: kin.lineage(), page };
        let mut guard = kin.cohort().lock();
        loop {
            let plan = squeezer.prepare(&mut guard, &self.read_pool(), key, content, template)?;
            match squeezer.commit(&mut guard, &mut self.write_pool(), plan)? {
                None => {}
                Some(Squeezed::Dropped) if has_template => return Ok(Kept::AsTemplate),
                Some(Squeezed::Dropped) => return Ok(Kept::Zero),
                Some(Squeezed::Pooled(entry, codec)) => return Ok(Kept::Pooled(entry, codec)),
            }
        }
    }

    /// Copies the content of a kept page of `kin` out.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Template`]; `into` must not be shown to anybody then.
    pub fn copy(&self, kin: &Kin, page: PageNumber, kept: EntryId, into: &mut Page) -> Result<()> {
        let mut template = [0; brood_pages::PAGE_SIZE];
        let template = kin.copy_template(page, &mut template)?.then_some(&template);
        let dictionaries = kin.cohort().dictionaries();
        let pool = self.read_pool();
        Ok(self.with_reader(|reader| reader.page(&pool, &dictionaries, kept, template, into))?)
    }

    /// Gives up what was kept.
    ///
    /// # Errors
    /// [`Error::Pool`] if the reference was not held.
    pub fn discard(&self, kept: Kept) -> Result<()> {
        match kept {
            Kept::Pooled(entry, _) => Ok(self.write_pool().release(entry)?),
            Kept::Zero | Kept::AsTemplate => Ok(()),
        }
    }

    /// Ends a batch of pages of a cohort: its references become usable, unused memory goes back.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn settle(&self, cohort: &SharedCohort) -> Result<()> {
        let mut guard = cohort.lock();
        guard.settle(&mut self.write_pool())?;
        Ok(())
    }

    /// Idle work: packs the pool, gives free memory back, and trains a dictionary if that is promising (that takes up to
    /// seconds; only the cohort's own lock is held meanwhile for a moment at either end).
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn maintain(&self, cohort: &SharedCohort) -> Result<()> {
        let training = self.with_reader(|reader| cohort.lock().training(&self.read_pool(), reader));
        if let Some(trained) = training.and_then(|training| training.run(self.settings.encoder.zstd_level)) {
            let mut guard = cohort.lock();
            guard.install(&self.read_pool(), &trained);
            cohort.publish_dictionaries(&guard);
        }
        {
            let mut guard = cohort.lock();
            guard.retire_dictionaries(&self.read_pool());
            cohort.publish_dictionaries(&guard);
        }
        while self.write_pool().compact(cohort.id(), COMPACTED_BLOCKS)?.blocks > 0 {}
        self.write_pool().trim()?;
        Ok(())
    }

    /// What the pool takes, and its bookkeeping in bytes.
    #[must_use]
    pub fn pool_usage(&self) -> (PoolUsage, usize) {
        let pool = self.read_pool();
        (pool.usage(), pool.metadata_bytes())
    }

    /// What a cohort's entries take.
    #[must_use]
    pub fn cohort_usage(&self, id: CohortId) -> CohortUsage {
        self.read_pool().cohort_usage(id)
    }

    pub(crate) fn read_pool(&self) -> RwLockReadGuard<'_, Pool<PoolMemory>> {
        self.pool.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_pool(&self) -> RwLockWriteGuard<'_, Pool<PoolMemory>> {
        self.pool.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `read` with decoding contexts that are made once and used again.
    pub(crate) fn with_reader<T>(&self, read: impl FnOnce(&mut Reader) -> T) -> T {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut reader = kept.unwrap_or_default();
        let result = read(&mut reader);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS_KEPT {
            readers.push(reader);
        }
        result
    }
}
