//! Which entry each pooled page of a process is in.
//!
//! A table is a sorted list of chunks of 16,384 pages. A chunk lists its runs of pooled pages (four bytes a run) and one
//! entry name (four bytes) for each page: processes have some sixteen pooled pages in a row, so a page costs a little
//! more than four bytes. Chunks are shared between tables until one of them changes: freezing a table for a checkpoint, or
//! forking from it, costs one pointer for each chunk and touches no reference count of any entry.
//!
//! A chunk holds one reference to each entry that it names, however many tables share the chunk.

use std::ops::Range;
use std::sync::Arc;

use super::{Pool, PoolError, Region};
use crate::page::{EntryId, PageNumber};

/// Pages that a chunk covers: large enough for the chunk's own cost to vanish, small enough to copy (64 KiB) when it stops
/// being shared. Fits the 16-bit numbers in [`Run`].
const CHUNK_PAGES: u64 = 1 << 14;

/// The pooled pages of one process. Must be given back with [`PageTable::release`]: a table that is merely dropped leaves
/// its references in the pool for ever.
#[derive(Debug, Default)]
#[must_use]
pub struct PageTable {
    chunks: Vec<Arc<Chunk>>,
    pages: usize,
}

/// The pooled pages among [`CHUNK_PAGES`].
#[derive(Clone, Debug, Default)]
struct Chunk {
    /// The page number of the first divided by [`CHUNK_PAGES`].
    number: u64,
    runs: Box<[Run]>,
    /// The entries of all runs, one after the other; [`EntryId::NONE`] where a page was removed.
    entries: Box<[u32]>,
    /// Entries that are not holes.
    pages: u32,
}

/// Pages in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the first page within the chunk.
    page: u16,
    /// Position of its entry; the run goes up to the next run's.
    position: u16,
}

impl Chunk {
    /// From pages in ascending order.
    fn build(number: u64, pages: &[(u16, u32)]) -> Self {
        let starts = |i: &usize| *i == 0 || pages[*i].0 != pages[*i - 1].0 + 1;
        let runs = (0..pages.len()).filter(starts).map(|i| Run { page: pages[i].0, position: i as u16 });
        Self {
            number,
            runs: runs.collect(),
            entries: pages.iter().map(|(_, entry)| *entry).collect(),
            pages: pages.len() as u32,
        }
    }

    fn position(&self, page: u16) -> Option<usize> {
        let index = self.runs.partition_point(|run| run.page <= page).checked_sub(1)?;
        let run = self.runs[index];
        let position = usize::from(run.position) + usize::from(page - run.page);
        let end = self.runs.get(index + 1).map_or(self.entries.len(), |next| usize::from(next.position));
        (position < end).then_some(position)
    }

    fn iter(&self) -> impl Iterator<Item = (u16, u32)> {
        self.range(0, CHUNK_PAGES)
    }

    /// The pages from `low` up to, not including, `high`. Finds the first by bisection.
    fn range(&self, low: u64, high: u64) -> impl Iterator<Item = (u16, u32)> {
        let first = self.runs.partition_point(|run| u64::from(run.page) <= low).saturating_sub(1);
        let runs = &self.runs[first..];
        let ends = runs.iter().skip(1).map(|run| run.position).chain([self.entries.len() as u16]);
        let pages = runs.iter().zip(ends).flat_map(move |(run, end)| {
            let skip = low.saturating_sub(u64::from(run.page)).min(u64::from(end - run.position)) as u16;
            let entries = &self.entries[usize::from(run.position + skip)..usize::from(end)];
            (run.page + skip..).zip(entries.iter().copied())
        });
        let pages = pages.take_while(move |(page, _)| u64::from(*page) < high);
        pages.filter(|(_, entry)| *entry != EntryId::NONE)
    }

    fn heap_bytes(&self) -> usize {
        let counters = 2 * size_of::<usize>();
        counters + size_of::<Self>() + self.runs.len() * size_of::<Run>() + self.entries.len() * size_of::<u32>()
    }

    fn release_all<R: Region>(&self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        self.iter().try_for_each(|(_, entry)| pool.release(EntryId(entry)))
    }
}

