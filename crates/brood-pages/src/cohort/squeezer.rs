//! From pages to entries.

use super::{Cohort, Reader};
use crate::codec::duplicate::content_hash;
use crate::codec::zstd_dictionary::Dictionary;
use crate::codec::{Candidates, Codec, CodecSet, Encoder, EncoderSettings};
use crate::page::{EntryId, PAGE_SIZE, Page, PageKey, ZERO_PAGE};
use crate::pool::{Pool, PoolError, Region, Stamp};
use crate::reference::Features;

/// Frames below this are not looked up by content: they cost less than what finding them costs.
const DUPLICATE_WORTH_BYTES: usize = 24;

/// Pages that differ in at most so many of their 64 lines (of 64 bytes) are near: deltas will do, no search is needed.
const NEAR_LINES: usize = 24;

/// A sibling's page must agree in so many features to be used as a prefix. (The template's is used if it agrees in one: it is
/// at hand, and depending on it costs nothing.)
const MIN_LIKENESS: usize = 2;

/// Frames with a sibling's page as prefix that are larger than this are tried without it.
const STANDALONE_ABOVE_BYTES: usize = 400;

/// So much of the dependent frame's size may the standalone one have.
const STANDALONE_MAX_PERCENT: usize = 150;

/// If a page agrees with its template's page or its key's reference in so many features, nothing nearer is searched.
const SEARCH_BELOW_LIKENESS: usize = 2;

/// What should happen to a page, found by [`Squeezer::prepare`].
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    key: PageKey,
    action: Action,
    /// The key's reference, if it has one.
    reference: Option<EntryId>,
    /// The dictionary that was current.
    dictionary: Option<u16>,
    hash: Option<u64>,
    features: Option<Features>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Drop,
    Share(Stamp),
    Store { codec: Codec, against: Option<Stamp> },
}

/// What happened to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squeezed {
    /// It is what its address shows without any entry: the template's page, or zeros where the template has none. If its
    /// page table still had an entry for it from before it was written, the caller removes that.
    Dropped,
    /// It is in this entry, to which the caller now holds a reference.
    Pooled(EntryId, Codec),
}

/// Encodes pages, one thread's worth.
#[derive(Debug)]
pub struct Squeezer {
    encoder: Encoder,
    reader: Reader,
    sibling: Box<Page>,
    other: Box<Page>,
    frame: Vec<u8>,
}

impl Squeezer {
    /// A squeezer with fresh contexts.
    #[must_use]
    pub fn new(settings: EncoderSettings) -> Self {
        Self {
            encoder: Encoder::new(settings),
            reader: Reader::new(),
            sibling: Box::new([0; PAGE_SIZE]),
            other: Box::new([0; PAGE_SIZE]),
            frame: Vec::new(),
        }
    }

