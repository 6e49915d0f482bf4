//! What the unit tests share: adversarial pages and hostile bytes.

use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::codec::zstd_dictionary::Dictionary;
use crate::page::{PAGE_SIZE, Page, WORDS_PER_PAGE, words_mut};

fn to_page(bytes: Vec<u8>) -> Box<Page> {
    bytes.into_boxed_slice().try_into().expect("a page's bytes")
}

/// Pages of many kinds: noise, constant, few distinct words, text, pointers, mostly zero, almost constant.
pub(crate) fn any_page() -> impl Strategy<Value = Box<Page>> {
    let noise = vec(any::<u8>(), PAGE_SIZE).prop_map(to_page);
    let constant = any::<u64>().prop_map(|word| from_words(|_| word));
    let alphabet = (vec(any::<u64>(), 1..5), any::<u64>())
        .prop_map(|(alphabet, seed)| from_words(|i| alphabet[mix(seed, i as u64 / 3) as usize % alphabet.len()]));
    let text = any::<u64>().prop_map(|seed| {
        let words = ["def ", "return ", "self.", "value", "\n    ", "import ", "None", " = "];
        let bytes = (0..).flat_map(|i| words[mix(seed, i) as usize % words.len()].bytes());
        to_page(bytes.take(PAGE_SIZE).collect())
    });
    let pointers = any::<u64>().prop_map(|seed| {
        from_words(|i| match i % 4 {
            0 => mix(seed, i as u64) % 20,
            1 => 0x7fff_f7a0_0000 + (mix(seed, i as u64) % 0x10_0000) * 16,
            _ => i as u64,
        })
    });
    let sparse = vec((0..PAGE_SIZE, any::<u8>()), 0..20).prop_map(|edits| {
        let mut page = to_page(vec![0; PAGE_SIZE]);
        edits.into_iter().for_each(|(at, byte)| page[at] = byte);
        page
    });
    prop_oneof![noise, constant, alphabet, text, pointers, sparse]
}

/// A page and the same page after a few edits, moves and overwritten stretches.
pub(crate) fn edited_page() -> impl Strategy<Value = (Box<Page>, Box<Page>)> {
    let edit = (0..PAGE_SIZE, 1usize..40, any::<u8>());
    let shift = prop_oneof![4 => Just(0usize), 1 => 0..PAGE_SIZE];
    (any_page(), vec(edit, 0..60), shift).prop_map(|(old, edits, shift)| {
        let mut new = old.clone();
        for (at, length, byte) in edits {
            for (i, target) in new[at..PAGE_SIZE.min(at + length)].iter_mut().enumerate() {
                *target = target.wrapping_add(byte).wrapping_add(i as u8);
            }
        }
        new.rotate_right(shift);
        (old, new)
    })
}

/// Content that no encoder wrote, with bytes that look like tokens more often than chance has it.
pub(crate) fn hostile_content() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(255), Just(0xf8), Just(0x80), Just(7)];
    prop_oneof![vec(byte.clone(), 0..40), vec(byte, 0..5000)]
}

/// A small dictionary, trained on text.
pub(crate) fn trained_dictionary(version: u16) -> Dictionary {
    static TRAINED: OnceLock<Vec<u8>> = OnceLock::new();
    let trained = TRAINED.get_or_init(|| {
        let sample = |i| {
            let line = |j| format!("value_{} = self.{};", mix(i, j) % 50, j % 7).into_bytes();
            (0..60).flat_map(line).collect::<Vec<u8>>()
        };
        let samples: Vec<_> = (0..400).map(sample).collect();
        zstd::dict::from_samples(&samples, 4096).expect("samples that resemble each other")
    });
    Dictionary::new(version, trained, 3)
}

fn from_words(word: impl Fn(usize) -> u64) -> Box<Page> {
    let mut page = to_page(vec![0; PAGE_SIZE]);
    for i in 0..WORDS_PER_PAGE {
        words_mut(&mut page)[i] = word(i).to_le_bytes();
    }
    page
}

/// A well-spread number for `(seed, i)`.
pub(crate) fn mix(seed: u64, i: u64) -> u64 {
    let mut x = seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 17
}
