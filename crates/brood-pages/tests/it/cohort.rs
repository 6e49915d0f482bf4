//! Cohorts against a naive twin that keeps whole pages.

use std::collections::BTreeMap;

use brood_pages::codec::{Codec, CodecSet, EncoderSettings};
use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, MemoryRegion, PageTable, Pool, PoolError};
use brood_pages::{Lineage, PAGE_SIZE, Page, PageKey, PageNumber, ZERO_PAGE};
use proptest::prelude::*;

const PAGES: u64 = 24;
const TEMPLATE_PAGES: u64 = 16;

/// A well-spread number for `(seed, i)`.
pub(crate) fn mix(seed: u64, i: u64) -> u64 {
    let mut x = seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 17
}

/// Content like a heap's: small counters, pointers, text.
pub(crate) fn heap_page(seed: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let i = i as u64;
        let value = match mix(seed, i / 6) % 4 {
            0 => mix(seed, i) % 9,
            1 => 0x7fff_f000_0000 + mix(7, i % 50) * 16,
            2 => u64::from_le_bytes(*b"self.val") ^ ((mix(seed, i) % 4) << 56),
            _ => 0,
        };
        *word = value.to_le_bytes();
    }
    page
}

fn template_page(page: PageNumber) -> Option<Box<Page>> {
    (page.0 < TEMPLATE_PAGES).then(|| heap_page(page.0))
}

#[derive(Clone, Debug)]
enum Step {
    /// Some pages of a sandbox change: `kind` says how.
    Write {
        sandbox: usize,
        seed: u64,
        kind: u8,
    },
    Squeeze(usize),
    RestoreSome {
        sandbox: usize,
        seed: u64,
    },
    /// A new sandbox with the pages of another one, squeezed or not.
    Fork(usize),
    Kill(usize),
    Prune,
    Compact,
    Rename(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<usize>(), any::<u64>(), any::<u8>())
            .prop_map(|(sandbox, seed, kind)| Step::Write { sandbox, seed, kind }),
        6 => any::<usize>().prop_map(Step::Squeeze),
        3 => (any::<usize>(), any::<u64>()).prop_map(|(sandbox, seed)| Step::RestoreSome { sandbox, seed }),
        2 => any::<usize>().prop_map(Step::Fork),
        1 => any::<usize>().prop_map(Step::Kill),
        1 => Just(Step::Prune),
        1 => Just(Step::Compact),
        1 => any::<usize>().prop_map(Step::Rename),
    ]
}

/// What a sandbox's memory should be, which of its pages are present, and what is pooled.
struct Sandbox {
    content: BTreeMap<u64, Box<Page>>,
    present: BTreeMap<u64, Box<Page>>,
    table: PageTable,
}

struct World {
    pool: Pool<MemoryRegion>,
    cohort: Cohort,
    squeezer: Squeezer,
    reader: Reader,
    sandboxes: Vec<Sandbox>,
}

impl World {
    fn new(codecs: CodecSet) -> Self {
        Self {
            pool: Pool::new(MemoryRegion::new(), 1 << 30),
            cohort: Cohort::new(CohortId(3)),
            squeezer: Squeezer::new(EncoderSettings { codecs, ..Default::default() }),
            reader: Reader::new(),
            sandboxes: vec![Sandbox { content: BTreeMap::new(), present: BTreeMap::new(), table: PageTable::new() }],
        }
    }

    fn write(&mut self, at: usize, seed: u64, kind: u8) -> Result<(), PoolError> {
        for i in 0..mix(seed, 0) % 8 {
            let number = mix(seed, i + 1) % PAGES;
            // Writing makes a page present, as a fault does.
            let mut page = self.fault(at, number)?;
            match kind % 4 {
                0 => page[(mix(seed, i) % 4096) as usize] ^= 1,
                1 => page.rotate_right(64),
                2 => *page = *heap_page(seed % 5 + 100),
                _ => page[..2048].copy_from_slice(&heap_page(seed ^ i)[..2048]),
            }
            let sandbox = &mut self.sandboxes[at];
            sandbox.content.insert(number, page.clone());
            sandbox.present.insert(number, page);
        }
        Ok(())
    }

