//! Any bytes as a frame: every decoder must answer with a page or an error.
//!
//! `cargo fuzz run -s none decode` in `crates/brood-pages`.

#![no_main]

use brood_pages::PAGE_SIZE;
use brood_pages::codec::{Decoder, References, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(frame) = frame::parse(bytes) else { return };
    let template: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 8) as u8);
    let entry: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i % 251) as u8);
    let references = References { template: Some(&template), entry: Some(&entry), dictionary: None };
    let mut page = [0; PAGE_SIZE];
    let mut decoder = Decoder::new();
    let first = decoder.decode(frame, references, &mut page);
    // What it was used for before must not matter.
    let mut again = [1; PAGE_SIZE];
    assert_eq!(first, decoder.decode(frame, references, &mut again));
    assert!(first.is_err() || page == again, "the same frame gave two pages");
});
