//! Capturing memory: which private pages a process has, and which it wrote since the last time.
//!
//! After the first capture every private mapping is watched by a userfaultfd in the asynchronous
//! write-protect mode. One scan of the page table then tells of each present page whether it was
//! written and protects it anew. The rules, for a page of a private mapping:
//!
//! - absent, but still owed to the process: it is taken over from whoever owes it;
//! - absent otherwise, or the shared zero page: its source is zero (or the file), whatever it was
//!   before;
//! - present and written, or present and not in the parent image: it is copied;
//! - present and not written: the parent image's slot still holds it.
//!
//! Mappings that are new, moved or made in the place of others aren't watched yet; all their
//! pages count as written, so no list of changes is needed for the content to be right.

use std::sync::Arc;

use brood_kernel::maps::Protection;
use brood_kernel::pagemap::{self, Categories, Filter, Region};
use brood_kernel::process_memory;
use brood_kernel::shared_pages::PAGE_BYTES;
use brood_kernel::userfaultfd::{Userfaultfd, Watch};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::address_space::{CHUNK_BYTES, Chunk, MappingImage, PageTable, bits};
use crate::error::{Result, kernel, store as store_failed};
use crate::owed_pages::Listed;
use crate::page_store::{PageStore, Slot, runs_of_pairs};
use crate::tree::StoppedProcess;

const PAGE: u64 = PAGE_BYTES as u64;

/// What a scan found, for 64 pages in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChunkScan {
    /// Pages with private content.
    pub(crate) present: u64,
    /// Those of them that were written since they were last protected.
    pub(crate) written: u64,
}

/// Starts watching all private mappings; what is watched already stays as it is.
pub(crate) fn watch_all(pid: Pid, watcher: &Userfaultfd, mappings: &[MappingImage]) -> Result<()> {
    for (start, end) in private_spans(mappings) {
        match watcher.register(start, end - start, Watch::WRITES) {
            Ok(()) => {}
            // A mapping among them can't be watched: go one by one. What can't be watched
            // counts as written for ever, which is right, only slower.
            Err(Errno::INVAL | Errno::PERM) => watch_each(pid, watcher, mappings, start, end)?,
            Err(error) => return Err(kernel(pid, "watch writes")(error)),
        }
    }
    Ok(())
}

fn watch_each(pid: Pid, watcher: &Userfaultfd, mappings: &[MappingImage], start: u64, end: u64) -> Result<()> {
    for mapping in mappings.iter().filter(|mapping| mapping.start >= start && mapping.end <= end) {
        match watcher.register(mapping.start, mapping.end - mapping.start, Watch::WRITES) {
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(kernel(pid, "watch writes")(error)),
        }
    }
    Ok(())
}

/// The longest ranges that contain private mappings and holes only.
pub(crate) fn private_spans(mappings: &[MappingImage]) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let mut open = false;
    for mapping in mappings {
        match spans.last_mut() {
            Some(span) if open && mapping.is_private() => span.1 = mapping.end,
            _ if mapping.is_private() => spans.push((mapping.start, mapping.end)),
            _ => {}
        }
        open = mapping.is_private();
    }
    spans
}

/// Scans the private pages of a process by chunk; with `protect`, written pages are protected
/// again. Pages outside private mappings (the engine area among them) are left out.
pub(crate) fn scan(
    process: &StoppedProcess,
    mappings: &[MappingImage],
    protect: bool,
) -> Result<Vec<(u64, ChunkScan)>> {
    let pagemap = pagemap::open(process.pid).map_err(kernel(process.pid, "open the page map"))?;
    let filter = Filter {
        all_of: Categories::FILE,
        inverted: Categories::FILE,
        any_of: Categories::PRESENT | Categories::SWAPPED,
        report: Categories::WRITTEN | Categories::ZERO | Categories::PRESENT,
        protect,
    };
    let mut found = Vec::new();
    let mut regions = Vec::new();
    for (start, end) in private_spans(mappings) {
        regions.clear();
        pagemap::scan(&pagemap, start, end, filter, &mut regions).map_err(kernel(process.pid, "scan pages"))?;
        for region in regions.iter().filter(|region| !region.categories.contains(Categories::ZERO)) {
            mark(region, &mut found);
        }
    }
    if let Some(area) = process.area {
        exclude(area.start, area.end(), &mut found);
    }
    Ok(found)
}

/// Notes a region in the chunks that it touches. Regions come in address order.
fn mark(region: &Region, found: &mut Vec<(u64, ChunkScan)>) {
    let mut address = region.start;
    while address < region.end {
        let number = address / CHUNK_BYTES;
        let end = region.end.min((number + 1) * CHUNK_BYTES);
        let mask = page_mask(address, end);
        if found.last().is_none_or(|(last, _)| *last != number) {
            found.push((number, ChunkScan::default()));
        }
        if let Some((_, scan)) = found.last_mut() {
            scan.present |= mask;
            if region.categories.contains(Categories::WRITTEN) {
                scan.written |= mask;
            }
        }
        address = end;
    }
}

/// The bits of the pages between two addresses of one chunk.
pub(crate) fn page_mask(start: u64, end: u64) -> u64 {
    let first = (start % CHUNK_BYTES) / PAGE;
    let count = (end - start) / PAGE;
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    ones << first
}

fn exclude(start: u64, end: u64, found: &mut [(u64, ChunkScan)]) {
    for (number, scan) in found {
        let (low, high) = (start.max(*number * CHUNK_BYTES), end.min((*number + 1) * CHUNK_BYTES));
        if low < high {
            let keep = !page_mask(low, high);
            scan.present &= keep;
            scan.written &= keep;
        }
    }
}

