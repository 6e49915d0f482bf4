//! The squeezed pages of one process, as of its last squeeze.
//!
//! A set of squeezed pages never changes once it is made: which of its pages are still absent is the pager's to know,
//! and forked children, whose pages are absent too, share the set with their parent. The next squeeze of the process makes
//! a new set, which takes over what is still absent. An entry of the pool lives as long as a set has it.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use brood_pager::{PageAddress, PageSource, Supply};
use brood_pages::pool::PageTable;
use brood_pages::{Page, PageNumber};

use crate::cohort::Kin;
use crate::engine::{Kept, MemoryEngine};
use crate::error::Result;
use crate::page_set::PageSet;

/// Pages put in place for one touch: those of its aligned group that are absent too. Sequential work then faults a
/// fourth as often; for random touches it costs three decodings, of a microsecond or less each for most.
const TOGETHER: usize = 4;

/// Pages of a process whose memory was given up. Dropping it gives their entries back.
#[derive(Debug)]
pub struct SqueezedPages {
    engine: Arc<MemoryEngine>,
    kin: Kin,
    table: PageTable,
    as_template: PageSet,
}

/// What a set of squeezed pages takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqueezedUsage {
    /// Pages in the pool.
    pub pooled_pages: usize,
    /// Pages that are the template's.
    pub template_pages: usize,
    /// Heap bytes of the set's own tables.
    pub metadata_bytes: usize,
}

impl SqueezedPages {
    /// A set of pages in ascending order; takes over the references to their entries.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if an entry isn't held.
    pub fn new(engine: &Arc<MemoryEngine>, kin: Kin, pages: &[(PageNumber, Kept)]) -> Result<Arc<Self>> {
        let pooled: Vec<_> = pages
            .iter()
            .filter_map(|(page, kept)| match kept {
                Kept::Pooled(entry, _) => Some((*page, *entry)),
                Kept::Zero | Kept::AsTemplate => None,
            })
            .collect();
        let mut as_template = PageSet::default();
        for (page, _) in pages.iter().filter(|(_, kept)| *kept == Kept::AsTemplate) {
            as_template.insert(*page);
        }
        let mut table = PageTable::new();
        table.insert(&mut engine.write_pool(), &pooled)?;
        Ok(Arc::new(Self { engine: Arc::clone(engine), kin, table, as_template }))
    }

    /// Whose pages they are.
    #[must_use]
    pub fn kin(&self) -> &Kin {
        &self.kin
    }

    /// Copies a page's content out; `false` if it isn't in the set.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool), [`Error::Template`](crate::Error::Template); `into` must not be shown to
    /// anybody then.
    pub fn copy(&self, page: PageNumber, into: &mut Page) -> Result<bool> {
        if let Some(entry) = self.table.get(page) {
            self.engine.copy(&self.kin, page, entry, into)?;
            return Ok(true);
        }
        Ok(self.as_template.contains(page) && self.kin.copy_template(page, into)?)
    }

    /// How a page is kept, with a reference to its entry for the caller; `None` if it isn't in the set.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool).
    pub fn kept(&self, page: PageNumber) -> Result<Option<Kept>> {
        if let Some(entry) = self.table.get(page) {
            let mut pool = self.engine.write_pool();
            pool.retain(entry)?;
            return Ok(Some(Kept::Pooled(entry, pool.codec(entry)?)));
        }
        Ok(self.as_template.contains(page).then_some(Kept::AsTemplate))
    }

    /// All pages of the set in a range, in ascending order.
    pub fn pages(&self, range: Range<PageNumber>) -> impl Iterator<Item = PageNumber> {
        let mut pooled = self.table.range(range.clone()).map(|(page, _)| page).peekable();
        let mut template = self.as_template.range(range).peekable();
        std::iter::from_fn(move || match (pooled.peek(), template.peek()) {
            (Some(one), Some(other)) if other < one => template.next(),
            (None, _) => template.next(),
            _ => pooled.next(),
        })
    }

    /// What it takes.
    #[must_use]
    pub fn usage(&self) -> SqueezedUsage {
        SqueezedUsage {
            pooled_pages: self.table.len(),
            template_pages: self.as_template.len(),
            metadata_bytes: size_of::<Self>() + self.table.heap_bytes() + self.as_template.heap_bytes(),
        }
    }
}

impl Drop for SqueezedPages {
    fn drop(&mut self) {
        let table = std::mem::take(&mut self.table);
        if let Err(error) = table.release(&mut self.engine.write_pool()) {
            tracing::error!(%error, "entries of a squeezed process could not be given back");
        }
    }
}

impl PageSource for SqueezedPages {
    fn supply(&self, address: PageAddress, into: &mut Page) -> Supply {
        match self.copy(number(address), into) {
            Ok(true) => Supply::Page,
            Ok(false) => Supply::Zero,
            Err(error) => {
                tracing::error!(address = address.get(), %error, "a squeezed page can't be decoded");
                Supply::Unknown
            }
        }
    }

    fn next_page(&self, range: Range<PageAddress>) -> Option<PageAddress> {
        let next = self.pages(number(range.start)..number(range.end)).next();
        next.map(|page| PageAddress::of(page.address()))
    }

