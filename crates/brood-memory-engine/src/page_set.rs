//! Sets of pages: a bit for each page of a chunk in which there is any.

use std::collections::BTreeMap;
use std::ops::Range;

use brood_pages::PageNumber;

/// Pages in a chunk: one bit each in a machine word.
const CHUNK_PAGES: u64 = 64;

/// A set of pages. Pages come in clusters, so one costs a fraction of a byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    chunks: BTreeMap<u64, u64>,
    pages: usize,
}

impl PageSet {
    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Whether the page is in.
    #[must_use]
    pub fn contains(&self, page: PageNumber) -> bool {
        self.chunks.get(&(page.0 / CHUNK_PAGES)).is_some_and(|bits| bits >> (page.0 % CHUNK_PAGES) & 1 != 0)
    }

    /// Puts a page in; whether it is new.
    pub fn insert(&mut self, page: PageNumber) -> bool {
        let bits = self.chunks.entry(page.0 / CHUNK_PAGES).or_default();
        let bit = 1 << (page.0 % CHUNK_PAGES);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        self.pages += usize::from(is_new);
        is_new
    }

    /// Takes a page out; whether it was in.
    pub fn remove(&mut self, page: PageNumber) -> bool {
        self.remove_range(page..PageNumber(page.0.saturating_add(1))) != 0
    }

    /// Takes the pages of a range out; how many were in.
    pub fn remove_range(&mut self, range: Range<PageNumber>) -> usize {
        if range.start >= range.end {
            return 0;
        }
        let before = self.pages;
        let chunks = range.start.0 / CHUNK_PAGES..=(range.end.0 - 1) / CHUNK_PAGES;
        let mut emptied = Vec::new();
        for (number, bits) in self.chunks.range_mut(chunks) {
            let mask = mask(*number, &range);
            self.pages -= (*bits & mask).count_ones() as usize;
            *bits &= !mask;
            if *bits == 0 {
                emptied.push(*number);
            }
        }
        for number in emptied {
            self.chunks.remove(&number);
        }
        before - self.pages
    }

    /// All pages, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PageNumber> {
        self.chunks.iter().flat_map(|(number, bits)| pages_of(*number, *bits))
    }

    /// The pages of a range, in ascending order.
    pub fn range(&self, range: Range<PageNumber>) -> impl Iterator<Item = PageNumber> {
        let last = range.end.0.saturating_sub(1).max(range.start.0);
        let chunks = self.chunks.range(range.start.0 / CHUNK_PAGES..=last / CHUNK_PAGES);
        chunks.flat_map(move |(number, bits)| pages_of(*number, *bits & mask(*number, &range)))
    }

    /// Heap bytes: nodes of the tree are on average two thirds full.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.chunks.len() * size_of::<(u64, u64)>() * 3 / 2
    }
}

/// The bits of a range's pages in a chunk.
fn mask(number: u64, range: &Range<PageNumber>) -> u64 {
    let first = number * CHUNK_PAGES;
    let low = range.start.0.saturating_sub(first).min(CHUNK_PAGES);
    let high = range.end.0.saturating_sub(first).min(CHUNK_PAGES);
    if low >= high {
        return 0;
    }
    let ones = if high - low == CHUNK_PAGES { u64::MAX } else { (1 << (high - low)) - 1 };
    ones << low
}

fn pages_of(number: u64, mut bits: u64) -> impl Iterator<Item = PageNumber> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let position = u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            PageNumber(number * CHUNK_PAGES + position)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(steps in proptest::collection::vec((0u8..4, 0u64..300, 0u64..150), 0..200)) {
            let mut set = PageSet::default();
            let mut model = BTreeSet::new();
            for (kind, start, length) in steps {
                let (page, range) = (PageNumber(start), PageNumber(start)..PageNumber(start + length));
                match kind {
                    0 | 1 => prop_assert_eq!(set.insert(page), model.insert(page)),
                    2 => prop_assert_eq!(set.remove(page), model.remove(&page)),
                    _ => {
                        let gone: Vec<_> = model.range(range.clone()).copied().collect();
                        prop_assert_eq!(set.range(range.clone()).collect::<Vec<_>>(), gone.clone());
                        prop_assert_eq!(set.remove_range(range), gone.len());
                        gone.iter().for_each(|page| { model.remove(page); });
                    }
                }
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.contains(page), model.contains(&page));
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }
}
