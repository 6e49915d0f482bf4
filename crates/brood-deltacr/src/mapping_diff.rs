//! What has to be done to the mappings of a process to make them those of an image.

use brood_kernel::maps::Protection;

use crate::address_space::{MappingImage, MappingKind};

/// A change to a range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Remove what is mapped there.
    Unmap { start: u64, end: u64 },
    /// Map this there; its content is not there afterwards.
    Map(MappingImage),
    /// Only access differs.
    Protect { start: u64, end: u64, protection: Protection },
}

/// Lists the changes in address order.
pub(crate) fn changes(current: &[MappingImage], wanted: &[MappingImage]) -> Vec<Change> {
    let mut borders: Vec<u64> = current.iter().chain(wanted).flat_map(|mapping| [mapping.start, mapping.end]).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut found = Vec::new();
    for range in borders.windows(2) {
        let (start, end) = (range[0], range[1]);
        match (covering(current, start), covering(wanted, start)) {
            (None, None) => {}
            (Some(_), None) => push(&mut found, Change::Unmap { start, end }),
            (Some(now), Some(then)) if is_same(now, then) => {
                if now.protection != then.protection {
                    push(&mut found, Change::Protect { start, end, protection: then.protection });
                }
            }
            (_, Some(then)) => {
                let offset = if is_anonymous(then) { 0 } else { then.offset + (start - then.start) };
                push(&mut found, Change::Map(MappingImage { start, end, offset, ..then.clone() }));
            }
        }
    }
    found
}

fn covering(mappings: &[MappingImage], address: u64) -> Option<&MappingImage> {
    let index = mappings.partition_point(|mapping| mapping.end <= address);
    mappings.get(index).filter(|mapping| mapping.start <= address)
}

fn is_anonymous(mapping: &MappingImage) -> bool {
    matches!(mapping.kind, MappingKind::Anonymous)
}

/// Whether two mappings show the same at the same address, access aside.
fn is_same(one: &MappingImage, other: &MappingImage) -> bool {
    let same_place = one.start.wrapping_sub(one.offset) == other.start.wrapping_sub(other.offset);
    one.kind == other.kind && one.flags == other.flags && (is_anonymous(one) || same_place)
}

/// Appends a change, joined with the last one where that is the same for the range behind it.
fn push(found: &mut Vec<Change>, change: Change) {
    match (found.last_mut(), &change) {
        (Some(Change::Unmap { end, .. }), Change::Unmap { start: next, end: last }) if end == next => *end = *last,
        (
            Some(Change::Protect { end, protection, .. }),
            Change::Protect { start: next, end: last, protection: other },
        ) if end == next && protection == other => *end = *last,
        (Some(Change::Map(before)), Change::Map(after))
            if before.end == after.start && before.protection == after.protection && is_same(before, after) =>
        {
            before.end = after.end;
        }
        _ => found.push(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brood_kernel::maps::MappingFlags;

    fn anonymous(start: u64, end: u64, protection: Protection) -> MappingImage {
        let kind = MappingKind::Anonymous;
        MappingImage { start, end, protection, flags: MappingFlags::empty(), offset: 0, kind }
    }

    const READ: Protection = Protection::READ;

    #[test]
    fn equal_lists_need_nothing_even_if_split_differently() {
        let whole = [anonymous(0x1000, 0x5000, READ)];
        let split = [anonymous(0x1000, 0x3000, READ), anonymous(0x3000, 0x5000, READ)];
        assert!(changes(&whole, &split).is_empty());
        assert!(changes(&split, &whole).is_empty());
    }

    #[test]
    fn extra_lost_and_protected_ranges_are_found() {
        let both = READ | Protection::WRITE;
        let current = [anonymous(0x1000, 0x4000, READ), anonymous(0x8000, 0x9000, READ)];
        let wanted = [anonymous(0x2000, 0x5000, both)];
        let expected = [
            Change::Unmap { start: 0x1000, end: 0x2000 },
            Change::Protect { start: 0x2000, end: 0x4000, protection: both },
            Change::Map(anonymous(0x4000, 0x5000, both)),
            Change::Unmap { start: 0x8000, end: 0x9000 },
        ];
        assert_eq!(changes(&current, &wanted), expected);
    }

    #[test]
    fn another_file_offset_is_another_mapping() {
        let file = |start, offset| MappingImage {
            kind: MappingKind::Private(crate::address_space::MappedFile::Path("/x".into())),
            offset,
            ..anonymous(start, start + 0x2000, READ)
        };
        assert!(changes(&[file(0x1000, 0)], &[file(0x1000, 0)]).is_empty());
        assert_eq!(changes(&[file(0x1000, 0x1000)], &[file(0x1000, 0)]), [Change::Map(file(0x1000, 0))]);
    }

    #[test]
    fn applying_the_changes_gives_what_was_wanted() {
        // Against a naive twin: a page-by-page model over pseudo-random lists.
        let mut state = 12345_u64;
        let mut random = move |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..500 {
            let mut list = || {
                let mut at = 0;
                let mut mappings = Vec::new();
                while at < 40 {
                    at += random(4);
                    let end = at + 1 + random(5);
                    let protection = if random(2) == 0 { READ } else { Protection::WRITE };
                    mappings.push(anonymous(at * 4096, end * 4096, protection));
                    at = end;
                }
                mappings
            };
            let (current, wanted) = (list(), list());
            let model = |mappings: &[MappingImage]| -> Vec<Option<Protection>> {
                (0..64).map(|page| covering(mappings, page * 4096).map(|mapping| mapping.protection)).collect()
            };
            let mut pages = model(&current);
            for change in changes(&current, &wanted) {
                let (start, end, value) = match change {
                    Change::Unmap { start, end } => (start, end, None),
                    Change::Protect { start, end, protection } => (start, end, Some(protection)),
                    Change::Map(mapping) => (mapping.start, mapping.end, Some(mapping.protection)),
                };
                pages[(start / 4096) as usize..(end / 4096) as usize].fill(value);
            }
            assert_eq!(pages, model(&wanted));
        }
    }
}
