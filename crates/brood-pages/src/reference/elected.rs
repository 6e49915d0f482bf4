//! Elected sibling pages, one for each page key.

use crate::page::{EntryId, Lineage, PageKey, PageNumber};
use crate::pool::{PageTable, Pool, PoolError, Region};

/// Frames up to this size are not elected: a difference to them could hardly be smaller than they are.
const ELECT_ABOVE_BYTES: usize = 40;

/// A frame up to this size counts as helped: the reference resembles the page. Above, the reference is better than nothing,
/// but a page nearer to what the key holds nowadays would be better.
const HELPED_BELOW_BYTES: usize = 256;

/// A reference that did not help this often in a row (helping takes one back) is replaced.
const MISSES_TO_REPLACE: u8 = 2;

/// Counters of misses, one byte each. Keys share them by hash; a collision only makes a replacement come early or late.
const MISS_COUNTERS: usize = 4096;

/// Elections that are gathered before the tables are changed: one change of a table costs a few microseconds however many
/// pages it is for.
const BATCH: usize = 256;

/// For each page key of a cohort the entry that siblings' pages are encoded against. Holds a reference to each.
#[derive(Debug)]
pub struct ReferenceTable {
    tables: Vec<(Lineage, PageTable)>,
    elected: Vec<(PageKey, EntryId)>,
    misses: Box<[u8; MISS_COUNTERS]>,
}

impl Default for ReferenceTable {
    fn default() -> Self {
        Self { tables: Vec::new(), elected: Vec::new(), misses: Box::new([0; MISS_COUNTERS]) }
    }
}

impl ReferenceTable {
    /// A table without references.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The key's reference.
    #[must_use]
    pub fn get(&self, key: PageKey) -> Option<EntryId> {
        let table = self.tables.iter().find(|(lineage, _)| *lineage == key.lineage);
        table.and_then(|(_, table)| table.get(key.page))
    }

    /// Whether the key's reference has failed so often that the key's next page should be stored without it, to replace it.
    #[must_use]
    pub fn is_outdated(&self, key: PageKey) -> bool {
        self.misses[counter(key)] >= MISSES_TO_REPLACE
    }

    /// Hears how a page of this key was stored: as `entry` with a frame of so many bytes, `self_contained` if it refers to
    /// no other entry, `helped` if it was encoded against the key's reference or is equal to it. Elects the entry if the
    /// key has no reference or an outdated one.
    ///
    /// # Errors
    /// [`PoolError`] of the pool; the entry exists, so only a broken region gives one.
    pub fn stored<R: Region>(
        &mut self,
        pool: &mut Pool<R>,
        key: PageKey,
        entry: EntryId,
        frame_bytes: usize,
        self_contained: bool,
        helped: bool,
    ) -> Result<(), PoolError> {
        if helped && frame_bytes <= HELPED_BELOW_BYTES {
            self.hit(key);
            return Ok(());
        }
        let outdated = self.is_outdated(key);
        if !self_contained || frame_bytes <= ELECT_ABOVE_BYTES || !outdated && self.get(key).is_some() {
            self.miss(key);
            return Ok(());
        }
        self.misses[counter(key)] = 0;
        pool.retain(entry)?;
        self.elected.push((key, entry));
        if self.elected.len() >= BATCH {
            self.settle(pool)?;
        }
        Ok(())
    }

    fn hit(&mut self, key: PageKey) {
        let misses = &mut self.misses[counter(key)];
        *misses = misses.saturating_sub(1);
    }

    fn miss(&mut self, key: PageKey) {
        let misses = &mut self.misses[counter(key)];
        *misses = (*misses + 1).min(MISSES_TO_REPLACE);
    }

    /// Makes elections visible that were only noted so far. Call it at the end of a batch of pages.
    ///
    /// # Errors
    /// As [`ReferenceTable::stored`].
    pub fn settle<R: Region>(&mut self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        let mut elected = std::mem::take(&mut self.elected);
        // Stable, so that of several elections for one key the last is the last.
        elected.sort_by_key(|(key, _)| *key);
        for part in elected.chunk_by(|a, b| a.0.lineage == b.0.lineage) {
            let mut pages: Vec<(PageNumber, EntryId)> = Vec::with_capacity(part.len());
            for (key, entry) in part {
                match pages.last_mut().filter(|(page, _)| *page == key.page) {
                    Some((_, earlier)) => pool.release(std::mem::replace(earlier, *entry))?,
                    None => pages.push((key.page, *entry)),
                }
            }
            self.table(part[0].0.lineage).insert(pool, &pages)?;
        }
        Ok(())
    }

    fn table(&mut self, lineage: Lineage) -> &mut PageTable {
        let at = self.tables.iter().position(|(other, _)| *other == lineage).unwrap_or_else(|| {
            self.tables.push((lineage, PageTable::new()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }

    /// Drops references that nothing but this table holds any more, except the `keep` first found; returns how many. For when
    /// memory is short, or all siblings are squeezed and what is unused now stays unused.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn prune<R: Region>(&mut self, pool: &mut Pool<R>, keep: usize) -> Result<usize, PoolError> {
        self.settle(pool)?;
        let mut pruned = 0;
        for (_, table) in &mut self.tables {
            table.rename(pool)?;
            let unused: Vec<PageNumber> =
                table.iter().filter(|(_, entry)| pool.references(*entry) == 1).map(|(page, _)| page).collect();
            for page in unused.into_iter().skip(keep) {
                pruned += usize::from(table.remove(pool, page)?);
            }
        }
        self.tables.retain(|(_, table)| !table.is_empty());
        Ok(pruned)
    }

    /// References held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elected.len() + self.tables.iter().map(|(_, table)| table.len()).sum::<usize>()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All settled references.
    pub fn iter(&self) -> impl Iterator<Item = (PageKey, EntryId)> {
        let tables = self.tables.iter();
        tables
            .flat_map(|(lineage, table)| table.iter().map(|(page, entry)| (PageKey { lineage: *lineage, page }, entry)))
    }

    /// Heap bytes of the table itself, without the entries.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let tables = self.tables.iter().map(|(_, table)| table.heap_bytes() + size_of::<PageTable>());
        tables.sum::<usize>() + self.elected.capacity() * size_of::<(PageKey, EntryId)>() + MISS_COUNTERS
    }

    /// Gives all references back.
    ///
    /// # Errors
    /// [`PoolError`] of [`Pool::release`].
    pub fn release<R: Region>(self, pool: &mut Pool<R>) -> Result<(), PoolError> {
        for (_, entry) in self.elected {
            pool.release(entry)?;
        }
        self.tables.into_iter().try_for_each(|(_, table)| table.release(pool))
    }
}

fn counter(key: PageKey) -> usize {
    let mixed = (key.page.0 ^ u64::from(key.lineage.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize % MISS_COUNTERS
}
