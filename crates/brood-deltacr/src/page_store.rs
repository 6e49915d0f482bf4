//! The page store: raw pages of checkpoints in memfds, counted by reference.
//!
//! A slot holds one page. It is free (count 0), or held by one or more chunks of address-space
//! images. Slots of dropped checkpoints are used again while their memory is still allocated:
//! the kernel takes several times longer to allocate a page than to copy one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use brood_kernel::process_memory::{self, PageRun};
use brood_kernel::shared_pages::{PAGE_BYTES, SharedPages};
use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// Pages of one memfd of the store (64 MiB): large enough that segments are few, small enough
/// that the index of an almost empty store is too.
const SEGMENT_PAGES: usize = 16 * 1024;
/// Free slots that keep their memory (64 MiB); what is freed beyond gives it back.
const POPULATED_FREE_PAGES_MAX: usize = 16 * 1024;

/// A page in the store. Numbers start at 1, so that 0 can stand for "none" in compact tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The slot's number, never zero.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    fn index(self) -> usize {
        self.0 as usize - 1
    }

    fn place(self) -> (usize, usize) {
        (self.index() / SEGMENT_PAGES, self.index() % SEGMENT_PAGES)
    }
}

#[derive(Debug, Default)]
struct Slots {
    /// Reference count of every slot made so far.
    counts: Vec<u32>,
    /// Free slots whose memory is allocated, used last in first out.
    populated: Vec<Slot>,
    /// Free slots without memory.
    empty: Vec<Slot>,
}

/// Raw pages of checkpoints. Shared by all checkpoints whose sandboxes may share pages.
#[derive(Debug, Default)]
pub struct PageStore {
    /// Lock order: slots before segments.
    slots: Mutex<Slots>,
    /// Apart, so that reading a page never waits for those who allocate or release many.
    segments: RwLock<Vec<Arc<SharedPages>>>,
}

/// How full a store is, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageStoreUsage {
    /// Pages that checkpoints hold.
    pub used: usize,
    /// Free pages whose memory is kept for the next capture.
    pub kept: usize,
}

/// Consecutive pages of a process and the consecutive slots for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRun {
    /// Address of the first page in the process.
    pub address: u64,
    /// Slot of the first page.
    pub first: Slot,
    /// Number of pages.
    pub pages: usize,
}

impl PageStore {
    /// An empty store. Memory is allocated as it fills.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Allocates memory for `pages` slots ahead of their use, which makes the next capture
    /// several times faster. To be called while nobody waits.
    ///
    /// # Errors
    /// ENOMEM if there is no memory.
    pub fn prepare(&self, pages: usize) -> Result<()> {
        let missing = pages.saturating_sub(self.lock().populated.len());
        if missing == 0 {
            return Ok(());
        }
        let slots = self.allocate(missing)?;
        for run in runs_of(&slots, |index| (index * PAGE_BYTES) as u64) {
            let segment = self.segment(run.first)?;
            segment.populate(run.first.place().1, run.pages)?;
        }
        self.release(slots.into_iter());
        Ok(())
    }

    /// Pages in use and kept.
    #[must_use]
    pub fn usage(&self) -> PageStoreUsage {
        let slots = self.lock();
        let kept = slots.populated.len();
        PageStoreUsage { used: slots.counts.len() - kept - slots.empty.len(), kept }
    }

