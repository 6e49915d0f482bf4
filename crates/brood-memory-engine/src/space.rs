//! One squeezed address space: which of its absent pages are kept where.
//!
//! A page of the process is in one of these states:
//!
//! - **present**, or never touched: the space knows nothing of it;
//! - **as the template's**: absent; its content is the template's page at its address;
//! - **pooled**: absent; its content is what an entry of the pool decodes to;
//! - **brought back**: pooled before, present again. Its entry is given up later, with others, because the pager shall
//!   not wait for the pool.
//!
//! Whoever drops a page of the process does so first and tells the space afterwards ([`Space::adopt`]), while the tasks
//! stand still; whoever brings one back does that first and tells the space then. Between the two the space's lock is
//! held, so that nobody decides on content that has been given up.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brood_pages::pool::PageTable;
use brood_pages::{EntryId, Lineage, Page, PageNumber};

use crate::cohort::{LineagePages, SharedCohort};
use crate::engine::{Kept, MemoryEngine};
use crate::error::{Error, Result};
use crate::page_set::PageSet;

/// So many pages brought back are a reason to give their entries up.
const BACK_PAGES_MAX: usize = 1 << 14;

/// The absent pages of one process' memory. Dropping it gives all entries back.
#[derive(Debug)]
pub struct Space {
    engine: Arc<MemoryEngine>,
    cohort: Arc<SharedCohort>,
    lineage: LineagePages,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Pooled pages and those brought back since.
    table: PageTable,
    back: PageSet,
    as_template: PageSet,
}

impl Pages {
    fn entry(&self, page: PageNumber) -> Option<EntryId> {
        if self.back.contains(page) { None } else { self.table.get(page) }
    }
}

/// What a space takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Pages in the pool.
    pub pooled_pages: usize,
    /// Absent pages that are the template's.
    pub template_pages: usize,
    /// Heap bytes of the space's tables.
    pub metadata_bytes: usize,
}

impl Space {
    /// A space without absent pages.
    pub fn new(engine: &Arc<MemoryEngine>, cohort: &Arc<SharedCohort>, lineage: LineagePages) -> Arc<Self> {
        Arc::new(Self { engine: Arc::clone(engine), cohort: Arc::clone(cohort), lineage, pages: Mutex::default() })
    }

