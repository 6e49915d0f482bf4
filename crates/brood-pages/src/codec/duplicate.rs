//! Pages that are already there. A duplicate has no frame: it is one more reference to an entry.
//!
//! Duplicates at the same page key are found by comparing with the key's reference page. For all others there is
//! [`DuplicateIndex`], a bounded table from content hash to entry. A hash is only a hint: whoever writes the pages
//! may construct collisions, so a hit counts only after the entry has been decoded and compared.

use xxhash_rust::xxh3::xxh3_64;

use crate::page::{EntryId, Page};

/// Entries that share a bucket; the one that was found least recently makes room.
const WAYS: usize = 4;

/// The hash that duplicates are looked up by.
#[must_use]
pub fn content_hash(page: &Page) -> u64 {
    xxh3_64(page)
}

/// A set-associative table of recently stored or found entries: [`SLOT_BYTES`] for each of a fixed number of places.
#[derive(Debug)]
pub struct DuplicateIndex {
    buckets: Vec<Bucket>,
}

/// Bytes of memory for each place in a [`DuplicateIndex`].
pub const SLOT_BYTES: usize = size_of::<Bucket>() / WAYS;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tags: [u16; WAYS],
    /// Most recently used first.
    entries: [u32; WAYS],
}

impl Bucket {
    const EMPTY: Self = Self { tags: [0; WAYS], entries: [EntryId::NONE; WAYS] };

    /// Puts the entry in front and moves those before `way` back by one.
    fn promote(&mut self, way: usize, tag: u16, entry: u32) {
        self.tags[..=way].rotate_right(1);
        self.entries[..=way].rotate_right(1);
        self.tags[0] = tag;
        self.entries[0] = entry;
    }
}

impl DuplicateIndex {
    /// A table with room for at least `capacity` entries (rounded up to a power of two).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let buckets = capacity.div_ceil(WAYS).next_power_of_two();
        Self { buckets: vec![Bucket::EMPTY; buckets] }
    }

    /// The entry that may hold the page with this hash. The caller compares.
    pub fn find(&mut self, hash: u64) -> Option<EntryId> {
        let (bucket, tag) = self.bucket(hash);
        let way = (0..WAYS).find(|way| bucket.tags[*way] == tag && bucket.entries[*way] != EntryId::NONE)?;
        let entry = bucket.entries[way];
        bucket.promote(way, tag, entry);
        Some(EntryId(entry))
    }

    /// Remembers an entry, forgetting the stalest of its bucket.
    pub fn insert(&mut self, hash: u64, entry: EntryId) {
        let (bucket, tag) = self.bucket(hash);
        let same = (0..WAYS).find(|way| bucket.tags[*way] == tag);
        bucket.promote(same.unwrap_or(WAYS - 1), tag, entry.to_bits());
    }

    /// Forgets the hash if it leads to `entry`: that entry is gone, or was found to be something else.
    pub fn remove(&mut self, hash: u64, entry: EntryId) {
        let (bucket, tag) = self.bucket(hash);
        for way in 0..WAYS {
            if bucket.tags[way] == tag && bucket.entries[way] == entry.to_bits() {
                bucket.entries[way] = EntryId::NONE;
            }
        }
    }

    /// Bytes of memory that the table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }

    fn bucket(&mut self, hash: u64) -> (&mut Bucket, u16) {
        let index = hash as usize & (self.buckets.len() - 1);
        (&mut self.buckets[index], (hash >> 48) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn recently_found_entries_outlive_stale_ones() {
        let mut index = DuplicateIndex::with_capacity(WAYS);
        let hash = |tag: u64| tag << 48;
        for tag in 0..4 {
            index.insert(hash(tag), EntryId(tag as u32));
        }
        assert_eq!(index.find(hash(0)), Some(EntryId(0)));
        index.insert(hash(9), EntryId(9));
        assert_eq!(index.find(hash(0)), Some(EntryId(0)));
        assert_eq!(index.find(hash(1)), None);
    }

    proptest! {
        #[test]
        fn a_hit_is_the_last_entry_inserted_for_that_hash(
            steps in proptest::collection::vec((0u64..40, 0u32..1000, any::<bool>()), 0..300)
        ) {
            let mut index = DuplicateIndex::with_capacity(16);
            let bytes = index.memory_bytes();
            let mut model = HashMap::new();
            for (key, entry, remove) in steps {
                let hash = xxh3_64(&key.to_le_bytes());
                if remove {
                    index.remove(hash, EntryId(entry));
                    if model.get(&hash) == Some(&EntryId(entry)) {
                        model.remove(&hash);
                    }
                } else {
                    index.insert(hash, EntryId(entry));
                    model.insert(hash, EntryId(entry));
                }
                if let Some(found) = index.find(hash) {
                    prop_assert_eq!(Some(&found), model.get(&hash));
                }
                prop_assert_eq!(index.memory_bytes(), bytes);
            }
        }
    }
}
