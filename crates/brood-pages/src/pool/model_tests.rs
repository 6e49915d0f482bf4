//! The pool and its page tables against naive twins.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::{CohortId, MemoryRegion, PageTable, Pool, PoolError, shares};
use crate::codec::Codec;
use crate::codec::frame;
use crate::page::{EntryId, PageNumber};
use crate::testing::mix;

const LIMIT: u64 = 1 << 30;

/// A frame of `length` bytes of content that no decoder has to understand.
fn frame_of(reference: Option<EntryId>, length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let codec = match reference {
        Some(_) => Codec::SparseEntry,
        None if length >= 4096 => Codec::Raw,
        None if seed.is_multiple_of(3) => Codec::ZstdDictionary,
        None => Codec::Zstd,
    };
    frame::begin(&mut bytes, reference);
    let length = if codec == Codec::Raw { 4096 } else { length.clamp(2, 4090) };
    bytes.extend((0..length).map(|i| mix(seed, i as u64) as u8));
    if codec == Codec::ZstdDictionary {
        // Cohorts have few dictionary versions.
        bytes[frame::HEAD_BYTES..][..2].copy_from_slice(&[seed as u8 % 4, 0]);
    }
    frame::finish(&mut bytes, codec);
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Store { cohort: u64, length: usize, refer: Option<usize> },
    Retain(usize),
    Release(usize),
    Compact(u64),
    Trim,
    Rename(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![4 => 2usize..80, 2 => 80usize..1200, 1 => 1200usize..4097];
    prop_oneof![
        10 => (0u64..2, length, proptest::option::weighted(0.3, any::<usize>()))
            .prop_map(|(cohort, length, refer)| Step::Store { cohort, length, refer }),
        3 => any::<usize>().prop_map(Step::Retain),
        9 => any::<usize>().prop_map(Step::Release),
        1 => (0u64..2).prop_map(Step::Compact),
        1 => Just(Step::Trim),
        1 => any::<usize>().prop_map(Step::Rename),
    ]
}

/// What the pool should hold.
#[derive(Default)]
struct Model {
    /// Frame, cohort, references of the test, entry referred to.
    entries: HashMap<EntryId, (Vec<u8>, u64, u64, Option<EntryId>)>,
    /// Names that the test holds references to, in no order.
    names: Vec<EntryId>,
}

impl Model {
    fn pick(&self, at: usize) -> Option<EntryId> {
        (!self.names.is_empty()).then(|| self.names[at % self.names.len()])
    }

    fn release(&mut self, id: EntryId) {
        let entry = self.entries.get_mut(&id).expect("a name of the model");
        entry.2 -= 1;
        if entry.2 == 0 {
            let reference = entry.3;
            self.entries.remove(&id);
            self.names.retain(|name| *name != id);
            if let Some(reference) = reference {
                self.release(reference);
            }
        }
    }

    fn check(&self, pool: &Pool<MemoryRegion>) -> Result<(), TestCaseError> {
        let mut buffer = Vec::new();
        for (id, (bytes, _, references, _)) in &self.entries {
            let frame = pool.read(*id, &mut buffer).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(frame, frame::parse(bytes).expect("the test's own frame"));
            prop_assert_eq!(pool.references(*id), *references);
        }
        let mut total = 0;
        for cohort in 0..2 {
            let usage = pool.cohort_usage(CohortId(cohort));
            let own = self.entries.values().filter(|entry| entry.1 == cohort);
            let bytes = own.clone().map(|entry| entry.0.len() as u64).sum::<u64>();
            prop_assert_eq!((usage.entries, usage.frame_bytes), (own.count() as u64, bytes));
            let by_codec = Codec::ALL.map(|codec| usage.by_codec.of(codec).1).iter().sum::<u64>();
            prop_assert_eq!(by_codec, bytes);
            prop_assert!(usage.resident_bytes >= bytes);
            total += bytes;
        }
        prop_assert_eq!(pool.usage().frame_bytes, total);
        Ok(())
    }
}

fn apply(step: Step, seed: u64, pool: &mut Pool<MemoryRegion>, model: &mut Model) -> Result<(), PoolError> {
    match step {
        Step::Store { cohort, length, refer } => {
            // References are one step deep and stay in the cohort.
            let reference = refer.and_then(|at| model.pick(at));
            let reference = reference.filter(|id| model.entries[id].3.is_none() && model.entries[id].1 == cohort);
            let bytes = frame_of(reference, length, seed);
            let id = pool.store(CohortId(cohort), &bytes)?;
            if let Some(reference) = reference {
                model.entries.get_mut(&reference).expect("picked from the model").2 += 1;
            }
            assert!(model.entries.insert(id, (bytes, cohort, 1, reference)).is_none(), "{id:?} given twice");
            model.names.push(id);
        }
        Step::Retain(at) => {
            if let Some(id) = model.pick(at) {
                pool.retain(id)?;
                model.entries.get_mut(&id).expect("picked from the model").2 += 1;
            }
        }
        Step::Release(at) => {
            // Only references of the test itself; those of entries go with them.
            let own = model.pick(at).filter(|id| {
                let dependents = model.entries.values().filter(|entry| entry.3 == Some(*id)).count() as u64;
                model.entries[id].2 > dependents
            });
            if let Some(id) = own {
                pool.release(id)?;
                model.release(id);
            }
        }
        Step::Compact(cohort) => drop(pool.compact(CohortId(cohort), 8)?),
        Step::Trim => drop(pool.trim()?),
        Step::Rename(at) => {
            if let Some(id) = model.pick(at).filter(|id| model.entries[id].2 == 1) {
                let name = pool.renamed(id)?;
                if name != id && !model.entries.contains_key(&name) {
                    let entry = model.entries.remove(&id).expect("picked from the model");
                    model.entries.insert(name, entry);
                    model.names.retain(|other| *other != id);
                    model.names.push(name);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn pool_does_what_a_map_does(steps in proptest::collection::vec(step(), 1..1200)) {
        let mut pool = Pool::new(MemoryRegion::new(), LIMIT);
        let mut model = Model::default();
        for (i, step) in steps.into_iter().enumerate() {
            let checks = matches!(step, Step::Compact(_) | Step::Trim);
            if matches!(step, Step::Rename(_)) && model.entries.values().any(|entry| entry.3.is_some()) {
                // A renamed reference can't be followed by a model that goes by names.
                continue;
            }
            apply(step, i as u64, &mut pool, &mut model).map_err(|error| TestCaseError::fail(error.to_string()))?;
            if checks {
                model.check(&pool)?;
            }
        }
        model.check(&pool)?;
        while let Some(id) = model.names.iter().copied().find(|id| {
            model.entries.values().all(|entry| entry.3 != Some(*id))
        }) {
            pool.release(id).map_err(|error| TestCaseError::fail(error.to_string()))?;
            model.release(id);
        }
        prop_assert_eq!(pool.usage().frame_bytes, 0);
        pool.trim().map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(pool.usage().resident_bytes, 0);
        prop_assert!((0..2).all(|cohort| pool.cohort_usage(CohortId(cohort)).resident_bytes == 0));
    }
}

#[derive(Clone, Debug)]
enum TableStep {
    Insert { table: usize, first: u64, count: u64, gap: u64 },
    RemoveRange { table: usize, first: u64, count: u64 },
    Move { table: usize, first: u64, count: u64, to: u64 },
    Share(usize),
    Drop(usize),
    Compact,
    Rename(usize),
}

fn table_step() -> impl Strategy<Value = TableStep> {
    let page = prop_oneof![0u64..200, 16_300u64..16_500, 20_000u64..20_100];
    prop_oneof![
        6 => (any::<usize>(), page.clone(), 1u64..80, 1u64..4)
            .prop_map(|(table, first, count, gap)| TableStep::Insert { table, first, count, gap }),
        4 => (any::<usize>(), page.clone(), 1u64..100)
            .prop_map(|(table, first, count)| TableStep::RemoveRange { table, first, count }),
        1 => (any::<usize>(), page, 1u64..100, 30_000u64..30_100)
            .prop_map(|(table, first, count, to)| TableStep::Move { table, first, count, to }),
        2 => any::<usize>().prop_map(TableStep::Share),
        2 => any::<usize>().prop_map(TableStep::Drop),
        1 => Just(TableStep::Compact),
        1 => any::<usize>().prop_map(TableStep::Rename),
    ]
}

type Twin = BTreeMap<u64, Vec<u8>>;

fn apply_to_table(
    step: TableStep,
    seed: u64,
    pool: &mut Pool<MemoryRegion>,
    tables: &mut Vec<(PageTable, Twin)>,
) -> Result<(), PoolError> {
    let count = tables.len();
    match step {
        TableStep::Insert { table, first, count: pages, gap } => {
            let (table, twin) = &mut tables[table % count];
            let mut new = Vec::new();
            for i in 0..pages {
                let bytes = frame_of(None, 2 + mix(seed, i) as usize % 300, seed ^ i << 20);
                new.push((PageNumber(first + i * gap), pool.store(CohortId(0), &bytes)?));
                twin.insert(first + i * gap, bytes);
            }
            table.insert(pool, &new)?;
        }
        TableStep::RemoveRange { table, first, count: pages } => {
            let (table, twin) = &mut tables[table % count];
            let removed = table.remove_range(pool, PageNumber(first)..PageNumber(first + pages))?;
            let before = twin.len();
            twin.retain(|page, _| !(first..first + pages).contains(page));
            assert_eq!(removed, before - twin.len());
        }
        TableStep::Move { table, first, count: pages, to } => {
            let (table, twin) = &mut tables[table % count];
            table.move_range(pool, PageNumber(first)..PageNumber(first + pages), PageNumber(to))?;
            twin.retain(|page, _| !(to..to + pages).contains(page));
            for page in first..first + pages {
                if let Some(bytes) = twin.remove(&page) {
                    twin.insert(page - first + to, bytes);
                }
            }
        }
        TableStep::Share(at) => {
            let (table, twin) = &tables[at % count];
            tables.push((table.share(), twin.clone()));
        }
        TableStep::Drop(at) => {
            if count > 1 {
                tables.swap_remove(at % count).0.release(pool)?;
            }
        }
        TableStep::Compact => drop(pool.compact(CohortId(0), 8)?),
        TableStep::Rename(at) => tables[at % count].0.rename(pool)?,
    }
    Ok(())
}

fn check_tables(pool: &Pool<MemoryRegion>, tables: &[(PageTable, Twin)]) -> Result<(), TestCaseError> {
    let fail = |error: PoolError| TestCaseError::fail(error.to_string());
    let mut buffer = Vec::new();
    for (table, twin) in tables {
        prop_assert_eq!(table.len(), twin.len());
        prop_assert!(table.iter().map(|(page, _)| page.0).eq(twin.keys().copied()));
        for (first, last) in [(0, 100), (150, 16_400), (16_390, 16_450), (20_050, 30_050), (5, 5), (0, u64::MAX)] {
            let range = table.range(PageNumber(first)..PageNumber(last)).map(|(page, _)| page.0);
            prop_assert!(range.eq(twin.range(first..last).map(|(page, _)| *page)));
        }
        for (page, bytes) in twin {
            let id = table.get(PageNumber(*page)).ok_or(TestCaseError::fail("page lost"))?;
            let frame = pool.read(id, &mut buffer).map_err(fail)?;
            prop_assert_eq!(frame, frame::parse(bytes).expect("the test's own frame"));
        }
    }
    // Every stored frame is named by some table, and paid for exactly once.
    let all: Vec<&PageTable> = tables.iter().map(|(table, _)| table).collect();
    let paid = shares(pool, &all).map_err(fail)?.iter().sum::<u64>();
    prop_assert_eq!(paid, pool.usage().frame_bytes);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn shared_tables_do_what_separate_maps_do(steps in proptest::collection::vec(table_step(), 1..60)) {
        let fail = |error: PoolError| TestCaseError::fail(error.to_string());
        let mut pool = Pool::new(MemoryRegion::new(), LIMIT);
        let mut tables = vec![(PageTable::new(), Twin::new())];
        for (i, step) in steps.into_iter().enumerate() {
            apply_to_table(step, (i as u64 + 1) << 32, &mut pool, &mut tables).map_err(fail)?;
        }
        check_tables(&pool, &tables)?;
        for (table, _) in tables {
            table.release(&mut pool).map_err(fail)?;
        }
        prop_assert_eq!(pool.usage().frame_bytes, 0);
    }
}

#[test]
fn churn_leaves_little_fragmentation_and_little_metadata() {
    let mut pool = Pool::new(MemoryRegion::new(), LIMIT);
    let mut held: Vec<EntryId> = Vec::new();
    // Sizes as they come from near-identical siblings: mostly small deltas, some of a kilobyte.
    let length = |i: u64| {
        if mix(9, i).is_multiple_of(8) { 700 + mix(1, i) as usize % 700 } else { 10 + mix(2, i) as usize % 90 }
    };
    for i in 0..200_000u64 {
        if held.len() > 60_000 {
            let at = mix(3, i) as usize % held.len();
            pool.release(held.swap_remove(at)).expect("held");
        }
        held.push(pool.store(CohortId(0), &frame_of(None, length(i), i)).expect("room"));
    }
    let churned = pool.usage().fragmentation();
    // A third goes at once, as when a sandbox is killed.
    held.drain(..20_000).for_each(|id| pool.release(id).expect("held"));
    while pool.compact(CohortId(0), usize::MAX).expect("memory regions don't fail").blocks != 0 {}
    pool.trim().expect("memory regions don't fail");
    let compacted = pool.usage().fragmentation();
    for id in &mut held {
        *id = pool.renamed(*id).expect("held");
    }
    let metadata = pool.metadata_bytes() as f64 / held.len() as f64;
    println!("fragmentation {churned:.4} after churn, {compacted:.4} compacted; metadata {metadata:.2} bytes an entry");
    assert!(churned < 0.05 && compacted < 0.05, "fragmentation {churned} {compacted}");
    assert!(metadata < 4.5, "{metadata} bytes of metadata an entry");
}

#[test]
fn a_full_pool_says_so_and_stays_as_it_was() {
    let mut pool = Pool::new(MemoryRegion::new(), 3 * 4096);
    let mut held = Vec::new();
    let error = loop {
        match pool.store(CohortId(0), &frame_of(None, 1000, held.len() as u64)) {
            Ok(id) => held.push(id),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PoolError::Full { used_bytes: 12288, needed_bytes: 4096, limit_bytes: 12288 }), "{error}");
    assert_eq!(held.len(), 12);
    let before = (pool.usage(), pool.cohort_usage(CohortId(0)));
    assert!(matches!(pool.store(CohortId(1), &[0x01, 0x10, 0]), Err(PoolError::Full { .. })));
    let refers = frame_of(Some(held[0]), 1000, 1);
    assert!(matches!(pool.store(CohortId(0), &refers), Err(PoolError::Full { .. })));
    assert_eq!(pool.references(held[0]), 1);
    assert_eq!((pool.usage(), pool.cohort_usage(CohortId(0))), before);
    held.into_iter().for_each(|id| pool.release(id).expect("held"));
    pool.store(CohortId(1), &[0x01, 0x10, 0]).expect("room again");
}

#[test]
fn counts_beyond_a_byte_are_exact() {
    let mut pool = Pool::new(MemoryRegion::new(), LIMIT);
    let id = pool.store(CohortId(0), &frame_of(None, 10, 1)).expect("room");
    (1..1000).for_each(|_| pool.retain(id).expect("held"));
    assert_eq!(pool.references(id), 1000);
    for left in (0..1000).rev() {
        pool.release(id).expect("held");
        assert_eq!(pool.references(id), left);
    }
    assert!(matches!(pool.release(id), Err(PoolError::NoSuchEntry(_))));
    assert!(matches!(pool.retain(id), Err(PoolError::NoSuchEntry(_))));
}

#[test]
fn names_are_distinct() {
    let mut pool = Pool::new(MemoryRegion::new(), LIMIT);
    let ids: BTreeSet<EntryId> =
        (0..50_000).map(|i| pool.store(CohortId(i % 3), &frame_of(None, 3, i)).expect("room")).collect();
    assert_eq!(ids.len(), 50_000);
}
