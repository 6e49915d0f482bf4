//! Putting the memory of a living process back to an image: mappings first, then the pages that
//! differ, which are those written since the last image and those in which the two images differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use brood_kernel::maps::Protection;
use brood_kernel::shared_pages::PAGE_BYTES;
use brood_pager::{OwedMap, PagedSpace};

use crate::address_space::{AddressSpaceImage, CHUNK_BYTES, Chunk, MappingImage, PageTable, bits};
use crate::error::{Result, kernel};
use crate::hot_pages;
use crate::mapping_diff::{Change, changes};
use crate::memory::{self, ChunkScan};
use crate::owed_pages;
use crate::page_store::{PageStore, Slot, runs_of_pairs};
use crate::process::ProcessImage;
use crate::puppet::Puppet;
use crate::rebuild::{self, FileNumbers};
use crate::tree::StoppedProcess;
use crate::watcher::Watcher;

/// Room that one mapping's calls take in a batch at most.
const MAPPING_ROOM: usize = 900;
/// Room that one call without data takes.
const CALL_ROOM: usize = 96;

/// Makes the mappings of a process those of an image. Returns whether any had to be made.
pub(crate) fn reset_mappings(
    puppet: &Puppet,
    current: &[MappingImage],
    wanted: &[MappingImage],
    numbers: &FileNumbers<'_>,
) -> Result<bool> {
    let changes = changes(current, wanted);
    let mut batch = puppet.batch();
    for change in &changes {
        puppet.run_if_full(&mut batch, MAPPING_ROOM)?;
        match change {
            Change::Unmap { start, end } => {
                batch.call(libc::SYS_munmap, &[*start, end - start]);
            }
            Change::Protect { start, end, protection } => {
                batch.call(libc::SYS_mprotect, &[*start, end - start, u64::from(protection.bits())]);
            }
            Change::Map(mapping) => rebuild::add_mapping(&mut batch, mapping, numbers)?,
        }
    }
    if !batch.is_empty() {
        puppet.run(&batch)?;
    }
    Ok(changes.iter().any(|change| matches!(change, Change::Map(_))))
}

/// What is to be done with a process' pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Pages that get the content of a slot.
    write: Vec<(u64, Slot)>,
    /// Pages whose private content is dropped.
    drop: Vec<u64>,
}

/// Gives the pages of a process the content of an image. Its mappings are the image's already.
/// Returns the number of pages written or dropped.
pub(crate) fn reset_pages(
    process: &StoppedProcess,
    puppet: &Puppet,
    wanted: &ProcessImage,
    image: &AddressSpaceImage,
    base: &PageTable,
    watcher: &Watcher,
    store: &Arc<PageStore>,
) -> Result<usize> {
    // Faults that were reported before the stop must not be answered out of the former state.
    let held = watcher.space().map(PagedSpace::hold);
    let owed = watcher.space().map(|_| owed_pages::all_of(image, store)).unwrap_or_default();
    owed_pages::watch(process.pid, watcher.userfaultfd(), &owed)?;
    let scan = memory::scan(process, &image.mappings, false)?;
    let plan = plan(&scan, base, &image.pages, &owed);
    let mut mappings = image.mappings.iter().peekable();
    let (mut writable, mut protected) = (Vec::new(), Vec::new());
    for (address, slot) in &plan.write {
        while mappings.next_if(|mapping| mapping.end <= *address).is_some() {}
        let can_write = mappings.peek().is_some_and(|mapping| mapping.protection.contains(Protection::WRITE));
        if can_write { writable.push((*address, *slot)) } else { protected.push((*address, *slot)) }
    }
    let runs = runs_of_pairs(writable.into_iter());
    store.copy_to(process.pid, &runs).map_err(kernel(process.pid, "write pages back"))?;
    rebuild::write_protected(puppet, &protected, store)?;
    let protected = runs_of_pairs(protected.into_iter());
    let mut batch = puppet.batch();
    for (start, end) in address_runs(&plan.drop) {
        puppet.run_if_full(&mut batch, CALL_ROOM)?;
        batch.call(libc::SYS_madvise, &[start, end - start, libc::MADV_DONTNEED as u64]);
    }
    if !batch.is_empty() {
        puppet.run(&batch)?;
    }
    rebuild::protect(puppet, watcher.userfaultfd(), runs.iter().chain(&protected))?;
    if let Some(space) = watcher.space() {
        owe_the_rest(space, owed, &scan, &plan.drop);
    }
    drop(held);
    if let Some(space) = watcher.space() {
        space.fill_now(&hot_pages::essential(wanted));
    }
    Ok(plan.write.len() + plan.drop.len())
}

/// Has a process be owed what an image has and it hasn't.
fn owe_the_rest(space: &PagedSpace, mut owed: OwedMap, scan: &[(u64, ChunkScan)], dropped: &[u64]) {
    let mut absent: BTreeMap<u64, u64> = BTreeMap::new();
    for address in dropped {
        let page = (address % CHUNK_BYTES) as usize / PAGE_BYTES;
        *absent.entry(address / CHUNK_BYTES).or_default() |= 1 << page;
    }
    for (number, seen) in scan {
        let present = seen.present & !absent.get(number).copied().unwrap_or(0);
        owed.settle_pages(*number, present);
    }
    space.change(|all| *all = owed);
}

