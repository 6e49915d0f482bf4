//! Squeezes the private pages of sixteen real sibling processes and prints what each codec did.
//!
//! `cargo run --release -p brood-pages --example codec_table -- [near|divergent] [SIBLINGS]`

use std::error::Error;
use std::time::Duration;

use brood_pages::codec::{Codec, CodecSet, EncoderSettings};
use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, MemoryRegion, PageTable, Pool};
use brood_pages::{EntryId, Lineage, PAGE_SIZE, PageKey};
use comfy_table::Table;

#[path = "../tests/it/corpus/mod.rs"]
mod corpus;
use corpus::{Corpus, Work};

/// Processor time of this thread: what else runs on the machine doesn't count.
struct Instant(Duration);

impl Instant {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Self(Duration::try_from(time).expect("processor time is not negative"))
    }

    fn elapsed(&self) -> Duration {
        Self::now().0 - self.0
    }
}

/// What squeezing a corpus took and gave.
struct Outcome {
    dropped: usize,
    /// Pages, frame bytes, encoding and decoding time by codec.
    by_codec: Vec<(usize, usize, Duration, Duration)>,
    pool_bytes: u64,
    metadata_bytes: usize,
    dictionary_bytes: usize,
    encode: Duration,
    decode: Duration,
    fragmentation: f64,
}

impl Outcome {
    fn total_bytes(&self) -> u64 {
        self.pool_bytes + self.metadata_bytes as u64 + self.dictionary_bytes as u64
    }
}

/// Squeezes all siblings and reads every page back. Timing each page (`by_page`) costs a microsecond a page.
fn squeeze(corpus: &Corpus, settings: EncoderSettings, train: bool, by_page: bool) -> Result<Outcome, Box<dyn Error>> {
    let mut pool = Pool::new(MemoryRegion::new(), u64::MAX);
    let mut cohort = Cohort::new(CohortId(1));
    let mut squeezer = Squeezer::new(settings);
    let mut reader = Reader::new();
    let mut outcome = Outcome {
        dropped: 0,
        by_codec: vec![Default::default(); Codec::ALL.len()],
        pool_bytes: 0,
        metadata_bytes: 0,
        dictionary_bytes: 0,
        encode: Duration::ZERO,
        decode: Duration::ZERO,
        fragmentation: 0.0,
    };
    let mut tables = Vec::new();
    for sibling in &corpus.siblings {
        let mut pooled: Vec<(_, EntryId)> = Vec::new();
        let mut codecs = Vec::new();
        let pages: Vec<_> = sibling.iter().map(|(page, content)| (page, content, corpus.template(*page))).collect();
        let start = Instant::now();
        for (page, content, template) in pages {
            let key = PageKey { lineage: Lineage(0), page: *page };
            let begin = by_page.then(Instant::now);
            match squeezer.squeeze(&mut cohort, &mut pool, key, content, template)? {
                Squeezed::Dropped => outcome.dropped += 1,
                Squeezed::Pooled(entry, codec) => {
                    pooled.push((*page, entry));
                    codecs.push(codec);
                    let by_codec = &mut outcome.by_codec[codec as usize];
                    by_codec.0 += 1;
                    by_codec.2 += begin.map_or(Duration::ZERO, |begin| begin.elapsed());
                    if codec != Codec::Duplicate {
                        by_codec.1 += pool.frame_bytes(entry)?;
                    }
                }
            }
        }
        cohort.settle(&mut pool)?;
        let mut table = PageTable::new();
        table.insert(&mut pool, &pooled)?;
        outcome.encode += start.elapsed();
        tables.push((table, codecs));
        if train && let Some(training) = cohort.training(&pool, &mut reader) {
            let start = Instant::now();
            let trained = training.run(settings.zstd_level);
            let gain = trained.as_ref().map(|trained| trained.gain);
            println!("dictionary trained in {:.1} s: gain {gain:?}", start.elapsed().as_secs_f64());
            if let Some(trained) = trained {
                cohort.install(&pool, &trained);
            }
        }
    }
    let mut page = [0; PAGE_SIZE];
    for (sibling, (table, codecs)) in corpus.siblings.iter().zip(&tables) {
        let mut contents = sibling.iter();
        let pages: Vec<_> = table.iter().map(|(page, entry)| (page, entry, corpus.template(page))).collect();
        let start = Instant::now();
        for ((_, entry, template), codec) in pages.iter().zip(codecs) {
            let begin = by_page.then(Instant::now);
            reader.page(&pool, cohort.dictionaries().set(), *entry, *template, &mut page)?;
            outcome.by_codec[*codec as usize].3 += begin.map_or(Duration::ZERO, |begin| begin.elapsed());
        }
        outcome.decode += start.elapsed();
        for (number, entry, template) in pages {
            reader.page(&pool, cohort.dictionaries().set(), entry, template, &mut page)?;
            let (_, content) = contents.find(|(page, _)| *page == number).ok_or("page lost")?;
            assert!(page == **content, "page {number:?} came back wrong");
        }
    }
    pool.trim()?;
    outcome.pool_bytes = pool.usage().resident_bytes;
    outcome.fragmentation = pool.usage().fragmentation();
    outcome.dictionary_bytes = cohort.dictionaries().memory_bytes();
    let tables = tables.iter().map(|(table, _)| table.heap_bytes()).sum::<usize>();
    outcome.metadata_bytes = tables + pool.metadata_bytes() + cohort.metadata_bytes();
    Ok(outcome)
}