    fn together(&self, _address: PageAddress) -> usize {
        TOGETHER
    }

    /// What was written since the last image was taken is among them.
    fn arrives_clean(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn number(address: PageAddress) -> PageNumber {
    PageNumber::containing(address.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cohort::LineageName;
    use crate::engine::EngineSettings;
    use crate::template::TemplatePages;
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

    fn squeeze(engine: &Arc<MemoryEngine>, kin: &Kin, pages: impl Iterator<Item = (u64, Page)>) -> Arc<SqueezedPages> {
        let mut squeezer = engine.squeezer();
        let kept: Vec<_> = pages
            .map(|(number, content)| {
                let number = PageNumber(number);
                (number, engine.keep(&mut squeezer, kin, number, &content).unwrap())
            })
            .collect();
        engine.settle(kin.cohort()).unwrap();
        SqueezedPages::new(engine, kin.clone(), &kept).unwrap()
    }

    fn content(squeezed: &SqueezedPages, number: u64) -> Option<Page> {
        let mut content = [0; PAGE_SIZE];
        squeezed.copy(PageNumber(number), &mut content).unwrap().then_some(content)
    }

    #[test]
    fn entries_live_as_long_as_a_set_has_them() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let cohort = engine.cohort(CohortId(7));
        let kin = cohort.kin(LineageName::Program(1), || None);
        let first = squeeze(&engine, &kin, (100..140).map(|n| (n, page(n))));
        assert_eq!(first.usage().pooled_pages, 40);
        let taken_over: Vec<_> =
            (120..130).map(|n| (PageNumber(n), first.kept(PageNumber(n)).unwrap().unwrap())).collect();
        let second = SqueezedPages::new(&engine, kin, &taken_over).unwrap();
        drop(first);
        assert_eq!((120..130).filter(|n| content(&second, *n) == Some(page(*n))).count(), 10);
        assert_eq!(content(&second, 100), None);
        drop(second);
        cohort.lock().prune_references(&mut engine.write_pool()).unwrap();
        assert_eq!(engine.cohort_usage(CohortId(7)).entries, 0);
    }

    #[test]
    fn the_templates_pages_need_no_entries_and_siblings_share_the_rest() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let cohort = engine.cohort(CohortId(1));
        let store = PageStore::new();
        let contents: Vec<_> = (0..64).map(|n| (PageNumber(n).address(), page(n))).collect();
        let table = brood_deltacr::address_space::PageTable::of_contents(&store, &contents).unwrap();
        let template = TemplatePages::new(table, Arc::clone(&store));
        let kin = cohort.kin(LineageName::Template(2), || Some(template));
        let edited = |n: u64| {
            let mut page = page(n);
            page[8] ^= 1;
            page
        };
        // Even pages are the template's, odd ones nearly so, and one became zeros.
        let expected = |n: u64| match n {
            7 => [0; PAGE_SIZE],
            n if n % 2 == 0 => page(n),
            n => edited(n),
        };
        let one = squeeze(&engine, &kin, (0..32).map(|n| (n, expected(n))));
        assert_eq!((one.usage().template_pages, one.usage().pooled_pages), (16, 16));
        let other = squeeze(&engine, &kin, (0..32).map(|n| (n, expected(n))));
        for n in 0..32 {
            assert_eq!((content(&one, n), content(&other, n)), (Some(expected(n)), Some(expected(n))), "page {n}");
        }
        let usage = engine.cohort_usage(CohortId(1));
        assert!(usage.frame_bytes < usage.entries * 16, "one word differs: {usage:?}");
        assert_eq!(
            one.pages(PageNumber(0)..PageNumber(100)).collect::<Vec<_>>(),
            (0..32).map(PageNumber).collect::<Vec<_>>()
        );
        assert_eq!(one.pages(PageNumber(10)..PageNumber(12)).count(), 2);
        assert_eq!(
            one.next_page(PageAddress::of(31 * 4096)..PageAddress::of(40 * 4096)),
            Some(PageAddress::of(31 * 4096))
        );
        assert_eq!(one.next_page(PageAddress::of(32 * 4096)..PageAddress::of(40 * 4096)), None);
    }

    #[test]
    fn a_damaged_page_is_never_shown() {
        let engine = MemoryEngine::new(EngineSettings::default()).unwrap();
        let cohort = engine.cohort(CohortId(1));
        let kin = cohort.kin(LineageName::Program(1), || None);
        let squeezed = squeeze(&engine, &kin, [(5, page(5))].into_iter());
        // Behind its back: the entry goes although the set has it.
        let Some(Kept::Pooled(entry, _)) = squeezed.kept(PageNumber(5)).unwrap() else { panic!("it is pooled") };
        cohort.lock().prune_references(&mut engine.write_pool()).unwrap();
        let references = engine.read_pool().references(entry);
        for _ in 0..references {
            engine.write_pool().release(entry).unwrap();
        }
        let mut into = [0; PAGE_SIZE];
        assert_eq!(squeezed.supply(PageAddress::of(5 * 4096), &mut into), Supply::Unknown);
    }
}