/// The chunk, for changing it: a copy with references of its own if others share it.
fn owned<'c, R: Region>(chunk: &'c mut Arc<Chunk>, pool: &mut Pool<R>) -> Result<&'c mut Chunk, PoolError> {
    if Arc::get_mut(chunk).is_none() {
        let copy = Chunk::clone(chunk);
        for (_, entry) in copy.iter() {
            pool.retain(EntryId(entry))?;
        }
        let shared = std::mem::replace(chunk, Arc::new(copy));
        // The others may have gone away meanwhile.
        if let Some(last) = Arc::into_inner(shared) {
            last.release_all(pool)?;
        }
    }
    Ok(Arc::get_mut(chunk).expect("just made"))
}

impl PageTable {
    /// A table without pages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pooled pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Whether no page is pooled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// The entry of a page.
    #[must_use]
    pub fn get(&self, page: PageNumber) -> Option<EntryId> {
        let chunk = &self.chunks[self.find(page.0 / CHUNK_PAGES).ok()?];
        let entry = chunk.entries[chunk.position((page.0 % CHUNK_PAGES) as u16)?];
        (entry != EntryId::NONE).then_some(EntryId(entry))
    }

    /// All pooled pages, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (PageNumber, EntryId)> {
        self.chunks.iter().flat_map(|chunk| {
            let first = chunk.number * CHUNK_PAGES;
            chunk.iter().map(move |(page, entry)| (PageNumber(first + u64::from(page)), EntryId(entry)))
        })
    }

    /// The pooled pages of a range, in ascending order: a page's neighbours, say.
    pub fn range(&self, range: Range<PageNumber>) -> impl Iterator<Item = (PageNumber, EntryId)> {
        let first = self.find(range.start.0 / CHUNK_PAGES).unwrap_or_else(|at| at);
        let chunks = self.chunks[first..].iter().take_while(move |chunk| chunk.number * CHUNK_PAGES < range.end.0);
        chunks.flat_map(move |chunk| {
            let first = chunk.number * CHUNK_PAGES;
            let (low, high) = (range.start.0.saturating_sub(first), range.end.0 - first);
            chunk.range(low, high).map(move |(page, entry)| (PageNumber(first + u64::from(page)), EntryId(entry)))
        })
    }

    /// A second table with the same pages, for a checkpoint or a fork.
    pub fn share(&self) -> Self {
        Self { chunks: self.chunks.clone(), pages: self.pages }
    }

    /// Adds pages, which must be in ascending order without repetition; the caller's reference to each entry becomes the
    /// table's. A page that was pooled already changes its entry.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`] if the table's own references are wrong.
    pub fn insert<R: Region>(&mut self, pool: &mut Pool<R>, pages: &[(PageNumber, EntryId)]) -> Result<(), PoolError> {
        debug_assert!(pages.is_sorted_by(|a, b| a.0 < b.0), "pages out of order");
        for part in pages.chunk_by(|a, b| a.0.0 / CHUNK_PAGES == b.0.0 / CHUNK_PAGES) {
            let number = part[0].0.0 / CHUNK_PAGES;
            let new: Vec<(u16, u32)> =
                part.iter().map(|(page, entry)| ((page.0 % CHUNK_PAGES) as u16, entry.0)).collect();
            match self.find(number) {
                Err(position) => {
                    self.chunks.insert(position, Arc::new(Chunk::build(number, &new)));
                    self.pages += new.len();
                }
                Ok(position) => {
                    let chunk = owned(&mut self.chunks[position], pool)?;
                    self.pages -= chunk.pages as usize;
                    merge(chunk, &new, pool)?;
                    self.pages += chunk.pages as usize;
                }
            }
        }
        Ok(())
    }

    /// Removes a page, as when it was restored or its memory was unmapped, and releases its entry. Returns whether it was pooled.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn remove<R: Region>(&mut self, pool: &mut Pool<R>, page: PageNumber) -> Result<bool, PoolError> {
        Ok(self.remove_range(pool, page..PageNumber(page.0.saturating_add(1)))? != 0)
    }

    /// Removes all pages of a range and releases their entries. Returns how many there were.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn remove_range<R: Region>(
        &mut self,
        pool: &mut Pool<R>,
        range: Range<PageNumber>,
    ) -> Result<usize, PoolError> {
        let before = self.pages;
        let taken = self.take_range(pool, range)?;
        for (_, entry) in &taken {
            pool.release(*entry)?;
        }
        Ok(before - self.pages)
    }

    /// Moves the pages of a range to begin at `to`, as `mremap` does; pages that were there are released first. The ranges
    /// must not overlap.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn move_range<R: Region>(
        &mut self,
        pool: &mut Pool<R>,
        from: Range<PageNumber>,
        to: PageNumber,
    ) -> Result<(), PoolError> {
        let length = from.end.0.saturating_sub(from.start.0);
        self.remove_range(pool, to..PageNumber(to.0.saturating_add(length)))?;
        let mut pages = self.take_range(pool, from.clone())?;
        for (page, _) in &mut pages {
            page.0 = page.0 - from.start.0 + to.0;
        }
        self.insert(pool, &pages)
    }

    /// Removes pages without releasing them: their references are the caller's.
    fn take_range<R: Region>(
        &mut self,
        pool: &mut Pool<R>,
        range: Range<PageNumber>,
    ) -> Result<Vec<(PageNumber, EntryId)>, PoolError> {
        let mut taken = Vec::new();
        let mut position = self.find(range.start.0 / CHUNK_PAGES).unwrap_or_else(|at| at);
        while let Some(chunk) = self.chunks.get_mut(position).filter(|c| c.number * CHUNK_PAGES < range.end.0) {
            let first = chunk.number * CHUNK_PAGES;
            let low = range.start.0.saturating_sub(first);
            let high = (range.end.0 - first).min(CHUNK_PAGES);
            let pages: Vec<u16> = chunk.range(low, high).map(|(page, _)| page).collect();
            if !pages.is_empty() {
                let chunk = owned(chunk, pool)?;
                for page in &pages {
                    let at = chunk.position(*page).expect("listed by the chunk");
                    let entry = std::mem::replace(&mut chunk.entries[at], EntryId::NONE);
                    taken.push((PageNumber(first + u64::from(*page)), EntryId(entry)));
                }
                chunk.pages -= pages.len() as u32;
                self.pages -= pages.len();
                if chunk.pages == 0 {
                    self.chunks.remove(position);
                    continue;
                }
                if (chunk.pages as usize) < chunk.entries.len() / 2 {
                    let left: Vec<_> = chunk.iter().collect();
                    *chunk = Chunk::build(chunk.number, &left);
                }
            }
            position += 1;
        }
        Ok(taken)
    }

    /// Gives the table's references back.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`]; the rest of the table's references is then lost.
    pub fn release<R: Region>(self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        self.chunks.into_iter().filter_map(Arc::into_inner).try_for_each(|chunk| chunk.release_all(pool))
    }

    /// Replaces old names that compaction left by present ones; idle work. Chunks that are shared are left alone.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`] if the table's references are wrong.
    pub fn rename<R: Region>(&mut self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        for chunk in self.chunks.iter_mut().filter_map(Arc::get_mut) {
            for entry in chunk.entries.iter_mut().filter(|entry| **entry != EntryId::NONE) {
                *entry = pool.renamed(EntryId(*entry))?.0;
            }
        }
        Ok(())
    }

    /// Heap bytes of the table; of chunks that several tables share, an equal part.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| chunk.heap_bytes() / Arc::strong_count(chunk)).sum::<usize>();
        chunks + self.chunks.capacity() * size_of::<Arc<Chunk>>()
    }

    fn find(&self, number: u64) -> Result<usize, usize> {
        self.chunks.binary_search_by_key(&number, |chunk| chunk.number)
    }
}

/// Adds pages to a chunk. In place if they only fill holes or replace, as is usual for a process that was squeezed before.
fn merge<R: Region>(chunk: &mut Chunk, new: &[(u16, u32)], pool: &mut Pool<R>) -> Result<(), PoolError> {
    if new.iter().all(|(page, _)| chunk.position(*page).is_some()) {
        for (page, entry) in new {
            let position = chunk.position(*page).expect("checked above");
            match std::mem::replace(&mut chunk.entries[position], *entry) {
                EntryId::NONE => chunk.pages += 1,
                old => pool.release(EntryId(old))?,
            }
        }
        return Ok(());
    }
    let mut merged = Vec::with_capacity(chunk.entries.len() + new.len());
    let mut new = new.iter().copied().peekable();
    for (page, entry) in chunk.iter() {
        while let Some(earlier) = new.next_if(|(new, _)| *new < page) {
            merged.push(earlier);
        }
        match new.next_if(|(new, _)| *new == page) {
            None => merged.push((page, entry)),
            Some(same) => {
                merged.push(same);
                pool.release(EntryId(entry))?;
            }
        }
    }
    merged.extend(new);
    *chunk = Chunk::build(chunk.number, &merged);
    Ok(())
}
