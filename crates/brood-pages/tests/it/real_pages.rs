//! Pages of real processes.

use brood_pages::codec::{Codec, EncoderSettings};
use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, MemoryRegion, PageTable, Pool};
use brood_pages::{Lineage, PAGE_SIZE, PageKey, ZERO_PAGE};

use crate::corpus::{self, Work};

/// Squeezes four siblings, checks every page, and returns the ratio of all bytes before and after.
fn squeeze_and_check(work: Work) -> Option<f64> {
    let corpus = corpus::gather(work, 4)?;
    let mut pool = Pool::new(MemoryRegion::new(), 1 << 32);
    let mut cohort = Cohort::new(CohortId(1));
    let mut squeezer = Squeezer::new(EncoderSettings::default());
    let mut tables = Vec::new();
    let mut duplicates = 0;
    for sibling in &corpus.siblings {
        let mut pooled = Vec::new();
        for (page, content) in sibling {
            let key = PageKey { lineage: Lineage(0), page: *page };
            let template = corpus.template(*page);
            match squeezer.squeeze(&mut cohort, &mut pool, key, content, template).expect("room") {
                Squeezed::Dropped => assert!(**content == *template.unwrap_or(&ZERO_PAGE)),
                Squeezed::Pooled(entry, codec) => {
                    pooled.push((*page, entry));
                    duplicates += usize::from(codec == Codec::Duplicate);
                }
            }
        }
        cohort.settle(&mut pool).expect("memory regions don't fail");
        let mut table = PageTable::new();
        table.insert(&mut pool, &pooled).expect("own references");
        tables.push(table);
    }
    pool.compact(CohortId(1), usize::MAX).expect("memory regions don't fail");
    pool.trim().expect("memory regions don't fail");
    let mut reader = Reader::new();
    let mut page = [0; PAGE_SIZE];
    for (sibling, table) in corpus.siblings.iter().zip(&tables) {
        for (number, content) in sibling {
            match table.get(*number) {
                None => assert!(**content == *corpus.template(*number).unwrap_or(&ZERO_PAGE)),
                Some(entry) => {
                    let template = corpus.template(*number);
                    reader.page(&pool, cohort.dictionaries().set(), entry, template, &mut page).expect("stored");
                    assert!(page == **content, "{number:?} came back wrong");
                }
            }
        }
    }
    let metadata = tables.iter().map(PageTable::heap_bytes).sum::<usize>() + pool.metadata_bytes();
    let after = pool.usage().resident_bytes + (metadata + cohort.metadata_bytes()) as u64;
    let ratio = (corpus.private_pages() * PAGE_SIZE) as f64 / after as f64;
    println!("{work:?}: {} pages, {duplicates} duplicates, {ratio:.1}:1", corpus.private_pages());
    for table in tables {
        table.release(&mut pool).expect("own references");
    }
    cohort.release(&mut pool).expect("own references");
    assert_eq!(pool.usage().frame_bytes, 0);
    Some(ratio)
}

#[test]
fn near_identical_siblings_become_small() {
    if let Some(ratio) = squeeze_and_check(Work::NearIdentical) {
        assert!(ratio > 15.0, "only {ratio}:1");
    }
}

#[test]
fn divergent_siblings_become_small() {
    if let Some(ratio) = squeeze_and_check(Work::Divergent) {
        assert!(ratio > 4.0, "only {ratio}:1");
    }
}