fn rate(pages: usize, took: Duration) -> String {
    format!("{:.0}", pages as f64 / took.as_secs_f64().max(1e-9))
}

fn micros(took: Duration, pages: usize) -> String {
    format!("{:.2}", took.as_secs_f64() * 1e6 / pages.max(1) as f64)
}

fn report(name: &str, corpus: &Corpus) -> Result<(), Box<dyn Error>> {
    let pages = corpus.private_pages();
    let outcome = squeeze(corpus, EncoderSettings::default(), true, true)?;
    let untimed = squeeze(corpus, EncoderSettings::default(), false, false)?;
    let pooled = pages - outcome.dropped;
    println!(
        "\n{name}: {} siblings, {pages} private pages, {} equal to the template's",
        corpus.siblings.len(),
        outcome.dropped
    );
    let mut table = Table::new();
    table.set_header(["codec", "share %", "bytes/page", "encode µs", "decode µs"]);
    for codec in Codec::ALL {
        let (count, bytes, encode, decode) = outcome.by_codec[codec as usize];
        let share = format!("{:.1}", 100.0 * count as f64 / pooled.max(1) as f64);
        let bytes = format!("{:.0}", bytes as f64 / count.max(1) as f64);
        table.add_row([codec.name().to_string(), share, bytes, micros(encode, count), micros(decode, count)]);
    }
    println!("{table}");
    let raw = pages as u64 * PAGE_SIZE as u64;
    println!(
        "{raw} bytes to {} (pool {}, metadata {}, dictionaries {}): {:.1}:1, {:.2} % saved, {:.0} bytes a page",
        outcome.total_bytes(),
        outcome.pool_bytes,
        outcome.metadata_bytes,
        outcome.dictionary_bytes,
        raw as f64 / outcome.total_bytes() as f64,
        100.0 - 100.0 * outcome.total_bytes() as f64 / raw as f64,
        outcome.total_bytes() as f64 / pages as f64,
    );
    println!(
        "{:.2} bytes of metadata a pooled page, fragmentation {:.2} %, {} pages/s encoded, {} pages/s decoded",
        outcome.metadata_bytes as f64 / pooled as f64,
        100.0 * outcome.fragmentation,
        rate(pages, untimed.encode),
        rate(pooled, untimed.decode),
    );
    let mut table = Table::new();
    table.set_header(["without", "ratio", "pages/s encoded", "pages/s decoded"]);
    for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::Raw) {
        let settings = EncoderSettings { codecs: CodecSet::ALL.without(codec), ..Default::default() };
        let outcome = squeeze(corpus, settings, false, false)?;
        let ratio = format!("{:.1}", raw as f64 / outcome.total_bytes() as f64);
        let decoded = rate(pages - outcome.dropped, outcome.decode);
        table.add_row([codec.name().to_string(), ratio, rate(pages, outcome.encode), decoded]);
    }
    println!("{table}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let only = arguments.next();
    let siblings = arguments.next().map_or(Ok(16), |count| count.parse())?;
    for (name, work) in [("near", Work::NearIdentical), ("divergent", Work::Divergent)] {
        if only.as_deref().is_none_or(|only| only == name)
            && let Some(corpus) = corpus::gather(work, siblings)
        {
            report(name, &corpus)?;
        }
    }
    Ok(())
}