    /// Makes a page present.
    fn fault(&mut self, at: usize, number: u64) -> Result<Box<Page>, PoolError> {
        let sandbox = &mut self.sandboxes[at];
        if let Some(page) = sandbox.present.get(&number) {
            return Ok(page.clone());
        }
        let template = template_page(PageNumber(number));
        let mut page = template.clone().unwrap_or(Box::new(ZERO_PAGE));
        if let Some(entry) = sandbox.table.get(PageNumber(number)) {
            let dictionaries = self.cohort.dictionaries().set();
            self.reader.page(&self.pool, dictionaries, entry, template.as_deref(), &mut page)?;
            sandbox.table.remove(&mut self.pool, PageNumber(number))?;
        }
        sandbox.present.insert(number, page.clone());
        Ok(page)
    }

    fn squeeze(&mut self, at: usize) -> Result<(), PoolError> {
        let sandbox = &mut self.sandboxes[at];
        let mut pooled = Vec::new();
        for (number, page) in std::mem::take(&mut sandbox.present) {
            let key = PageKey { lineage: Lineage(at as u32 % 2), page: PageNumber(number) };
            let template = template_page(key.page);
            match self.squeezer.squeeze(&mut self.cohort, &mut self.pool, key, &page, template.as_deref())? {
                Squeezed::Dropped => {}
                Squeezed::Pooled(entry, _) => pooled.push((key.page, entry)),
            }
        }
        sandbox.table.insert(&mut self.pool, &pooled)?;
        self.cohort.settle(&mut self.pool)
    }

