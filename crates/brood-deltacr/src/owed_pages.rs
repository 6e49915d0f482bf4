//! Pages that a process is still owed by an image: where the pager finds them, and how captures
//! and rollbacks reckon with them.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use brood_kernel::maps::MappingFlags;
use brood_kernel::shared_pages::PAGE_BYTES;
use brood_kernel::userfaultfd::{Userfaultfd, Watch};
use brood_pager::{OwedMap, OwedRange, PageAddress, PageSource, Supply};
use rustix::process::Pid;

use crate::address_space::{AddressSpaceImage, CHUNK_BYTES, MappingImage, MappingKind, PageTable, bits};
use crate::error::{Error, Result, kernel, store as store_failed};
use crate::memory::page_mask;
use crate::page_store::{PageStore, Slot};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages supplied when one of them is touched: programs that touch one page of an image mostly
/// go on to its neighbour, and copying another page costs a tenth of waiting for it.
const TOGETHER: usize = 4;

/// The stored pages of an address-space image, as the pager asks for them.
#[derive(Debug)]
pub(crate) struct StoredPages {
    pub(crate) table: PageTable,
    store: Arc<PageStore>,
}

impl StoredPages {
    pub(crate) fn source(table: PageTable, store: &Arc<PageStore>) -> Arc<dyn PageSource> {
        Arc::new(Self { table, store: Arc::clone(store) })
    }
}

impl PageSource for StoredPages {
    fn supply(&self, address: PageAddress, into: &mut [u8; PAGE_BYTES]) -> Supply {
        let Some(slot) = self.table.slot(address.get()) else { return Supply::Zero };
        match self.store.read_into(slot, into) {
            Ok(()) => Supply::Page,
            Err(_) => Supply::Unknown,
        }
    }

    fn next_page(&self, range: Range<PageAddress>) -> Option<PageAddress> {
        let (start, end) = (range.start.get(), range.end.get());
        let chunks = self.table.chunks_between(start, end);
        let pages = chunks.flat_map(|(number, chunk)| {
            bits(chunk.stored()).map(move |page| number * CHUNK_BYTES + page as u64 * PAGE)
        });
        pages.skip_while(|page| *page < start).take_while(|page| *page < end).map(PageAddress::of).next()
    }

    fn together(&self, _address: PageAddress) -> usize {
        TOGETHER
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether the pages of a mapping may be supplied when they are touched. Locked memory must be
/// there; what a fork leaves out or wipes would be filled in the child.
pub(crate) fn can_be_owed(mapping: &MappingImage) -> bool {
    let exempt = MappingFlags::LOCKED | MappingFlags::WIPE_ON_FORK | MappingFlags::NOT_ON_FORK;
    matches!(mapping.kind, MappingKind::Anonymous) && mapping.is_private() && !mapping.flags.intersects(exempt)
}

/// Everything that an image can owe a process that has none of its pages.
pub(crate) fn all_of(space: &AddressSpaceImage, store: &Arc<PageStore>) -> OwedMap {
    let source = StoredPages::source(space.pages.clone(), store);
    let mut owed = OwedMap::default();
    for mapping in space.mappings.iter().filter(|mapping| can_be_owed(mapping)) {
        if source.next_page(PageAddress::of(mapping.start)..PageAddress::of(mapping.end)).is_some() {
            owed.owe(mapping.start, mapping.end, Arc::clone(&source), mapping.start);
        }
    }
    owed
}

/// Watches the ranges in which pages are owed, for touches and writes.
pub(crate) fn watch(pid: Pid, userfaultfd: &Userfaultfd, owed: &OwedMap) -> Result<()> {
    for (start, range) in owed.ranges() {
        let watched = userfaultfd.register(start, range.end - start, Watch::MISSING | Watch::WRITES);
        watched.map_err(kernel(pid, "supply pages"))?;
    }
    Ok(())
}

/// Pages of a chunk that are owed: by page, the slot that has the content.
pub(crate) type OwedSlots = BTreeMap<u64, Vec<(usize, Slot)>>;

/// Looks up which slots hold the content of owed pages, by chunk.
///
/// # Errors
/// If the content of a page is lost, or can't be copied from a source that isn't an image.
pub(crate) fn owed_slots(owed: &OwedMap, mappings: &[MappingImage], store: &Arc<PageStore>) -> Result<Listed> {
    let mut listed = Listed { slots: OwedSlots::new(), copies: BTreeSet::new(), store: Arc::clone(store) };
    if owed.is_empty() {
        return Ok(listed);
    }
    for mapping in mappings.iter().filter(|mapping| mapping.is_private()) {
        for (start, range) in owed.pieces(mapping.start, mapping.end) {
            match range.source.as_any().downcast_ref::<StoredPages>() {
                Some(stored) => list_stored(owed, start, &range, stored, &mut listed),
                None => copy_foreign(owed, start, &range, store, &mut listed)?,
            }
        }
    }
    Ok(listed)
}

/// Owed pages and their slots.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) slots: OwedSlots,
    /// Slots made for the purpose, whose references are given back unless they are taken.
    copies: BTreeSet<Slot>,
    store: Arc<PageStore>,
}

impl Listed {
    fn add(&mut self, address: u64, slot: Slot) {
        let page = (address % CHUNK_BYTES / PAGE) as usize;
        self.slots.entry(address / CHUNK_BYTES).or_default().push((page, slot));
    }

