//! One 8-byte word repeated over the whole page: zeros, poison, `memset`, arrays of one value.
//!
//! Content: the word, little endian, without its high zero bytes but at least one byte. A page of zeros is one byte.

use super::{Codec, DecodeError};
use crate::page::{Page, words, words_mut};

/// Appends the word if the page is one word repeated, else `None`. A page that isn't costs a few nanoseconds.
pub fn encode(page: &Page, out: &mut Vec<u8>) -> Option<()> {
    let words = words(page);
    let first = words[0];
    // Two compares settle nearly every page; only then is the whole page read.
    if words[words.len() / 2] != first || words.iter().any(|word| *word != first) {
        return None;
    }
    let zero_bytes = u64::from_le_bytes(first).leading_zeros() as usize / 8;
    out.extend_from_slice(&first[..(8 - zero_bytes).max(1)]);
    Some(())
}

/// Fills the page.
///
/// # Errors
/// [`DecodeError::Malformed`] unless `content` is one to eight bytes.
pub fn decode(content: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let mut word = [0; 8];
    if content.is_empty() || content.len() > word.len() {
        return Err(DecodeError::malformed(Codec::SameFilled));
    }
    word[..content.len()].copy_from_slice(content);
    words_mut(page).fill(word);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;
    use proptest::prelude::*;

    #[test]
    fn one_changed_byte_anywhere_is_noticed() {
        let mut page = [0xab; PAGE_SIZE];
        for at in 0..PAGE_SIZE {
            page[at] ^= 1;
            assert_eq!(encode(&page, &mut Vec::new()), None, "byte {at}");
            page[at] ^= 1;
        }
        assert_eq!(encode(&page, &mut Vec::new()), Some(()));
    }

    proptest! {
        #[test]
        fn identity(value: u64, bytes in 1u32..=8) {
            let word = value >> (64 - 8 * bytes);
            let mut page = [0; PAGE_SIZE];
            words_mut(&mut page).fill(word.to_le_bytes());
            let mut content = Vec::new();
            prop_assert_eq!(encode(&page, &mut content), Some(()));
            prop_assert!(content.len() <= bytes as usize);
            let mut back = [1; PAGE_SIZE];
            prop_assert_eq!(decode(&content, &mut back), Ok(()));
            prop_assert_eq!(back, page);
        }
    }
}