    /// Which process of the cohort it is.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.lineage.lineage
    }

    /// The cohort.
    #[must_use]
    pub fn cohort(&self) -> &Arc<SharedCohort> {
        &self.cohort
    }

    pub(crate) fn engine(&self) -> &Arc<MemoryEngine> {
        &self.engine
    }

    /// Copies the template's page out; `false` if there is none.
    pub(crate) fn copy_template(&self, page: PageNumber, into: &mut Page) -> Result<bool> {
        match &self.lineage.template {
            Some(template) => template.copy(page, into).map_err(Error::Template),
            None => Ok(false),
        }
    }

    /// Takes over pages whose memory has been given up, in ascending order.
    ///
    /// # Errors
    /// [`Error::Pool`] if an entry isn't held.
    pub fn adopt(&self, pages: &[(PageNumber, Kept)]) -> Result<()> {
        self.adopt_into(&mut self.lock(), pages)
    }

    fn adopt_into(&self, held: &mut Pages, pages: &[(PageNumber, Kept)]) -> Result<()> {
        let mut pooled = Vec::with_capacity(pages.len());
        for (page, kept) in pages {
            if let Kept::Pooled(entry, _) = kept {
                pooled.push((*page, *entry));
                held.back.remove(*page);
                held.as_template.remove(*page);
                continue;
            }
            // An entry of an earlier squeeze says nothing any more.
            if held.table.get(*page).is_some() {
                held.back.insert(*page);
            }
            match kept {
                Kept::AsTemplate => held.as_template.insert(*page),
                _ => held.as_template.remove(*page),
            };
        }
        held.table.insert(&mut self.engine.write_pool(), &pooled)?;
        Ok(())
    }

    /// Copies the content of an absent page out; `false` if the space doesn't know the page (then it is zeros, or the
    /// mapped file's).
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Template`]; `into` must not be shown to anybody then.
    pub fn copy(&self, page: PageNumber, into: &mut Page) -> Result<bool> {
        self.copy_from(&self.lock(), page, into)
    }

    fn copy_from(&self, held: &Pages, page: PageNumber, into: &mut Page) -> Result<bool> {
        if let Some(entry) = held.entry(page) {
            self.decode(entry, page, into)?;
            return Ok(true);
        }
        if held.as_template.contains(page) {
            return self.copy_template(page, into);
        }
        Ok(false)
    }

    fn decode(&self, entry: EntryId, page: PageNumber, into: &mut Page) -> Result<()> {
        let mut template = [0; brood_pages::PAGE_SIZE];
        let template = self.copy_template(page, &mut template)?.then_some(&template);
        let dictionaries = self.cohort.dictionaries();
        let pool = self.engine.read_pool();
        Ok(self.engine.with_reader(|reader| reader.page(&pool, &dictionaries, entry, template, into))?)
    }

    /// Brings an absent page back: `place` gets its content and puts it where it belongs, while nothing of the space can
    /// change. If it says that it did, the page counts as present from then on. Returns whether the space knew the page.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy); the page is absent as before then.
    pub fn bring_back(&self, page: PageNumber, place: impl FnOnce(&Page) -> bool) -> Result<bool> {
        let mut held = self.lock();
        let mut content = [0; brood_pages::PAGE_SIZE];
        if !self.copy_from(&held, page, &mut content)? {
            return Ok(false);
        }
        if place(&content) {
            self.forget(&mut held, page)?;
        }
        Ok(true)
    }

    fn forget(&self, held: &mut Pages, page: PageNumber) -> Result<()> {
        held.as_template.remove(page);
        if held.table.get(page).is_some() {
            held.back.insert(page);
        }
        if held.back.len() > BACK_PAGES_MAX { self.give_up_back(held) } else { Ok(()) }
    }

    /// Hears that a page is present.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn brought_back(&self, page: PageNumber) -> Result<()> {
        self.forget(&mut self.lock(), page)
    }

    /// Gives the entries of pages brought back up, in idle time.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn tidy(&self) -> Result<()> {
        let mut held = self.lock();
        self.give_up_back(&mut held)?;
        held.table.rename(&mut self.engine.write_pool())?;
        Ok(())
    }

    fn give_up_back(&self, held: &mut Pages) -> Result<()> {
        let back = std::mem::take(&mut held.back);
        let mut pool = self.engine.write_pool();
        let mut pages = back.iter().peekable();
        while let Some(first) = pages.next() {
            let mut end = PageNumber(first.0 + 1);
            while pages.next_if_eq(&end).is_some() {
                end.0 += 1;
            }
            held.table.remove_range(&mut pool, first..end)?;
        }
        Ok(())
    }

    /// Hears that the process gave a range up: what was there is zeros, or nothing, from now on.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub fn removed(&self, range: Range<PageNumber>) -> Result<()> {
        self.remove_from(&mut self.lock(), range)
    }

    fn remove_from(&self, held: &mut Pages, range: Range<PageNumber>) -> Result<()> {
        held.as_template.remove_range(range.clone());
        held.back.remove_range(range.clone());
        if held.table.range(range.clone()).next().is_some() {
            held.table.remove_range(&mut self.engine.write_pool(), range)?;
        }
        Ok(())
    }

    /// Hears that the process moved a range to `to`, which may overlap it. A page's template is that of its address, so
    /// every page is kept anew under its new one.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Template`].
    pub fn moved(&self, from: Range<PageNumber>, to: PageNumber) -> Result<()> {
        let mut held = self.lock();
        let mut squeezer = self.engine.squeezer();
        let mut content = [0; brood_pages::PAGE_SIZE];
        let mut kept = Vec::new();
        for page in self.known(&held, from.clone()) {
            self.copy_from(&held, page, &mut content)?;
            let page = PageNumber(page.0 - from.start.0 + to.0);
            kept.push((page, self.engine.keep(&mut squeezer, self, page, &content)?));
        }
        let length = from.end.0 - from.start.0;
        self.remove_from(&mut held, from)?;
        self.remove_from(&mut held, to..PageNumber(to.0 + length))?;
        self.adopt_into(&mut held, &kept)
    }

    /// The space of a child that the process forked: the same pages, sharing all entries.
    #[must_use]
    pub fn fork(&self) -> Arc<Self> {
        let held = self.lock();
        let pages = Pages {
            table: held.table.share(),
            back: held.back.clone(),
            as_template: held.as_template.clone(),
        };
        Arc::new(Self {
            engine: Arc::clone(&self.engine),
            cohort: Arc::clone(&self.cohort),
            lineage: self.lineage.clone(),
            pages: Mutex::new(pages),
        })
    }

    /// The absent pages of a range, in ascending order.
    #[must_use]
    pub fn absent(&self, range: Range<PageNumber>) -> Vec<PageNumber> {
        self.known(&self.lock(), range)
    }

    fn known(&self, held: &Pages, range: Range<PageNumber>) -> Vec<PageNumber> {
        let pooled = held.table.range(range.clone()).map(|(page, _)| page);
        let mut pages: Vec<PageNumber> = pooled.filter(|page| !held.back.contains(*page)).collect();
        pages.extend(held.as_template.range(range));
        pages.sort_unstable();
        pages
    }

    /// Whether the page is absent and known.
    #[must_use]
    pub fn has(&self, page: PageNumber) -> bool {
        let held = self.lock();
        held.entry(page).is_some() || held.as_template.contains(page)
    }

    /// What it takes.
    #[must_use]
    pub fn usage(&self) -> SpaceUsage {
        let held = self.lock();
        SpaceUsage {
            pooled_pages: held.table.len() - held.back.len(),
            template_pages: held.as_template.len(),
            metadata_bytes: size_of::<Self>()
                + held.table.heap_bytes()
                + held.back.heap_bytes()
                + held.as_template.heap_bytes(),
        }
    }

    /// Runs `read` on the table of pooled pages (with those brought back, if the space isn't [tidy](Self::tidy)).
    pub(crate) fn with_table<T>(&self, read: impl FnOnce(&PageTable) -> T) -> T {
        read(&self.lock().table)
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let pages = self.pages.get_mut().unwrap_or_else(PoisonError::into_inner);
        let table = std::mem::take(&mut pages.table);
        if let Err(error) = table.release(&mut self.engine.write_pool()) {
            tracing::error!(%error, "entries of a squeezed process could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cohort::LineageName;
    use crate::engine::EngineSettings;
    use brood_deltacr::PageStore;
    use brood_pages::PAGE_SIZE;
    use brood_pages::pool::CohortId;

    fn page(seed: u64) -> Page {
        let mut state = seed;
        std::array::from_fn(|i| {
            if i % 16 == 0 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            }
            (state >> (i % 8 * 8)) as u8
        })
    }

    fn space(engine: &Arc<MemoryEngine>) -> Arc<Space> {
        let cohort = engine.cohort(CohortId(7));
        let lineage = cohort.lineage(LineageName::Program(1), || None);
        Space::new(engine, &cohort, lineage)
    }

    fn squeeze(space: &Space, pages: impl Iterator<Item = (u64, Page)>) {
        let mut squeezer = space.engine().squeezer();
        let kept: Vec<_> = pages
            .map(|(number, content)| {
                let number = PageNumber(number);
                (number, space.engine().keep(&mut squeezer, space, number, &content).unwrap())
            })
            .collect();
        space.adopt(&kept).unwrap();
        space.engine().settle(space.cohort()).unwrap();
    }

    fn content(space: &Space, number: u64) -> Option<Page> {
        let mut content = [0; PAGE_SIZE];
        space.copy(PageNumber(number), &mut content).unwrap().then_some(content)
    }

    #[test]
    fn pages_come_back_once_and_entries_go_with_the_last_who_needs_them() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let parent = space(&engine);
        squeeze(&parent, (100..140).map(|n| (n, page(n))));
        assert_eq!(parent.usage().pooled_pages, 40);
        let child = parent.fork();
        let brought = parent.bring_back(PageNumber(100), |content| *content == page(100)).unwrap();
        assert!(brought && !parent.has(PageNumber(100)));
        assert!(!parent.bring_back(PageNumber(100), |_| panic!("it is present")).unwrap());
        assert_eq!(content(&child, 100), Some(page(100)), "the child's own");
        parent.removed(PageNumber(110)..PageNumber(120)).unwrap();
        assert_eq!(content(&parent, 110), None);
        parent.tidy().unwrap();
        assert_eq!((parent.usage().pooled_pages, parent.absent(PageNumber(0)..PageNumber(u64::MAX)).len()), (29, 29));
        drop(parent);
        assert_eq!((100..140).filter(|n| content(&child, *n) == Some(page(*n))).count(), 40);
        let cohort = Arc::clone(child.cohort());
        drop(child);
        cohort.lock().prune_references(&mut engine.write_pool()).unwrap();
        assert_eq!(engine.cohort_usage(CohortId(7)).entries, 0);
    }

    #[test]
    fn what_was_squeezed_again_is_the_newer() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let space = space(&engine);
        squeeze(&space, [(5, page(1)), (6, page(2))].into_iter());
        for round in 3..10 {
            space.brought_back(PageNumber(5)).unwrap();
            assert_eq!(content(&space, 5), None);
            squeeze(&space, [(5, page(round))].into_iter());
            assert_eq!(content(&space, 5), Some(page(round)));
        }
        // A page that became zeros needs no entry, and must not show the old one.
        space.brought_back(PageNumber(5)).unwrap();
        squeeze(&space, [(5, [0; PAGE_SIZE])].into_iter());
        assert_eq!(content(&space, 5), None);
        assert_eq!(content(&space, 6), Some(page(2)));
    }

    #[test]
    fn a_move_keeps_content_though_the_template_differs_by_address() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let cohort = engine.cohort(CohortId(1));
        let store = PageStore::new();
        let template = TemplatePagesOf::new(&store, (0..64).map(|n| (n, page(n))).collect());
        let lineage = cohort.lineage(LineageName::Template(2), || Some(template.pages.clone()));
        let space = Space::new(&engine, &cohort, lineage);
        let edited = |n: u64| {
            let mut page = page(n);
            page[8] ^= 1;
            page
        };
        // Even pages are the template's, odd ones nearly so.
        squeeze(&space, (0..32).map(|n| (n, if n % 2 == 0 { page(n) } else { edited(n) })));
        assert_eq!((space.usage().template_pages, space.usage().pooled_pages), (16, 16));
        space.moved(PageNumber(0)..PageNumber(32), PageNumber(16)).unwrap();
        for n in 0..32 {
            let expected = if n % 2 == 0 { page(n) } else { edited(n) };
            assert_eq!(content(&space, n + 16), Some(expected), "page {n}");
        }
        assert_eq!(space.absent(PageNumber(0)..PageNumber(16)), []);
    }

    /// A template whose pages were captured from this very process.
    struct TemplatePagesOf {
        pages: crate::template::TemplatePages,
    }

    impl TemplatePagesOf {
        fn new(store: &Arc<PageStore>, pages: Vec<(u64, Page)>) -> Self {
            let pages: Vec<(u64, Page)> = pages.into_iter().map(|(n, page)| (PageNumber(n).address(), page)).collect();
            let table = brood_deltacr::address_space::PageTable::of_contents(store, &pages).unwrap();
            Self { pages: crate::template::TemplatePages::new(table, Arc::clone(store)) }
        }
    }
}
