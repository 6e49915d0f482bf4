//! Damaged and invented frames against every decoder, for a few seconds or as long as `BROOD_FUZZ_SECONDS` says.

use std::time::{Duration, Instant};

use brood_pages::codec::{Candidates, Codec, CodecSet, Decoder, Encoder, EncoderSettings, References, frame};
use brood_pages::{EntryId, PAGE_SIZE};

use crate::cohort::{heap_page, mix};

const DEFAULT_SECONDS: u64 = 3;

/// A frame of each codec that applies to some page.
fn seeds() -> Vec<Vec<u8>> {
    let (template, sibling) = (heap_page(1), heap_page(2));
    let mut pages = vec![template.clone(), sibling.clone(), heap_page(3), Box::new([0x5a; PAGE_SIZE])];
    pages.push(Box::new(std::array::from_fn(|i| if i % 700 == 0 { 9 } else { 0 })));
    for base in [&template, &sibling] {
        let mut edited = base.clone();
        (0..40).for_each(|i| edited[mix(4, i) as usize % PAGE_SIZE] ^= 0x11);
        pages.push(edited.clone());
        edited.rotate_right(24);
        pages.push(edited);
    }
    let entries = [(EntryId::from_bits(1), &*sibling)];
    let candidates = Candidates { template: Some(&template), entries: &entries, dictionary: None };
    let mut frames = Vec::new();
    for codec in Codec::ALL {
        let codecs = CodecSet::RAW_ONLY.with(codec);
        let mut encoder = Encoder::new(EncoderSettings { codecs, good_enough_bytes: 0, ..Default::default() });
        frames.extend(pages.iter().map(|page| encoder.encode(page, candidates).frame.to_vec()));
    }
    frames
}

#[test]
fn hostile_frames_are_answered() {
    let seconds = std::env::var("BROOD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let frames = seeds();
    let (template, sibling) = (heap_page(1), heap_page(2));
    let references = References { template: Some(&template), entry: Some(&sibling), dictionary: None };
    let mut decoder = Decoder::new();
    let mut page = [0; PAGE_SIZE];
    let (mut pages, mut errors) = (0u64, 0u64);
    let mut round = 0;
    while Instant::now() < end {
        for frame in &frames {
            round += 1;
            let mut bytes = frame.clone();
            for edit in 0..mix(seed, round) % 6 {
                let random = mix(seed ^ round, edit);
                let at = (random >> 8) as usize % bytes.len().max(1);
                match random % 5 {
                    0 => bytes.truncate(at),
                    1 => bytes.extend_from_within(at..),
                    2 => drop(bytes.drain(at..bytes.len().min(at + 3))),
                    _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = (random >> 40) as u8),
                }
            }
            let result = frame::parse(&bytes).and_then(|frame| decoder.decode(frame, references, &mut page));
            *(if result.is_ok() { &mut pages } else { &mut errors }) += 1;
        }
    }
    println!("{pages} pages, {errors} errors");
    // Both kinds must have occurred, or nothing was tested.
    assert!(pages > 100 && errors > 100, "{pages} pages, {errors} errors");
}