/// Decides about every page. Pages of `base` that aren't present any more, and present pages that
/// were written or are unknown to `base`, don't have the content that `base` says. Absent pages
/// that can be owed are, and so are those of long runs, which are dropped.
fn plan(scan: &[(u64, ChunkScan)], base: &PageTable, target: &PageTable, owed: &OwedMap) -> Plan {
    let mut plan = Plan::default();
    let mut numbers: Vec<u64> = scan.iter().map(|(number, _)| *number).collect();
    numbers.extend(base.chunks().chain(target.chunks()).map(|(number, _)| number));
    numbers.sort_unstable();
    numbers.dedup();
    let mut scan = scan.iter().peekable();
    for number in numbers {
        while scan.next_if(|(other, _)| *other < number).is_some() {}
        let seen = scan.peek().filter(|(other, _)| *other == number).map(|(_, scan)| *scan).unwrap_or_default();
        let (old, new) = (base.chunk(number), target.chunk(number));
        let stored = |chunk: Option<&Arc<Chunk>>| chunk.map_or(0, |chunk| chunk.stored());
        let unknown = (seen.present & (seen.written | !stored(old))) | (stored(old) & !seen.present);
        let wrong = unknown | differing(old, new);
        let can_be_owed = owable(owed, number) & stored(new);
        let address = |page: usize| number * CHUNK_BYTES + (page * PAGE_BYTES) as u64;
        // A whole chunk to be written is as well dropped.
        let dropped = if wrong & seen.present & can_be_owed == u64::MAX { u64::MAX } else { 0 };
        plan.drop.extend(bits(wrong & seen.present & (!stored(new) | dropped)).map(address));
        let pages = bits(wrong & stored(new) & !dropped & (seen.present | !can_be_owed));
        plan.write.extend(pages.filter_map(|page| Some((address(page), new?.slot(page)?))));
    }
    plan
}

/// The pages of a chunk that lie in ranges of a map.
fn owable(owed: &OwedMap, number: u64) -> u64 {
    let pieces = owed.pieces(number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES);
    pieces.into_iter().fold(0, |mask, (start, range)| mask | memory::page_mask(start, range.end))
}

/// Pages that are not stored in the same slot in both.
fn differing(one: Option<&Arc<Chunk>>, other: Option<&Arc<Chunk>>) -> u64 {
    match (one, other) {
        (None, None) => 0,
        (Some(chunk), None) | (None, Some(chunk)) => chunk.stored(),
        (Some(one), Some(other)) if Arc::ptr_eq(one, other) => 0,
        (Some(one), Some(other)) => bits(one.stored() | other.stored())
            .filter(|page| one.slot(*page) != other.slot(*page))
            .fold(0, |mask, page| mask | 1 << page),
    }
}

fn address_runs(addresses: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for address in addresses {
        let end = address + PAGE_BYTES as u64;
        match runs.last_mut() {
            Some(run) if run.1 == *address => run.1 = end,
            _ => runs.push((*address, end)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_that_may_differ_is_written_or_dropped() {
        let store = PageStore::new();
        let slots = store.allocate(4).unwrap();
        let mut base = PageTable::default();
        // Base has pages 0 to 2; the target has page 0 the same, page 1 another, page 3 new.
        base.replace(&store, 0, 0, &[(0, slots[0]), (1, slots[1])]);
        let mut target = base.clone();
        target.replace(&store, 0, 0b01, &[(1, slots[2]), (3, slots[3])]);
        let nothing_owed = OwedMap::default();
        let nothing_written = [(0, ChunkScan { present: 0b11, written: 0 })];
        let plan_now = plan(&nothing_written, &base, &target, &nothing_owed);
        assert_eq!(plan_now.write, [(4096, slots[2]), (3 * 4096, slots[3])]);
        assert!(plan_now.drop.is_empty());
        let written = [(0, ChunkScan { present: 0b111, written: 0b101 })];
        let plan_now = plan(&written, &base, &base, &nothing_owed);
        assert_eq!((plan_now.write, plan_now.drop), (vec![(0, slots[0])], vec![2 * 4096]));
        let dropped = [(0, ChunkScan { present: 0b10, written: 0 })];
        assert_eq!(plan(&dropped, &base, &base, &nothing_owed).write, [(0, slots[0])]);
        let unknown = [(0, ChunkScan { present: 0b1_0011, written: 0 })];
        assert_eq!(plan(&unknown, &base, &base, &nothing_owed).drop, [4 * 4096]);
    }

    #[test]
    fn neighbouring_pages_are_dropped_together() {
        assert_eq!(address_runs(&[4096, 8192, 20480]), [(4096, 12288), (20480, 24576)]);
    }
}
