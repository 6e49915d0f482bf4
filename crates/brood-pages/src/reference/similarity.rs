//! Finding a page that resembles another one, wherever it lies.
//!
//! A page's features are minima of hashes over the set of its words (min-wise hashing): the chance that two pages agree in a
//! feature is the share of words that they have in common. Objects on heaps are aligned to words, so the set of words
//! stays much the same when content moves.

use crate::page::{EntryId, Page, words};

/// Features of a page. Two pages that share half of their words agree in at least one with 94 %.
const FEATURES: usize = 4;

/// Odd multipliers, one for each feature; the high half of the product is the hash.
const MULTIPLIERS: [u64; FEATURES] =
    [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0xd6e8_feb8_6659_fd93];

/// What a page looks like; `None` in [`Features::of`] if it has too little content to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features([u32; FEATURES]);

impl Features {
    /// The features of a page, about half a microsecond.
    #[must_use]
    pub fn of(page: &Page) -> Self {
        let mut minima = [u32::MAX; FEATURES];
        for word in words(page) {
            let word = u64::from_le_bytes(*word);
            // Small numbers and zeros are on every page and say nothing; a hash of the largest value takes them out without
            // a branch.
            let common = if word < 1 << 16 { u32::MAX } else { 0 };
            for (minimum, multiplier) in minima.iter_mut().zip(MULTIPLIERS) {
                let hash = ((word ^ word >> 29).wrapping_mul(multiplier) >> 32) as u32 | common;
                *minimum = (*minimum).min(hash);
            }
        }
        Self(minima)
    }

    /// In how many features two pages agree, 0 to 4.
    #[must_use]
    pub fn agreement(&self, other: &Self) -> usize {
        let pairs = self.0.iter().zip(other.0);
        pairs.filter(|(own, other)| **own == *other && *other != u32::MAX).count()
    }
}

/// A bounded table from features to entries that refer to nothing (neither an entry nor the template): the only ones that
/// decode to the same page under every key.
#[derive(Debug)]
pub struct SimilarityIndex {
    /// For each feature a direct-mapped table.
    tables: [Vec<u32>; FEATURES],
}

impl SimilarityIndex {
    /// Bytes of memory for each place.
    pub const PLACE_BYTES: usize = FEATURES * size_of::<u32>();

    /// A table with about `capacity` places for each feature, four bytes each.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { tables: std::array::from_fn(|_| vec![EntryId::NONE; capacity.next_power_of_two()]) }
    }

    /// The entry that agrees in most features and in `at_least` so many, if any does. It may be gone or hold something else
    /// by now.
    #[must_use]
    pub fn find(&self, features: Features, at_least: usize) -> Option<EntryId> {
        let found: [u32; FEATURES] = std::array::from_fn(|i| {
            if features.0[i] == u32::MAX { EntryId::NONE } else { self.tables[i][self.place(features.0[i])] }
        });
        let votes = |entry: u32| found.iter().filter(|other| **other == entry).count();
        let known = found.iter().filter(|entry| **entry != EntryId::NONE);
        let best = known.map(|entry| (votes(*entry), *entry)).max_by_key(|(votes, _)| *votes);
        best.filter(|(votes, _)| *votes >= at_least).map(|(_, entry)| EntryId(entry))
    }

    /// Remembers an entry under each of its features, replacing what was there.
    pub fn insert(&mut self, features: Features, entry: EntryId) {
        for i in 0..FEATURES {
            if features.0[i] != u32::MAX {
                let place = self.place(features.0[i]);
                self.tables[i][place] = entry.to_bits();
            }
        }
    }

    /// Bytes of memory that the table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.capacity() * size_of::<u32>()).sum()
    }

    /// Minima crowd near zero, so they are spread before they choose a place.
    fn place(&self, feature: u32) -> usize {
        (feature.wrapping_mul(0x9e37_79b1) >> 8) as usize & (self.tables[0].len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PAGE_SIZE, words_mut};
    use crate::testing::mix;

    fn page(seed: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        for (i, word) in words_mut(&mut page).iter_mut().enumerate() {
            *word = mix(seed, i as u64).to_le_bytes();
        }
        page
    }

    #[test]
    fn moved_and_edited_pages_are_found_and_strangers_are_not() {
        let mut index = SimilarityIndex::with_capacity(4096);
        for seed in 0..200 {
            index.insert(Features::of(&page(seed)), EntryId(seed as u32));
        }
        let mut found = 0;
        for seed in 0..200 {
            let mut moved = page(seed);
            moved.rotate_right(8 * (seed as usize + 1));
            moved[..1024].fill(seed as u8);
            found += usize::from(index.find(Features::of(&moved), 1) == Some(EntryId(seed as u32)));
        }
        assert!(found > 180, "found {found} of 200");
        let strangers = (1000..1200).filter(|seed| index.find(Features::of(&page(*seed)), 2).is_some()).count();
        assert!(strangers < 10, "{strangers} of 200 strangers resemble something");
    }

    #[test]
    fn pages_without_content_have_no_likeness() {
        let mut index = SimilarityIndex::with_capacity(16);
        index.insert(Features::of(&[0; PAGE_SIZE]), EntryId(1));
        assert_eq!(index.find(Features::of(&[0; PAGE_SIZE]), 1), None);
    }
}
