//! Runs of repeated 8-byte words: pages that are mostly zeros or few values, at a decoding cost far below Zstandard.
//!
//! Content: tokens until the page is full. A token byte `t` below 128 announces `t + 1` literal words, given in full.
//! From 128 on it announces `t - 127` repetitions of one word; the word follows as one byte that counts its
//! low bytes (0 to 8), then those bytes. Runs beyond 128 words take several tokens.

use super::{Codec, DecodeError};
use crate::page::{Page, WORDS_PER_PAGE, words, words_mut};

/// Words that one token covers at most.
const MAX_TOKEN_WORDS: usize = 128;

/// Appends the runs, or `None` (with `out` in an unspecified, longer state) once more than `limit_bytes` would be
/// appended.
pub fn encode(page: &Page, limit_bytes: usize, out: &mut Vec<u8>) -> Option<()> {
    let words = words(page);
    let start = out.len();
    let mut at = 0;
    while at < WORDS_PER_PAGE {
        let run = run_length(words, at);
        if run > 1 {
            push_run(words[at], run, out);
            at += run;
        } else {
            let literals = literal_length(words, at);
            out.push(literals as u8 - 1);
            out.extend_from_slice(words[at..at + literals].as_flattened());
            at += literals;
        }
        if out.len() - start > limit_bytes {
            return None;
        }
    }
    Some(())
}

/// How often the word at `at` stands there in a row, up to one token's worth.
fn run_length(words: &[[u8; 8]], at: usize) -> usize {
    let window = &words[at..words.len().min(at + MAX_TOKEN_WORDS)];
    window.iter().take_while(|word| **word == words[at]).count()
}

/// How many words from `at` on are followed by a different one, up to one token's worth.
fn literal_length(words: &[[u8; 8]], at: usize) -> usize {
    let end = words.len().min(at + MAX_TOKEN_WORDS);
    let repeat = (at..end).find(|i| words.get(i + 1) == Some(&words[*i]));
    (repeat.unwrap_or(end) - at).max(1)
}

fn push_run(word: [u8; 8], run: usize, out: &mut Vec<u8>) {
    let bytes = 8 - u64::from_le_bytes(word).leading_zeros() as usize / 8;
    out.push((run - 1) as u8 | 0x80);
    out.push(bytes as u8);
    out.extend_from_slice(&word[..bytes]);
}

/// Rebuilds the page.
///
/// # Errors
/// [`DecodeError::Malformed`] if the runs end early, go beyond the page, or leave bytes over.
pub fn decode(content: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    decode_runs(content, words_mut(page)).ok_or(DecodeError::malformed(Codec::RunLength))
}

fn decode_runs(mut content: &[u8], mut page: &mut [[u8; 8]]) -> Option<()> {
    while !page.is_empty() {
        let (&token, rest) = content.split_first()?;
        let count = usize::from(token & 0x7f) + 1;
        let (target, page_rest) = page.split_at_mut_checked(count)?;
        page = page_rest;
        if token & 0x80 == 0 {
            let (literals, rest) = rest.split_at_checked(count * 8)?;
            target.as_flattened_mut().copy_from_slice(literals);
            content = rest;
        } else {
            let (&bytes, rest) = rest.split_first()?;
            let (low, rest) = rest.split_at_checked(usize::from(bytes))?;
            let mut word = [0; 8];
            word.get_mut(..low.len())?.copy_from_slice(low);
            target.fill(word);
            content = rest;
        }
    }
    content.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::testing::{any_page, hostile_content};
    use proptest::prelude::*;

    #[test]
    fn sparse_pages_become_small() {
        let mut page = [0; PAGE_SIZE];
        page[1000] = 7;
        let mut content = Vec::new();
        assert_eq!(encode(&page, PAGE_SIZE, &mut content), Some(()));
        assert!(content.len() < 24, "{} bytes", content.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        #[test]
        fn identity(page in any_page()) {
            let mut content = Vec::new();
            prop_assert_eq!(encode(&page, 2 * PAGE_SIZE, &mut content), Some(()));
            let mut back = [1; PAGE_SIZE];
            prop_assert_eq!(decode(&content, &mut back), Ok(()));
            prop_assert_eq!(&back[..], &page[..]);
        }

        #[test]
        fn limit_is_kept(page in any_page(), limit in 0usize..5000) {
            let mut content = Vec::new();
            if encode(&page, limit, &mut content).is_some() {
                prop_assert!(content.len() <= limit);
            }
        }

        #[test]
        fn hostile_content_is_an_answer_or_an_error(content in hostile_content()) {
            let mut page = [0; PAGE_SIZE];
            if let Err(error) = decode(&content, &mut page) {
                prop_assert_eq!(error, DecodeError::malformed(Codec::RunLength));
            }
        }
    }
}