    fn apply(&mut self, step: Step) -> Result<(), PoolError> {
        let count = self.sandboxes.len();
        match step {
            Step::Write { sandbox, seed, kind } => self.write(sandbox % count, seed, kind)?,
            Step::Squeeze(at) => self.squeeze(at % count)?,
            Step::RestoreSome { sandbox, seed } => {
                for i in 0..8 {
                    self.fault(sandbox % count, mix(seed, i) % PAGES)?;
                }
            }
            Step::Fork(at) => {
                let from = &self.sandboxes[at % count];
                let fork =
                    Sandbox { content: from.content.clone(), present: from.present.clone(), table: from.table.share() };
                self.sandboxes.push(fork);
            }
            Step::Kill(at) => {
                if count > 1 {
                    self.sandboxes.swap_remove(at % count).table.release(&mut self.pool)?;
                }
            }
            Step::Prune => drop(self.cohort.prune_references(&mut self.pool)?),
            Step::Compact => {
                self.pool.compact(CohortId(3), 4)?;
                self.pool.trim()?;
            }
            Step::Rename(at) => self.sandboxes[at % count].table.rename(&mut self.pool)?,
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        for at in 0..self.sandboxes.len() {
            for number in 0..PAGES {
                let page = self.fault(at, number).map_err(|error| TestCaseError::fail(error.to_string()))?;
                let untouched = template_page(PageNumber(number)).unwrap_or(Box::new(ZERO_PAGE));
                let expected = self.sandboxes[at].content.get(&number).unwrap_or(&untouched);
                prop_assert!(page == *expected, "page {} of sandbox {} came back wrong", number, at);
            }
        }
        Ok(())
    }

    fn close(mut self) -> Result<u64, PoolError> {
        for sandbox in self.sandboxes {
            sandbox.table.release(&mut self.pool)?;
        }
        self.cohort.release(&mut self.pool)?;
        Ok(self.pool.usage().frame_bytes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn no_page_is_ever_lost_or_stale(
        steps in proptest::collection::vec(step(), 1..80),
        off in proptest::option::of(0usize..Codec::ALL.len()),
    ) {
        let codecs = off.map_or(CodecSet::ALL, |at| CodecSet::ALL.without(Codec::ALL[at]));
        let mut world = World::new(codecs);
        for step in steps {
            world.apply(step).map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
        world.check()?;
        let left = world.close().map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(left, 0, "references leaked");
    }
}

#[test]
fn a_dictionary_that_pays_is_used_and_old_versions_live_as_long_as_needed() {
    let mut pool = Pool::new(MemoryRegion::new(), 1 << 30);
    let mut cohort = Cohort::new(CohortId(1));
    // Without references, so that every page is a fresh one.
    let codecs = CodecSet::RAW_ONLY.with(Codec::Zstd).with(Codec::ZstdDictionary);
    let mut squeezer = Squeezer::new(EncoderSettings { codecs, ..Default::default() });
    let mut reader = Reader::new();
    // Pages that share phrases with all others, but each only a few of them.
    let fresh = |i: u64| {
        let mut text = Vec::new();
        while text.len() < PAGE_SIZE {
            let phrase = mix(i, text.len() as u64) % 400;
            for j in 0..6 {
                text.extend(mix(phrase, j).to_le_bytes());
            }
            text.extend(mix(i, text.len() as u64).to_le_bytes());
        }
        Box::new(*text.first_chunk::<PAGE_SIZE>().expect("long enough"))
    };
    let mut kept: Vec<(u64, _)> = Vec::new();
    let store = |range: std::ops::Range<u64>, pool: &mut Pool<_>, cohort: &mut Cohort, squeezer: &mut Squeezer| {
        let pages = range.map(|i| {
            let key = PageKey { lineage: Lineage(0), page: PageNumber(i) };
            match squeezer.squeeze(cohort, pool, key, &fresh(i), None).expect("room") {
                Squeezed::Pooled(entry, codec) => (i, entry, codec),
                Squeezed::Dropped => panic!("page {i} is not zero"),
            }
        });
        pages.collect::<Vec<_>>()
    };
    for (i, entry, codec) in store(0..12_000, &mut pool, &mut cohort, &mut squeezer) {
        assert_ne!(codec, Codec::ZstdDictionary);
        kept.push((i, entry));
    }
    let training = cohort.training(&pool, &mut reader).expect("enough pages");
    let trained = training.run(3).expect("pages that share phrases gain");
    assert!(trained.gain > 0.2, "gain {}", trained.gain);
    cohort.install(&pool, &trained);
    let limit = pool.usage().frame_bytes / 50;
    assert!((cohort.dictionaries().memory_bytes() as u64) < limit, "dictionaries take more than 2 %");
    // A plan made with a version that is replaced before anything was stored with it must not be carried out.
    let late = PageKey { lineage: Lineage(0), page: PageNumber(1 << 20) };
    let plan = squeezer.prepare(&mut cohort, &pool, late, &fresh(12_345), None).expect("readable");
    cohort.install(&pool, &trained);
    assert_eq!(squeezer.commit(&mut cohort, &mut pool, plan).expect("no error"), None);
    let version = cohort.dictionaries().current().expect("just installed").version();
    let second = store(12_000..12_100, &mut pool, &mut cohort, &mut squeezer);
    assert!(second.iter().filter(|(_, _, codec)| *codec == Codec::ZstdDictionary).count() > 80);
    assert!(pool.dictionary_uses(CohortId(1), version) > 80);
    cohort.install(&pool, &trained);
    assert_ne!(cohort.dictionaries().current().expect("installed").version(), version);
    assert!(cohort.dictionaries().set().get(version).is_some(), "entries still need it");
    kept.extend(second.into_iter().map(|(i, entry, _)| (i, entry)));
    let mut page = [0; PAGE_SIZE];
    for (i, entry) in kept {
        reader.page(&pool, cohort.dictionaries().set(), entry, None, &mut page).expect("stored");
        assert!(page == *fresh(i));
        pool.release(entry).expect("held");
    }
    assert_eq!(cohort.retire_dictionaries(&pool), 1);
    assert!(cohort.dictionaries().set().get(version).is_none());
}

#[test]
fn a_plan_whose_reference_was_freed_is_not_carried_out() {
    let mut pool = Pool::new(MemoryRegion::new(), 1 << 30);
    let mut cohort = Cohort::new(CohortId(1));
    let mut squeezer = Squeezer::new(EncoderSettings::default());
    let key = |page| PageKey { lineage: Lineage(0), page: PageNumber(page) };
    let page = heap_page(1);
    let Squeezed::Pooled(entry, _) = squeezer.squeeze(&mut cohort, &mut pool, key(1), &page, None).expect("room")
    else {
        panic!("not a page of zeros");
    };
    // The same content under another key: to be shared, found by its hash.
    let plan = squeezer.prepare(&mut cohort, &pool, key(2), &page, None).expect("readable");
    pool.release(entry).expect("held");
    cohort.prune_references(&mut pool).expect("readable");
    assert_eq!(pool.usage().frame_bytes, 0, "nobody holds the entry");
    // Its name and place are taken by something else.
    let other = heap_page(2);
    squeezer.squeeze(&mut Cohort::new(CohortId(1)), &mut pool, key(3), &other, None).expect("room");
    assert_eq!(squeezer.commit(&mut cohort, &mut pool, plan).expect("no error"), None);
    let again = squeezer.squeeze(&mut cohort, &mut pool, key(2), &page, None).expect("room");
    let Squeezed::Pooled(entry, _) = again else { panic!("not a page of zeros") };
    let mut back = [0; PAGE_SIZE];
    Reader::new().page(&pool, cohort.dictionaries().set(), entry, None, &mut back).expect("stored");
    assert!(back == *page);
}
