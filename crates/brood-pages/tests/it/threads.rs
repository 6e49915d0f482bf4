//! A pool shared by threads: squeezing, restoring and compacting side by side.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;

use brood_pages::codec::EncoderSettings;
use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, MemoryRegion, PageTable, Pool};
use brood_pages::{Lineage, PAGE_SIZE, Page, PageKey, PageNumber};

use crate::cohort::{heap_page, mix};

const ROUNDS: u64 = 40;
const PAGES: u64 = 64;

/// What a sandbox's page holds in a round: siblings resemble each other, rounds differ in some words.
fn content(sandbox: u64, page: u64, round: u64) -> Box<Page> {
    let mut content = heap_page(page % 20);
    for i in 0..mix(sandbox, page ^ round << 20) % 60 {
        content[mix(round + sandbox, i) as usize % PAGE_SIZE] ^= 0x5a;
    }
    content
}

/// One sandbox's life: squeeze everything, read everything back, restore every second page, again.
fn live(sandbox: u64, pool: &RwLock<Pool<MemoryRegion>>, cohort: &Mutex<Cohort>) {
    let template = heap_page(3);
    let (mut squeezer, mut reader) = (Squeezer::new(EncoderSettings::default()), Reader::new());
    let mut table = PageTable::new();
    for round in 0..ROUNDS {
        let mut pooled = Vec::new();
        for number in 0..PAGES {
            let page = content(sandbox, number, round);
            let key = PageKey { lineage: Lineage(0), page: PageNumber(number) };
            let mut cohort = cohort.lock().expect("no thread panicked");
            let squeezed = loop {
                let plan = {
                    let pool = pool.read().expect("no thread panicked");
                    squeezer.prepare(&mut cohort, &pool, key, &page, Some(&template)).expect("readable")
                };
                // Here others free, restore and compact.
                thread::yield_now();
                let mut pool = pool.write().expect("no thread panicked");
                if let Some(squeezed) = squeezer.commit(&mut cohort, &mut pool, plan).expect("room") {
                    break squeezed;
                }
            };
            match squeezed {
                Squeezed::Pooled(entry, _) => pooled.push((key.page, entry)),
                Squeezed::Dropped => {
                    table.remove(&mut pool.write().expect("no thread panicked"), key.page).expect("own references");
                }
            }
        }
        table.insert(&mut pool.write().expect("no thread panicked"), &pooled).expect("own references");
        cohort
            .lock()
            .expect("no thread panicked")
            .settle(&mut pool.write().expect("no thread panicked"))
            .expect("own references");
        let mut page = [0; PAGE_SIZE];
        for number in 0..PAGES {
            let Some(entry) = table.get(PageNumber(number)) else { continue };
            let cohort = cohort.lock().expect("no thread panicked");
            let pool = pool.read().expect("no thread panicked");
            reader.page(&pool, cohort.dictionaries().set(), entry, Some(&template), &mut page).expect("stored");
            assert!(page == *content(sandbox, number, round), "sandbox {sandbox}, page {number}, round {round}");
        }
        let gone = PageNumber(round % PAGES)..PageNumber(PAGES);
        table.remove_range(&mut pool.write().expect("no thread panicked"), gone).expect("own references");
    }
    table.release(&mut pool.write().expect("no thread panicked")).expect("own references");
}

#[test]
fn threads_never_see_each_others_pages() {
    let pool = RwLock::new(Pool::new(MemoryRegion::new(), 1 << 30));
    let cohorts: Vec<Mutex<Cohort>> = (0..2).map(|id| Mutex::new(Cohort::new(CohortId(id)))).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let compactor = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                {
                    let mut pool = pool.write().expect("no thread panicked");
                    for id in 0..2 {
                        pool.compact(CohortId(id), 2).expect("memory regions don't fail");
                    }
                    pool.trim().expect("memory regions don't fail");
                }
                for cohort in &cohorts {
                    let mut cohort = cohort.lock().expect("no thread panicked");
                    let mut pool = pool.write().expect("no thread panicked");
                    cohort.prune_references(&mut pool).expect("readable");
                }
                thread::yield_now();
            }
        });
        let sandboxes: Vec<_> = (0..4)
            .map(|sandbox| {
                let (pool, cohort) = (&pool, &cohorts[sandbox as usize % 2]);
                scope.spawn(move || live(sandbox, pool, cohort))
            })
            .collect();
        sandboxes.into_iter().for_each(|sandbox| sandbox.join().expect("sandbox thread"));
        done.store(true, Ordering::Release);
        compactor.join().expect("compactor thread");
    });
    let mut pool = pool.into_inner().expect("no thread panicked");
    for cohort in cohorts {
        cohort.into_inner().expect("no thread panicked").release(&mut pool).expect("own references");
    }
    assert_eq!(pool.usage().frame_bytes, 0, "references leaked");
}
