//! Which pages of an address space are owed, and by whom. Pure bookkeeping.
//!
//! Ranges say where content comes from; bits beside them say which pages of a range are settled,
//! because they were supplied or given up. Both are persistent maps: a forked child gets a copy
//! that costs nothing.

use std::sync::Arc;

use brood_kernel::shared_pages::PAGE_BYTES;

use crate::source::{PageAddress, PageSource};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that share a word of settled bits.
const GROUP_PAGES: u64 = 64;
const GROUP_BYTES: u64 = GROUP_PAGES * PAGE;
/// Pages given up at once from which the range is cut instead of marked. Marking keeps the number
/// of ranges bounded whatever a program does; cutting keeps the number of words bounded.
const CUT_PAGES_MIN: u64 = 1024;

/// Pages whose content a source has.
#[derive(Debug, Clone)]
pub struct OwedRange {
    /// First address behind the range.
    pub end: u64,
    /// Who has the content.
    pub source: Arc<dyn PageSource>,
    /// Address by which the source knows the first page.
    pub origin: u64,
    /// It was moved here by the process.
    pub(crate) moved: bool,
}

/// An owed page: whom to ask, and by which address.
#[derive(Debug, Clone)]
pub struct Owed {
    /// Who has the content.
    pub source: Arc<dyn PageSource>,
    /// Address by which the source knows the page.
    pub origin: PageAddress,
    /// First address behind the pages owed in a row by the same source, settled ones included.
    pub end: u64,
}

/// The owed pages of an address space. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct OwedMap {
    /// By first address. Ranges never overlap.
    ranges: imbl::OrdMap<u64, OwedRange>,
    /// Settled pages by group number.
    settled: imbl::OrdMap<u64, u64>,
}

impl OwedMap {
    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Notes that a source has the pages of a range, which it knows by addresses from `origin`
    /// on. What was owed there before isn't any more.
    pub fn owe(&mut self, start: u64, end: u64, source: Arc<dyn PageSource>, origin: u64) {
        if start < end {
            self.cut(start, end);
            self.ranges.insert(start, OwedRange { end, source, origin, moved: false });
        }
    }

    /// Forgets what is owed in a range.
    pub fn cut(&mut self, start: u64, end: u64) {
        for (first, range) in self.pieces(start, end) {
            // Pieces are clipped; the range that they are of is found again by its start.
            let Some((whole_start, whole)) = self.covering(first).map(|(at, range)| (at, range.clone())) else {
                continue;
            };
            self.ranges.remove(&whole_start);
            if whole_start < first {
                self.ranges.insert(whole_start, OwedRange { end: first, ..whole.clone() });
            }
            if range.end < whole.end {
                let origin = whole.origin + (range.end - whole_start);
                self.ranges.insert(range.end, OwedRange { origin, ..whole });
            }
        }
        self.clear_settled(start, end);
    }

    /// Notes that a process gave up the contents of a range: they are zeros now.
    pub fn give_up(&mut self, start: u64, end: u64) {
        if (end - start) / PAGE >= CUT_PAGES_MIN {
            return self.cut(start, end);
        }
        for (first, range) in self.pieces(start, end) {
            self.settle(first, range.end);
        }
    }

    /// Notes that the pages of a range are in place.
    pub fn settle(&mut self, start: u64, end: u64) {
        for (group, mask) in groups(start, end) {
            let word = self.settled.get(&group).copied().unwrap_or(0);
            self.settled.insert(group, word | mask);
        }
    }

    /// Notes that some of the 64 pages from `number * 64` pages on, given as bits, are in place.
    pub fn settle_pages(&mut self, number: u64, pages: u64) {
        if pages != 0 {
            let word = self.settled_mask(number);
            self.settled.insert(number, word | pages);
        }
    }

    /// Has everything that is owed come from one source, which knows each page by the address
    /// that it has now.
    pub fn resupply(&mut self, source: &Arc<dyn PageSource>) {
        let moved = |(start, range): (&u64, &OwedRange)| {
            (*start, OwedRange { source: Arc::clone(source), origin: *start, ..range.clone() })
        };
        self.ranges = self.ranges.iter().map(moved).collect();
    }

    /// Notes that memory was moved.
    pub fn relocate(&mut self, from: u64, to: u64, bytes: u64) {
        let pieces = self.pieces(from, from + bytes);
        let settled: Vec<u64> = pieces.iter().flat_map(|(first, range)| self.settled_in(*first, range.end)).collect();
        self.cut(from, from + bytes);
        self.cut(to, to + bytes);
        for (first, range) in pieces {
            let start = to + (first - from);
            let end = to + (range.end - from);
            self.ranges.insert(start, OwedRange { end, moved: true, ..range });
        }
        for page in settled {
            let at = to + (page - from);
            self.settle(at, at + PAGE);
        }
    }