    /// Gives the caller a reference to a listed slot.
    pub(crate) fn take(&mut self, slot: Slot) {
        if !self.copies.remove(&slot) {
            self.store.retain(std::iter::once(slot));
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.store.release(std::mem::take(&mut self.copies).into_iter());
    }
}

fn list_stored(owed: &OwedMap, start: u64, range: &OwedRange, stored: &StoredPages, listed: &mut Listed) {
    let origin_end = range.origin + (range.end - start);
    for (number, chunk) in stored.table.chunks_between(range.origin, origin_end) {
        let (low, high) = (range.origin.max(number * CHUNK_BYTES), origin_end.min((number + 1) * CHUNK_BYTES));
        for page in bits(chunk.stored() & page_mask(low, high)) {
            let address = start + (number * CHUNK_BYTES + page as u64 * PAGE - range.origin);
            let is_settled = owed.settled_mask(address / CHUNK_BYTES) >> (address % CHUNK_BYTES / PAGE) & 1 != 0;
            if let (Some(slot), false) = (chunk.slot(page), is_settled) {
                listed.add(address, slot);
            }
        }
    }
}

/// Copies what another source than an image owes.
fn copy_foreign(
    owed: &OwedMap,
    start: u64,
    range: &OwedRange,
    store: &Arc<PageStore>,
    listed: &mut Listed,
) -> Result<()> {
    let mut at = PageAddress::of(start);
    while let Some(page) = owed.next(at, range.end) {
        at = PageAddress::of(page.get() + PAGE);
        let Some(found) = owed.lookup(page) else { continue };
        let mut content = [0; PAGE_BYTES];
        match found.source.supply(found.origin, &mut content) {
            Supply::Page => {}
            Supply::Zero => continue,
            Supply::Unknown => {
                let reason = format!("the content of the page at {:#x} is lost", page.get());
                return Err(Error::DoesNotFit { reason });
            }
        }
        for slot in store.allocate(1).map_err(store_failed("allocate pages"))? {
            listed.copies.insert(slot);
            let (segment, index) = store.locate(slot).map_err(store_failed("find a page"))?;
            segment.write(index, &content).map_err(store_failed("write a page"))?;
            listed.add(page.get(), slot);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use brood_kernel::maps::Protection;

    fn table(store: &Arc<PageStore>, pages: &[u64]) -> PageTable {
        let mut table = PageTable::default();
        let slots = store.allocate(pages.len()).unwrap();
        for (page, slot) in pages.iter().zip(slots) {
            let (segment, index) = store.locate(slot).unwrap();
            segment.write(index, &[*page as u8; PAGE_BYTES]).unwrap();
            table.replace(store, page / 64, u64::MAX, &[((page % 64) as usize, slot)]);
        }
        table
    }

    fn mapping(start: u64, end: u64) -> MappingImage {
        MappingImage {
            start: start * PAGE,
            end: end * PAGE,
            protection: Protection::READ,
            flags: MappingFlags::empty(),
            offset: 0,
            kind: MappingKind::Anonymous,
        }
    }

    #[test]
    fn stored_pages_are_supplied_and_found() {
        let store = PageStore::new();
        let source = StoredPages::source(table(&store, &[3, 70, 200]), &store);
        let mut page = [0; PAGE_BYTES];
        assert_eq!(source.supply(PageAddress::of(70 * PAGE), &mut page), Supply::Page);
        assert_eq!(page, [70; PAGE_BYTES]);
        assert_eq!(source.supply(PageAddress::of(71 * PAGE), &mut page), Supply::Zero);
        let next = |from: u64, to: u64| {
            let range = PageAddress::of(from * PAGE)..PageAddress::of(to * PAGE);
            source.next_page(range).map(|page| page.get() / PAGE)
        };
        assert_eq!((next(0, 300), next(4, 300), next(71, 200), next(71, 201)), (Some(3), Some(70), None, Some(200)));
    }

    #[test]
    fn owed_pages_are_listed_where_they_are_now() {
        let store = PageStore::new();
        let pages = table(&store, &[10, 11, 12, 130]);
        let slot = |page: u64| pages.slot(page * PAGE).unwrap();
        let mappings: Arc<[MappingImage]> = [mapping(8, 140)].into();
        let (mappings_again, layout, hot) = (Arc::clone(&mappings), Default::default(), Default::default());
        let space = AddressSpaceImage { mappings: mappings_again, pages: pages.clone(), layout, hot };
        let mut owed = all_of(&space, &store);
        owed.settle(11 * PAGE, 12 * PAGE);
        let list =
            |mappings: &[MappingImage], owed: &OwedMap| owed_slots(owed, mappings, &store).unwrap().slots.clone();
        let listed = list(&mappings, &owed);
        assert_eq!(listed, OwedSlots::from([(0, vec![(10, slot(10)), (12, slot(12))]), (2, vec![(2, slot(130))])]));
        owed.relocate(8 * PAGE, 1000 * PAGE, 132 * PAGE);
        assert!(list(&mappings, &owed).is_empty(), "nothing is mapped there");
        let moved = [mapping(1000, 1132)];
        let listed = list(&moved, &owed);
        let at = |page: u64| (page / 64, (page % 64) as usize);
        assert_eq!(listed[&at(1002).0], vec![(at(1002).1, slot(10)), (at(1004).1, slot(12))]);
        assert_eq!(listed[&at(1122).0], vec![(at(1122).1, slot(130))]);
    }
}