    /// Takes slots, each with one reference that the caller owns.
    ///
    /// # Errors
    /// ENOMEM or EMFILE if the store can't grow.
    pub(crate) fn allocate(&self, count: usize) -> Result<Vec<Slot>> {
        let mut slots = self.lock();
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let slot = match slots.populated.pop().or_else(|| slots.empty.pop()) {
                Some(slot) => slot,
                None => self.make(&mut slots)?,
            };
            slots.counts[slot.index()] = 1;
            taken.push(slot);
        }
        taken.sort_unstable();
        Ok(taken)
    }

    pub(crate) fn retain(&self, held: impl Iterator<Item = Slot>) {
        let mut slots = self.lock();
        for slot in held {
            slots.counts[slot.index()] += 1;
        }
    }

    pub(crate) fn release(&self, held: impl Iterator<Item = Slot>) {
        let mut slots = self.lock();
        let mut freed = Vec::new();
        for slot in held {
            let count = &mut slots.counts[slot.index()];
            *count -= 1;
            if *count == 0 {
                freed.push(slot);
            }
        }
        // Popped in ascending order, freed slots make long runs again.
        freed.sort_unstable_by(|one, other| other.cmp(one));
        for slot in freed {
            if slots.populated.len() < POPULATED_FREE_PAGES_MAX {
                slots.populated.push(slot);
                continue;
            }
            let (_, page) = slot.place();
            if self.segment(slot).and_then(|segment| segment.discard(page, 1)).is_err() {
                tracing::warn!(slot = slot.0, "a page of the store could not be given back");
            }
            slots.empty.push(slot);
        }
    }

    /// Copies pages of a process into slots.
    ///
    /// # Errors
    /// EFAULT if a page of the process is unmapped, ESRCH if the process is gone.
    pub(crate) fn fill_from(&self, pid: Pid, runs: &[SlotRun]) -> Result<()> {
        for (segment, runs) in self.by_segment(runs)? {
            process_memory::read_pages(pid, &runs, &segment)?;
        }
        Ok(())
    }

    /// Copies slots over pages of a process whose mappings are writable.
    ///
    /// # Errors
    /// As for [`fill_from`](Self::fill_from), EFAULT for read-only mappings too.
    pub(crate) fn copy_to(&self, pid: Pid, runs: &[SlotRun]) -> Result<()> {
        for (segment, runs) in self.by_segment(runs)? {
            process_memory::write_pages(pid, &runs, &segment)?;
        }
        Ok(())
    }

    /// The segment of a run and the index of its first page there.
    pub(crate) fn locate(&self, slot: Slot) -> Result<(Arc<SharedPages>, usize)> {
        Ok((self.segment(slot)?, slot.place().1))
    }

    /// Copies a slot's content to a buffer.
    ///
    /// # Errors
    /// EINVAL if the slot is not of this store.
    pub fn read_into(&self, slot: Slot, into: &mut [u8; PAGE_BYTES]) -> Result<()> {
        self.segment(slot)?.read_into(slot.place().1, into)
    }

    /// Copies a slot's content out.
    ///
    /// # Errors
    /// EINVAL if the slot is not of this store.
    pub fn read(&self, slot: Slot) -> Result<[u8; PAGE_BYTES]> {
        self.segment(slot)?.read(slot.place().1)
    }

    fn by_segment(&self, runs: &[SlotRun]) -> Result<Vec<(Arc<SharedPages>, Vec<PageRun>)>> {
        let mut groups: Vec<(usize, Vec<PageRun>)> = Vec::new();
        for run in runs {
            let (segment, page) = run.first.place();
            let page_run = PageRun { address: run.address, page, pages: run.pages };
            match groups.last_mut() {
                Some((last, group)) if *last == segment => group.push(page_run),
                _ => groups.push((segment, vec![page_run])),
            }
        }
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let segment = |index: usize| segments.get(index).cloned().ok_or(Errno::INVAL);
        groups.into_iter().map(|(index, runs)| Ok((segment(index)?, runs))).collect()
    }

    fn segment(&self, slot: Slot) -> Result<Arc<SharedPages>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.get(slot.place().0).cloned().ok_or(Errno::INVAL)
    }

    fn make(&self, slots: &mut Slots) -> Result<Slot> {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if slots.counts.len() == segments.len() * SEGMENT_PAGES {
            segments.push(Arc::new(SharedPages::new("brood-page-store", SEGMENT_PAGES)?));
        }
        slots.counts.push(0);
        u32::try_from(slots.counts.len()).map(Slot).map_err(|_| Errno::NOMEM)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // The counts are consistent between any two statements that can panic.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Groups slots into runs that are consecutive in the store (within a segment) and, by
/// `address`, in the process. `address` gets a slot's position in the list.
pub(crate) fn runs_of(slots: &[Slot], address: impl Fn(usize) -> u64) -> Vec<SlotRun> {
    runs_of_pairs(slots.iter().enumerate().map(|(index, slot)| (address(index), *slot)))
}

/// As [`runs_of`], for pairs of address and slot.
pub(crate) fn runs_of_pairs(pairs: impl Iterator<Item = (u64, Slot)>) -> Vec<SlotRun> {
    let mut runs: Vec<SlotRun> = Vec::new();
    for (address, slot) in pairs {
        if let Some(run) = runs.last_mut() {
            let next = run.first.0 as usize + run.pages;
            let follows = slot.0 as usize == next && slot.place().0 == run.first.place().0;
            let bytes = (run.pages * PAGE_BYTES) as u64;
            if follows && address == run.address + bytes {
                run.pages += 1;
                continue;
            }
        }
        runs.push(SlotRun { address, first: slot, pages: 1 });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shared_by_count_and_used_again() {
        let store = PageStore::new();
        let slots = store.allocate(3).unwrap();
        store.retain(slots.iter().copied());
        store.release(slots.iter().copied());
        assert_eq!(store.usage(), PageStoreUsage { used: 3, kept: 0 });
        store.release(slots.iter().copied());
        assert_eq!(store.usage(), PageStoreUsage { used: 0, kept: 3 });
        assert_eq!(store.allocate(3).unwrap(), slots);
    }

    #[test]
    fn pages_of_a_process_are_kept() {
        let store = PageStore::new();
        let source = SharedPages::new("source", 4).unwrap();
        source.write(1, &[7; PAGE_BYTES]).unwrap();
        let slots = store.allocate(2).unwrap();
        let base = source.address(1).unwrap();
        let runs = runs_of(&slots, |index| base + (index * PAGE_BYTES) as u64);
        assert_eq!(runs.len(), 1);
        store.fill_from(rustix::process::getpid(), &runs).unwrap();
        source.write(1, &[8; PAGE_BYTES]).unwrap();
        assert_eq!(store.read(slots[0]).unwrap(), [7; PAGE_BYTES]);
        store.copy_to(rustix::process::getpid(), &runs).unwrap();
        assert_eq!(source.read(1).unwrap(), [7; PAGE_BYTES]);
    }

    #[test]
    fn runs_end_where_slots_addresses_or_segments_do() {
        let slots: Vec<Slot> = [1, 2, 4, 16_384, 16_385].map(Slot).to_vec();
        let pages: Vec<usize> =
            runs_of(&slots, |index| (index * PAGE_BYTES) as u64).iter().map(|run| run.pages).collect();
        assert_eq!(pages, [2, 1, 1, 1]);
        let apart = runs_of(&slots[..2], |index| (index * 3 * PAGE_BYTES) as u64);
        assert_eq!(apart.len(), 2);
    }

    #[test]
    fn prepared_pages_are_kept_free() {
        let store = PageStore::new();
        store.prepare(100).unwrap();
        assert_eq!(store.usage(), PageStoreUsage { used: 0, kept: 100 });
    }
}