/// What becomes of a chunk.
struct ChunkPlan {
    number: u64,
    /// Pages whose slot stays.
    kept: u64,
    /// Pages to be copied.
    copied: u64,
    /// Pages that the process is still owed, with the slots that have them.
    owed: Vec<(usize, Slot)>,
}

/// Copies the pages that a scan calls for and returns the new page table and their number. Pages
/// that the process is still owed are taken over from where they are.
pub(crate) fn copy_written(
    process: &StoppedProcess,
    mappings: &[MappingImage],
    scan: &[(u64, ChunkScan)],
    base: PageTable,
    mut owed: Listed,
    store: &Arc<PageStore>,
) -> Result<(PageTable, usize)> {
    let mut table = base.clone();
    let plan = plan(scan, &base, &mut owed);
    let total = plan.iter().map(|chunk| chunk.copied.count_ones() as usize).sum();
    let slots = store.allocate(total).map_err(store_failed("allocate pages"))?;
    let mut next = slots.iter().copied();
    let mut pairs = Vec::with_capacity(total);
    for ChunkPlan { number, kept, copied, owed: mut new } in plan {
        new.iter().for_each(|(_, slot)| owed.take(*slot));
        let copies = new.len();
        new.extend(bits(copied).zip(&mut next));
        pairs.extend(new[copies..].iter().map(|(page, slot)| (number * CHUNK_BYTES + *page as u64 * PAGE, *slot)));
        table.replace(store, number, kept, &new);
    }
    copy_pages(process, mappings, &pairs, store)?;
    Ok((table, total))
}

/// Decides about every chunk; those that stay as they are aren't listed.
fn plan(scan: &[(u64, ChunkScan)], base: &PageTable, owed: &mut Listed) -> Vec<ChunkPlan> {
    let mut scan = scan.iter().copied().peekable();
    let mut stored = base.chunks().map(|(number, chunk)| (number, chunk.as_ref())).peekable();
    let mut owed = std::mem::take(&mut owed.slots).into_iter().peekable();
    let mut plan = Vec::new();
    loop {
        let heads = [scan.peek().map(|(n, _)| *n), stored.peek().map(|(n, _)| *n), owed.peek().map(|(n, _)| *n)];
        let Some(number) = heads.into_iter().flatten().min() else { return plan };
        let seen = scan.next_if(|(other, _)| *other == number).map(|(_, seen)| seen).unwrap_or_default();
        let chunk = stored.next_if(|(other, _)| *other == number).map(|(_, chunk)| chunk);
        let mut owed = owed.next_if(|(other, _)| *other == number).map(|(_, pages)| pages).unwrap_or_default();
        let stored = chunk.map_or(0, Chunk::stored);
        let mut kept = stored & seen.present & !seen.written;
        let copied = seen.present & !kept;
        owed.retain(|(page, slot)| {
            let is_same = chunk.and_then(|chunk| chunk.slot(*page)) == Some(*slot);
            let is_absent = seen.present >> page & 1 == 0;
            kept |= u64::from(is_absent && is_same) << page;
            is_absent && !is_same
        });
        if copied != 0 || kept != stored || !owed.is_empty() {
            plan.push(ChunkPlan { number, kept, copied, owed });
        }
    }
}

fn copy_pages(
    process: &StoppedProcess,
    mappings: &[MappingImage],
    pairs: &[(u64, Slot)],
    store: &Arc<PageStore>,
) -> Result<()> {
    let mut mappings = mappings.iter().peekable();
    let mut readable = Vec::with_capacity(pairs.len());
    for (address, slot) in pairs {
        while mappings.next_if(|mapping| mapping.end <= *address).is_some() {}
        if mappings.peek().is_some_and(|mapping| mapping.protection.contains(Protection::READ)) {
            readable.push((*address, *slot));
            continue;
        }
        // The usual way respects protection; a tracer's way doesn't.
        let mut content = [0; PAGE_BYTES];
        process_memory::read_exact(process.memory()?, *address, &mut content)
            .map_err(kernel(process.pid, "copy protected pages"))?;
        let (segment, page) = store.locate(*slot).map_err(store_failed("find a page"))?;
        segment.write(page, &content).map_err(store_failed("write a page"))?;
    }
    let runs = runs_of_pairs(readable.into_iter());
    store.fill_from(process.pid, &runs).map_err(kernel(process.pid, "copy pages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_split_at_chunk_borders() {
        let mut found = Vec::new();
        let region = |start, end, categories| Region { start, end, categories };
        mark(&region(62 * PAGE, 66 * PAGE, Categories::WRITTEN), &mut found);
        mark(&region(66 * PAGE, 67 * PAGE, Categories::empty()), &mut found);
        let first = ChunkScan { present: 3 << 62, written: 3 << 62 };
        let second = ChunkScan { present: 0b111, written: 0b011 };
        assert_eq!(found, [(0, first), (1, second)]);
        exclude(63 * PAGE, 65 * PAGE, &mut found);
        assert_eq!(found[0].1.present, 1 << 62);
        assert_eq!(found[1].1, ChunkScan { present: 0b110, written: 0b010 });
    }

    #[test]
    fn a_mask_covers_its_pages() {
        assert_eq!(page_mask(0, CHUNK_BYTES), u64::MAX);
        assert_eq!(page_mask(CHUNK_BYTES + PAGE, CHUNK_BYTES + 3 * PAGE), 0b110);
    }
}
