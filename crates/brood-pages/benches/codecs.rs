//! Every codec alone, and whole page sets, on pages of real Python processes.
//!
//! Times are processor time of one thread. `cargo bench -p brood-pages`; `BROOD_PYTHON` names another interpreter (one with numpy, say).

use std::hint::black_box;
use std::time::Duration;

use brood_pages::codec::{Candidates, Codec, CodecSet, Decoder, Encoder, EncoderSettings, References, frame};
use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
use brood_pages::pool::{CohortId, MemoryRegion, Pool};
use brood_pages::reference::Features;
use brood_pages::{EntryId, Lineage, PAGE_SIZE, Page, PageKey, PageNumber};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

#[path = "../tests/it/corpus/mod.rs"]
mod corpus;
use corpus::{Corpus, Work};

const SIBLINGS: usize = 4;

/// Processor time of the thread: what else runs on a shared machine costs cache, but no time.
struct ThreadTime;

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("processor time is not negative")
    }

    fn end(&self, start: Duration) -> Duration {
        self.start() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Pages of a bench, to go round in.
const SAMPLE: usize = 512;

/// A page and what it is encoded against.
type Pair<'c> = (&'c Page, &'c Page);

/// Pages that have a template's page which they differ from.
fn changed_pages(corpus: &Corpus) -> Vec<Pair<'_>> {
    let pages = corpus.siblings.iter().flatten();
    let pairs = pages.filter_map(|(page, content)| Some((&**content, corpus.template(*page)?)));
    pairs.filter(|(page, template)| page != template).take(SAMPLE).collect()
}

/// Pages that the template doesn't have, each with the same page of another sibling or itself rotated.
fn fresh_pages(corpus: &Corpus) -> Vec<&Page> {
    let pages = corpus.siblings.iter().flatten();
    let fresh = pages.filter(|(page, _)| corpus.template(*page).is_none());
    fresh.map(|(_, content)| &**content).step_by(3).take(SAMPLE).collect()
}

fn settings(codec: Codec) -> EncoderSettings {
    let codecs = CodecSet::RAW_ONLY.with(codec);
    EncoderSettings { codecs, good_enough_bytes: 0, ..Default::default() }
}

/// Encodes and decodes pages by one codec; pages that it can't encode are left out.
fn bench_codec(c: &mut Criterion<ThreadTime>, codec: Codec, pairs: &[Pair<'_>]) {
    let id = EntryId::from_bits(0);
    let entry = codec.refers_to_entry();
    let mut encoder = Encoder::new(settings(codec));
    let mut frames = Vec::new();
    let mut usable: Vec<Pair<'_>> = Vec::new();
    for pair in pairs {
        let entries = [(id, pair.1)];
        let candidates = if entry {
            Candidates { entries: &entries, ..Default::default() }
        } else {
            Candidates { template: Some(pair.1), ..Default::default() }
        };
        let encoded = encoder.encode(pair.0, candidates);
        if encoded.codec == codec {
            frames.push((encoded.frame.to_vec(), pair.1));
            usable.push(*pair);
        }
    }
    if usable.is_empty() {
        eprintln!("SKIPPED: no page of this corpus suits {}", codec.name());
        return;
    }
    let bytes = frames.iter().map(|(frame, _)| frame.len()).sum::<usize>() / frames.len();
    println!("{}: {} of {} pages, {bytes} bytes a page", codec.name(), usable.len(), pairs.len());
    let mut group = c.benchmark_group(codec.name());
    group.throughput(Throughput::Elements(1));
    let mut round = usable.iter().cycle();
    group.bench_function("encode", |b| {
        b.iter(|| {
            let (page, reference) = round.next().expect("endless");
            let entries = [(id, *reference)];
            let template = (!entry).then_some(*reference);
            let candidates = Candidates { template, entries: if entry { &entries } else { &[] }, dictionary: None };
            encoder.encode(black_box(page), candidates).frame.len()
        });
    });
    let mut decoder = Decoder::new();
    let mut page = [0; PAGE_SIZE];
    let mut round = frames.iter().cycle();
    group.bench_function("decode", |b| {
        b.iter(|| {
            let (bytes, reference) = round.next().expect("endless");
            let frame = frame::parse(black_box(bytes)).expect("an encoder's frame");
            let references = References { template: Some(reference), entry: Some(reference), dictionary: None };
            decoder.decode(frame, references, &mut page).expect("an encoder's frame");
            page[0]
        });
    });
    group.finish();
}

fn codecs(c: &mut Criterion<ThreadTime>) {
    let Some(corpus) = corpus::gather(Work::Divergent, SIBLINGS) else { return };
    let changed = changed_pages(&corpus);
    let fresh: Vec<Pair<'_>> = fresh_pages(&corpus).into_iter().map(|page| (page, page)).collect();
    for codec in [Codec::SparseTemplate, Codec::ZstdTemplate, Codec::SparseEntry, Codec::ZstdEntry] {
        bench_codec(c, codec, &changed);
    }
    for codec in [Codec::RunLength, Codec::Zstd] {
        bench_codec(c, codec, &fresh);
    }
    let same = [([0x11; PAGE_SIZE], [0; PAGE_SIZE])];
    bench_codec(c, Codec::SameFilled, &[(&same[0].0, &same[0].1)]);
    let mut round = fresh.iter().cycle();
    c.bench_function("features of a page", |b| b.iter(|| Features::of(black_box(round.next().expect("endless").0))));
}

/// Squeezes all siblings into a new pool.
fn squeeze(corpus: &Corpus, squeezer: &mut Squeezer) -> (Pool<MemoryRegion>, Cohort, Vec<(PageNumber, EntryId)>) {
    let mut pool = Pool::new(MemoryRegion::new(), u64::MAX);
    let mut cohort = Cohort::new(CohortId(0));
    let mut entries = Vec::new();
    for sibling in &corpus.siblings {
        for (page, content) in sibling {
            let key = PageKey { lineage: Lineage(0), page: *page };
            let squeezed = squeezer.squeeze(&mut cohort, &mut pool, key, content, corpus.template(*page));
            if let Squeezed::Pooled(entry, _) = squeezed.expect("no limit") {
                entries.push((*page, entry));
            }
        }
        cohort.settle(&mut pool).expect("memory regions don't fail");
    }
    (pool, cohort, entries)
}

fn page_sets(c: &mut Criterion<ThreadTime>) {
    for (name, work) in [("near-identical siblings", Work::NearIdentical), ("divergent siblings", Work::Divergent)] {
        let Some(corpus) = corpus::gather(work, SIBLINGS) else { return };
        let mut squeezer = Squeezer::new(EncoderSettings::default());
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(corpus.private_pages() as u64)).sample_size(10);
        group.bench_function("squeeze", |b| b.iter(|| squeeze(&corpus, &mut squeezer).2.len()));
        let (pool, cohort, entries) = squeeze(&corpus, &mut squeezer);
        let mut reader = Reader::new();
        let mut page = [0; PAGE_SIZE];
        group.throughput(Throughput::Elements(entries.len() as u64));
        group.bench_function("restore", |b| {
            b.iter(|| {
                for (number, entry) in &entries {
                    let template = corpus.template(*number);
                    reader.page(&pool, cohort.dictionaries().set(), *entry, template, &mut page).expect("stored");
                }
            });
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime).sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = codecs, page_sets
}
criterion_main!(benches);
