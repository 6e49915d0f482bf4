//! The page itself: for noise, and where everything else is switched off.

use super::{Codec, DecodeError};
use crate::page::Page;

/// Appends the page.
pub fn encode(page: &Page, out: &mut Vec<u8>) {
    out.extend_from_slice(page);
}

/// Reads the page.
///
/// # Errors
/// [`DecodeError::Malformed`] unless `content` is exactly one page.
pub fn decode(content: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    *page = *<&Page>::try_from(content).map_err(|_| DecodeError::malformed(Codec::Raw))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;

    #[test]
    fn only_a_whole_page_decodes() {
        let page: Page = std::array::from_fn(|i| i as u8);
        let mut bytes = Vec::new();
        encode(&page, &mut bytes);
        let mut back = [0; PAGE_SIZE];
        assert_eq!(decode(&bytes, &mut back), Ok(()));
        assert_eq!(back, page);
        bytes.pop();
        assert_eq!(decode(&bytes, &mut back), Err(DecodeError::malformed(Codec::Raw)));
    }
}
