//! The 8-byte words that differ from a reference page: the codec that carries the engine. It decodes in about a
//! tenth of a microsecond, and most pages of siblings differ in a few reference counts and pointers only.
//!
//! Content: one token for each changed word, in order. Its high five bits are the count of unchanged words before it,
//! its low three bits one less than the count of low bytes that are replaced; those bytes follow. Counters
//! and pointers change in their low bytes, so a changed reference count takes two bytes in all. A gap of 31
//! means that bytes follow whose sum is added to it, up to and including the first that is not 255.
//!
//! Lines of 64 bytes are compared first; that compiles to vector instructions on every target, and the bytes that
//! come out don't depend on them.

use super::{Codec, DecodeError};
use crate::page::{Page, words_mut};

/// A gap that is continued in further bytes.
const LONG_GAP: usize = 31;

/// Appends what changed, or `None` (with `out` in an unspecified, longer state) once more than `limit_bytes` would be
/// appended. Equal pages append nothing.
pub fn encode(page: &Page, reference: &Page, limit_bytes: usize, out: &mut Vec<u8>) -> Option<()> {
    let limit = out.len() + limit_bytes;
    let mut next = 0;
    let lines = page.as_chunks::<64>().0.iter();
    for (line, (new, old)) in lines.zip(reference.as_chunks::<64>().0).enumerate() {
        if new == old {
            continue;
        }
        let pairs = new.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0);
        for (word, (new, old)) in pairs.enumerate() {
            let change = u64::from_le_bytes(*new) ^ u64::from_le_bytes(*old);
            if change != 0 {
                let at = line * 8 + word;
                push_word(at - next, *new, change, out);
                next = at + 1;
            }
        }
        if out.len() > limit {
            return None;
        }
    }
    Some(())
}

#[inline]
fn push_word(gap: usize, word: [u8; 8], change: u64, out: &mut Vec<u8>) {
    let bytes = 8 - change.leading_zeros() as usize / 8;
    out.push((gap.min(LONG_GAP) << 3 | (bytes - 1)) as u8);
    if gap >= LONG_GAP {
        let mut more = gap - LONG_GAP;
        while more >= 255 {
            out.push(255);
            more -= 255;
        }
        out.push(more as u8);
    }
    out.extend_from_slice(&word[..bytes]);
}

/// Copies the reference and patches it.
///
/// # Errors
/// [`DecodeError::Malformed`] if a token leads beyond the page or ends early; `page` is then unspecified.
pub fn decode(content: &[u8], reference: &Page, page: &mut Page) -> Result<(), DecodeError> {
    *page = *reference;
    patch(content, words_mut(page)).ok_or(DecodeError::malformed(Codec::SparseEntry))
}

fn patch(mut content: &[u8], page: &mut [[u8; 8]]) -> Option<()> {
    let mut at = 0;
    while let Some((&token, rest)) = content.split_first() {
        content = rest;
        let mut gap = usize::from(token >> 3);
        if gap == LONG_GAP {
            gap += long_gap(&mut content)?;
        }
        at += gap;
        let bytes = usize::from(token & 7) + 1;
        // Eight bytes at once wherever that many are left, which is all but the last few tokens.
        let new = match content.first_chunk::<8>() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => short_word(content.get(..bytes)?),
        };
        let word = page.get_mut(at)?;
        let keep = u64::MAX.checked_shl(bytes as u32 * 8).unwrap_or(0);
        *word = (u64::from_le_bytes(*word) & keep | new & !keep).to_le_bytes();
        content = &content[bytes..];
        at += 1;
    }
    Some(())
}

fn short_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn long_gap(content: &mut &[u8]) -> Option<usize> {
    let mut gap = 0;
    loop {
        let (&byte, rest) = content.split_first()?;
        *content = rest;
        gap += usize::from(byte);
        if byte != 255 {
            return Some(gap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use crate::testing::{any_page, edited_page, hostile_content};
    use proptest::prelude::*;

    #[test]
    fn a_changed_counter_takes_two_bytes() {
        let old = [0x55; PAGE_SIZE];
        let mut new = old;
        new[8 * 20] = 1;
        let mut content = Vec::new();
        assert_eq!(encode(&new, &old, PAGE_SIZE, &mut content), Some(()));
        assert_eq!(content, [20 << 3, 1]);
    }

    #[test]
    fn every_single_word_can_change() {
        let old = [0; PAGE_SIZE];
        for at in 0..512 {
            let mut new = old;
            new[at * 8 + 7] = 9;
            let mut content = Vec::new();
            assert_eq!(encode(&new, &old, PAGE_SIZE, &mut content), Some(()));
            let mut back = [1; PAGE_SIZE];
            assert_eq!(decode(&content, &old, &mut back), Ok(()));
            assert_eq!(back, new, "word {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        #[test]
        fn identity(reference in any_page(), page in any_page()) {
            check(&page, &reference)?;
        }

        #[test]
        fn identity_of_edited_pages((reference, page) in edited_page()) {
            check(&page, &reference)?;
        }

        #[test]
        fn hostile_content_is_an_answer_or_an_error(content in hostile_content()) {
            let mut page = [0; PAGE_SIZE];
            if let Err(error) = decode(&content, &[3; PAGE_SIZE], &mut page) {
                prop_assert_eq!(error, DecodeError::malformed(Codec::SparseEntry));
            }
        }
    }

    fn check(page: &Page, reference: &Page) -> Result<(), TestCaseError> {
        let mut content = Vec::new();
        prop_assert_eq!(encode(page, reference, 2 * PAGE_SIZE, &mut content), Some(()));
        let mut back = [1; PAGE_SIZE];
        prop_assert_eq!(decode(&content, reference, &mut back), Ok(()));
        prop_assert_eq!(&back[..], &page[..]);
        let fits = encode(page, reference, content.len(), &mut Vec::new());
        prop_assert_eq!(fits, Some(()));
        if let Some(below) = content.len().checked_sub(1) {
            prop_assert_eq!(encode(page, reference, below, &mut Vec::new()), None);
        }
        Ok(())
    }
}
