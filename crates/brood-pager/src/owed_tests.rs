//! The map against a naive twin that knows every page.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;

use super::*;
use crate::source::Supply;

/// A source in which every third page is zeros.
#[derive(Debug)]
struct Numbered(u64);

impl PageSource for Numbered {
    fn supply(&self, address: PageAddress, into: &mut [u8; PAGE_BYTES]) -> Supply {
        into[..8].copy_from_slice(&(self.0 + address.get()).to_ne_bytes());
        if (address.get() / PAGE).is_multiple_of(3) { Supply::Zero } else { Supply::Page }
    }

    fn next_page(&self, range: Range<PageAddress>) -> Option<PageAddress> {
        (range.start.get()..range.end.get())
            .step_by(PAGE_BYTES)
            .find(|address| !(address / PAGE).is_multiple_of(3))
            .map(PageAddress::of)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

const PAGES: u64 = 3000;

/// For each owed page, its source and the address there.
type Twin = BTreeMap<u64, (u64, u64)>;

fn check(map: &OwedMap, twin: &Twin) {
    for page in 0..PAGES {
        let found = map.lookup(PageAddress::of(page * PAGE)).map(|owed| {
            let number = owed.source.as_any().downcast_ref::<Numbered>().unwrap().0;
            (number, owed.origin.get() / PAGE)
        });
        assert_eq!(found, twin.get(&page).copied(), "page {page}");
    }
    let mut listed = Vec::new();
    let mut at = PageAddress::of(0);
    while let Some(page) = map.next(at, PAGES * PAGE) {
        listed.push(page.get() / PAGE);
        at = PageAddress::of(page.get() + PAGE);
    }
    let wanted: Vec<u64> = twin.iter().filter(|(_, (_, at))| at % 3 != 0).map(|(page, _)| *page).collect();
    assert_eq!(listed, wanted);
}

#[test]
fn every_sequence_of_changes_is_that_of_the_twin() {
    let mut state = 4711_u64;
    let mut random = move |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for _ in 0..30 {
        let (mut map, mut twin) = (OwedMap::default(), Twin::new());
        for step in 0..40 {
            let start = random(PAGES - 1);
            let length = 1 + if random(6) == 0 { random(PAGES - start) } else { random(100).min(PAGES - start - 1) };
            let end = start + length;
            match random(6) {
                0 | 1 => {
                    let origin = random(10_000);
                    map.owe(start * PAGE, end * PAGE, Arc::new(Numbered(step)), origin * PAGE);
                    twin.extend((start..end).map(|page| (page, (step, origin + page - start))));
                }
                2 => {
                    map.cut(start * PAGE, end * PAGE);
                    twin.retain(|page, _| !(start..end).contains(page));
                }
                3 => {
                    map.give_up(start * PAGE, end * PAGE);
                    twin.retain(|page, _| !(start..end).contains(page));
                }
                4 => {
                    map.settle(start * PAGE, end * PAGE);
                    twin.retain(|page, _| !(start..end).contains(page));
                    // The map is only told so of pages that it owes.
                    let owed: Vec<_> = map.pieces(start * PAGE, end * PAGE);
                    map.clear_settled(start * PAGE, end * PAGE);
                    owed.iter().for_each(|(first, range)| map.settle(*first, range.end));
                }
                _ => {
                    let to = random(PAGES - length);
                    if to < end && start < to + length {
                        continue;
                    }
                    map.relocate(start * PAGE, to * PAGE, length * PAGE);
                    let moved: Vec<_> = twin.range(start..end).map(|(page, from)| (page - start + to, *from)).collect();
                    twin.retain(|page, _| !(start..end).contains(page) && !(to..to + length).contains(page));
                    twin.extend(moved);
                }
            }
            let copy = map.clone();
            check(&copy, &twin);
        }
    }
}

#[test]
fn a_huge_reservation_costs_nothing() {
    let mut map = OwedMap::default();
    let terabyte = 1_u64 << 40;
    map.owe(terabyte, 2 * terabyte, Arc::new(Numbered(0)), terabyte);
    map.give_up(terabyte + GROUP_BYTES, 2 * terabyte - GROUP_BYTES);
    assert_eq!(map.ranges().count(), 2);
    assert!(map.settled.is_empty());
    map.relocate(terabyte, 4 * terabyte, terabyte);
    let owed = map.lookup(PageAddress::of(5 * terabyte - 1)).unwrap();
    assert_eq!(owed.origin.get(), 2 * terabyte - PAGE);
    assert!(map.lookup(PageAddress::of(terabyte)).is_none());
}

#[test]
fn another_source_takes_over_what_is_still_owed() {
    let mut map = OwedMap::default();
    map.owe(0, 10 * PAGE, Arc::new(Numbered(1)), 100 * PAGE);
    map.settle(2 * PAGE, 3 * PAGE);
    map.relocate(0, 50 * PAGE, 10 * PAGE);
    let source: Arc<dyn PageSource> = Arc::new(Numbered(2));
    map.resupply(&source);
    let twin: Twin = (50..60).filter(|page| *page != 52).map(|page| (page, (2, page))).collect();
    check(&map, &twin);
}