    /// Whom to ask for the page at an address, if it is still owed.
    #[must_use]
    pub fn lookup(&self, address: PageAddress) -> Option<Owed> {
        let address = address.get();
        let (start, range) = self.covering(address)?;
        if self.is_settled(address) {
            return None;
        }
        let origin = PageAddress::of(range.origin + (address - start));
        Some(Owed { source: Arc::clone(&range.source), origin, end: range.end })
    }

    /// The first owed page from an address on, before `end`, that isn't zeros.
    #[must_use]
    pub fn next(&self, from: PageAddress, end: u64) -> Option<PageAddress> {
        for (first, range) in self.pieces(from.get(), end) {
            let mut at = first;
            while at < range.end {
                let known = |address: u64| PageAddress::of(range.origin + (address - first));
                let Some(found) = range.source.next_page(known(at)..known(range.end)) else { break };
                at = first + (found.get() - range.origin);
                if !self.is_settled(at) {
                    return Some(PageAddress::of(at));
                }
                at += PAGE;
            }
        }
        None
    }

    /// The parts of ranges between two addresses, clipped to them.
    #[must_use]
    pub fn pieces(&self, start: u64, end: u64) -> Vec<(u64, OwedRange)> {
        let before = self.covering(start).map(|(first, range)| (first, range.clone()));
        let inside = self.ranges.range(start..end.max(start)).map(|(first, range)| (*first, range.clone()));
        let mut found: Vec<(u64, OwedRange)> = before.into_iter().filter(|(first, _)| *first < start).collect();
        found.extend(inside);
        for (first, range) in &mut found {
            if *first < start {
                range.origin += start - *first;
                *first = start;
            }
            range.end = range.end.min(end);
        }
        found.retain(|(first, range)| *first < range.end);
        found
    }

    /// All ranges with their first addresses.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, &OwedRange)> {
        self.ranges.iter().map(|(start, range)| (*start, range))
    }

    /// Which of the 64 pages from `number * 64` pages on are settled. Means nothing for pages
    /// that no range covers.
    #[must_use]
    pub fn settled_mask(&self, number: u64) -> u64 {
        self.settled.get(&number).copied().unwrap_or(0)
    }

    fn covering(&self, address: u64) -> Option<(u64, &OwedRange)> {
        let (start, range) = self.ranges.get_prev(&address)?;
        (range.end > address).then_some((*start, range))
    }

    fn is_settled(&self, address: u64) -> bool {
        self.settled_mask(address / GROUP_BYTES) >> ((address % GROUP_BYTES) / PAGE) & 1 != 0
    }

    /// Addresses of settled pages.
    fn settled_in(&self, start: u64, end: u64) -> Vec<u64> {
        let groups = self.settled.range(start / GROUP_BYTES..end.div_ceil(GROUP_BYTES));
        let pages = groups.flat_map(|(group, word)| {
            (0..GROUP_PAGES).filter(move |bit| word >> bit & 1 != 0).map(move |bit| group * GROUP_BYTES + bit * PAGE)
        });
        pages.filter(|page| (start..end).contains(page)).collect()
    }

    fn clear_settled(&mut self, start: u64, end: u64) {
        let touched = self.settled.range(start / GROUP_BYTES..end.div_ceil(GROUP_BYTES));
        let touched: Vec<(u64, u64)> = touched.map(|(group, word)| (*group, *word)).collect();
        for (group, word) in touched {
            let (low, high) = (start.max(group * GROUP_BYTES), end.min((group + 1) * GROUP_BYTES));
            let left = word & !groups(low, high).next().map_or(0, |(_, mask)| mask);
            if left == 0 {
                self.settled.remove(&group);
            } else {
                self.settled.insert(group, left);
            }
        }
    }
}

/// The words that hold the bits of a range of pages, with those bits set.
fn groups(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / GROUP_BYTES..end.div_ceil(GROUP_BYTES)).map(move |group| {
        let (low, high) = (start.max(group * GROUP_BYTES), end.min((group + 1) * GROUP_BYTES));
        let count = high.saturating_sub(low) / PAGE;
        let ones = if count >= GROUP_PAGES { u64::MAX } else { (1 << count) - 1 };
        (group, ones << (low % GROUP_BYTES / PAGE))
    })
}

#[cfg(test)]
#[path = "owed_tests.rs"]
mod tests;