    /// Both steps at once, for who has the pool alone.
    ///
    /// # Errors
    /// [`PoolError`]; the page is then as it was.
    pub fn squeeze<R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &mut Pool<R>,
        key: PageKey,
        page: &Page,
        template: Option<&Page>,
    ) -> Result<Squeezed, PoolError> {
        loop {
            let plan = self.prepare(cohort, pool, key, page, template)?;
            if let Some(squeezed) = self.commit(cohort, pool, plan)? {
                return Ok(squeezed);
            }
        }
    }

    /// Finds out what should happen to a page; `template` is the template's page at its key. The encoded frame stays in the
    /// squeezer until the next call.
    ///
    /// # Errors
    /// [`PoolError`] if a reference that must be there can't be decoded.
    pub fn prepare<R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &Pool<R>,
        key: PageKey,
        page: &Page,
        template: Option<&Page>,
    ) -> Result<Plan, PoolError> {
        let mut plan =
            Plan { key, action: Action::Drop, reference: None, dictionary: None, hash: None, features: None };
        if page == template.unwrap_or(&ZERO_PAGE) {
            return Ok(plan);
        }
        let codecs = self.encoder.settings().codecs;
        let mut entry = None;
        let usable = uses_entries(codecs) && !cohort.references.is_outdated(key);
        if let Some(reference) = cohort.references.get(key).filter(|_| usable) {
            let stamp = pool.stamp(reference)?;
            plan.reference = Some(stamp.name());
            self.reader.page(pool, cohort.dictionaries.set(), reference, template, &mut self.sibling)?;
            if *self.sibling == *page && codecs.contains(Codec::Duplicate) {
                plan.action = Action::Share(stamp);
                return Ok(plan);
            }
            entry = Some(stamp);
        }
        if codecs.contains(Codec::Duplicate) {
            let hash = content_hash(page);
            plan.hash = Some(hash);
            if let Some(stamp) = self.find_duplicate(cohort, pool, hash, page, template) {
                plan.action = Action::Share(stamp);
                return Ok(plan);
            }
        }
        let mut base = template;
        let near = |other: &Page| differing_lines(page, other) <= NEAR_LINES;
        if !template.is_some_and(near) && !entry.is_some_and(|_| near(&self.sibling)) {
            let features = Features::of(page);
            plan.features = Some(features);
            (base, entry) = self.choose_base(cohort, pool, features, template, entry);
        }
        plan.dictionary = cohort.dictionaries.current().map(Dictionary::version);
        plan.action = self.encode(cohort, page, base, entry);
        if matches!(plan.action, Action::Store { codec: Codec::ZstdEntry, .. }) {
            plan.action = self.prefer_standalone(cohort, page, template, plan.action);
        }
        Ok(plan)
    }

    /// Encodes a page without the entry that it resembles only a little, unless that costs much more: standing alone it
    /// decodes faster and can be a reference for the siblings to come, which are nearer to it than to the old one.
    fn prefer_standalone(&mut self, cohort: &Cohort, page: &Page, template: Option<&Page>, action: Action) -> Action {
        if self.frame.len() <= STANDALONE_ABOVE_BYTES {
            return action;
        }
        let dependent = std::mem::take(&mut self.frame);
        let standalone = self.encode(cohort, page, template, None);
        if self.frame.len() * 100 <= dependent.len() * STANDALONE_MAX_PERCENT {
            return standalone;
        }
        self.frame = dependent;
        action
    }

    /// For a page that is near neither its template's page nor its key's reference (the stamped one, in `sibling`): what it
    /// resembles most, if anything. A base that it doesn't resemble only costs time, and makes the page depend on it.
    fn choose_base<'t, R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &Pool<R>,
        features: Features,
        template: Option<&'t Page>,
        entry: Option<Stamp>,
    ) -> (Option<&'t Page>, Option<Stamp>) {
        let likeness = |page: &Page| features.agreement(&Features::of(page));
        let of_template = template.map_or(0, likeness);
        let of_entry = entry.map_or(0, |_| likeness(&self.sibling));
        if of_template.max(of_entry) < SEARCH_BELOW_LIKENESS && uses_entries(self.encoder.settings().codecs) {
            cohort.similar_use.lookups += 1;
            if let Some(similar) = self.find_similar(cohort, pool, features)
                && likeness(&self.other) > of_template.max(of_entry).max(MIN_LIKENESS - 1)
            {
                std::mem::swap(&mut self.sibling, &mut self.other);
                cohort.similar_use.hits += 1;
                return (None, Some(similar));
            }
        }
        (template.filter(|_| of_template > 0), entry.filter(|_| of_entry >= MIN_LIKENESS))
    }

    fn encode(&mut self, cohort: &Cohort, page: &Page, template: Option<&Page>, entry: Option<Stamp>) -> Action {
        let entries = entry.map(|stamp| (stamp.name(), &*self.sibling));
        let candidates =
            Candidates { template, entries: entries.as_slice(), dictionary: cohort.dictionaries.current() };
        let encoded = self.encoder.encode(page, candidates);
        self.frame.clear();
        self.frame.extend_from_slice(encoded.frame);
        Action::Store { codec: encoded.codec, against: encoded.reference.and(entry) }
    }

    /// An entry of the cohort that decodes to this very page under this very key.
    fn find_duplicate<R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &Pool<R>,
        hash: u64,
        page: &Page,
        template: Option<&Page>,
    ) -> Option<Stamp> {
        cohort.duplicate_use.lookups += 1;
        let entry = cohort.duplicates.find(hash)?;
        let stamp = pool.stamp(entry).ok().filter(|_| pool.cohort_of(entry) == Some(cohort.id));
        let equal = stamp.is_some()
            && self.reader.page(pool, cohort.dictionaries.set(), entry, template, &mut self.other).is_ok()
            && *self.other == *page;
        if !equal {
            cohort.duplicates.remove(hash, entry);
            return None;
        }
        cohort.duplicate_use.hits += 1;
        stamp
    }

    /// An entry that resembles the page and refers to nothing; its page is in `other` then.
    fn find_similar<R: Region>(&mut self, cohort: &Cohort, pool: &Pool<R>, features: Features) -> Option<Stamp> {
        let entry = cohort.similar.find(features, MIN_LIKENESS)?;
        let stamp = pool.stamp(entry).ok().filter(|_| pool.cohort_of(entry) == Some(cohort.id))?;
        self.reader.fresh(pool, entry, &mut self.other).then_some(stamp)
    }

    /// Carries out a plan that the last [`Squeezer::prepare`] made. `None` if an entry or dictionary that it relies on is gone:
    /// nothing was changed, prepare again.
    ///
    /// # Errors
    /// [`PoolError::Full`] and the others of [`Pool::store`]; nothing was changed.
    pub fn commit<R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &mut Pool<R>,
        plan: Plan,
    ) -> Result<Option<Squeezed>, PoolError> {
        match plan.action {
            Action::Drop => Ok(Some(Squeezed::Dropped)),
            Action::Share(stamp) => {
                if !pool.is_current(stamp) {
                    return Ok(None);
                }
                pool.retain(stamp.name())?;
                let helped = plan.reference.is_some();
                cohort.references.stored(pool, plan.key, stamp.name(), 0, false, helped)?;
                Ok(Some(Squeezed::Pooled(stamp.name(), Codec::Duplicate)))
            }
            Action::Store { codec, against } => {
                let version = plan.dictionary.filter(|_| codec == Codec::ZstdDictionary);
                let retired = version.is_some_and(|version| cohort.dictionaries.set().get(version).is_none());
                if retired || against.is_some_and(|stamp| !pool.is_current(stamp)) {
                    return Ok(None);
                }
                let entry = pool.store(cohort.id, &self.frame)?;
                self.remember(cohort, pool, plan, entry, codec, against.map(Stamp::name))?;
                Ok(Some(Squeezed::Pooled(entry, codec)))
            }
        }
    }

    /// Tells the cohort's tables of a new entry.
    fn remember<R: Region>(
        &mut self,
        cohort: &mut Cohort,
        pool: &mut Pool<R>,
        plan: Plan,
        entry: EntryId,
        codec: Codec,
        against: Option<EntryId>,
    ) -> Result<(), PoolError> {
        let bytes = self.frame.len();
        if let Some(hash) = plan.hash.filter(|_| bytes >= DUPLICATE_WORTH_BYTES) {
            cohort.duplicates.insert(hash, entry);
        }
        let fresh = !codec.refers_to_entry() && !codec.refers_to_template();
        if fresh && matches!(codec, Codec::Zstd | Codec::ZstdDictionary) {
            cohort.dictionaries.stored(entry);
            if let Some(features) = plan.features.filter(|_| codec == Codec::Zstd) {
                cohort.similar.insert(features, entry);
            }
        }
        if uses_entries(self.encoder.settings().codecs) {
            let helped = plan.reference.is_some() && against == plan.reference;
            cohort.references.stored(pool, plan.key, entry, bytes, !codec.refers_to_entry(), helped)?;
        }
        Ok(())
    }

    /// The reader that the squeezer uses itself.
    pub fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }
}

/// How many 64-byte lines two pages differ in; stops counting once they are not near.
fn differing_lines(page: &Page, other: &Page) -> usize {
    let lines = page.as_chunks::<64>().0.iter().zip(other.as_chunks::<64>().0);
    lines.filter(|(a, b)| a != b).take(NEAR_LINES + 1).count()
}

fn uses_entries(codecs: CodecSet) -> bool {
    codecs.contains(Codec::SparseEntry) || codecs.contains(Codec::ZstdEntry)
}
