//! Byte ranges of shared pages, for who packs records into them that end anywhere.

use std::ptr;

use rustix::io::{Errno, Result};

use crate::shared_pages::{PAGE_BYTES, SharedPages};

impl SharedPages {
    /// Copies bytes out, from `offset` in bytes on.
    ///
    /// # Errors
    /// EINVAL if they aren't all inside.
    pub fn read_bytes(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let source = self.byte_pointer(offset, bytes.len())?;
        // SAFETY: `byte_pointer` checked that so many bytes lie there; `bytes` is memory of this
        // process' own that the mapping, which no reference covers, can't overlap.
        unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes in, from `offset` in bytes on.
    ///
    /// # Errors
    /// EINVAL if they don't all fit.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let target = self.byte_pointer(offset, bytes.len())?;
        // SAFETY: as in `read_bytes`, the other way round.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    fn byte_pointer(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(length).ok_or(Errno::INVAL)?;
        let first = offset / PAGE_BYTES;
        let start = self.pointer(first, end.div_ceil(PAGE_BYTES) - first)?;
        // SAFETY: `pointer` checked that the pages up to the one of the last byte lie in the
        // mapping, and the offset lies in the first of them.
        Ok(unsafe { start.add(offset % PAGE_BYTES) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_page_borders_and_stop_at_the_end() {
        let pages = SharedPages::new("bytes", 3).unwrap();
        let text: Vec<u8> = (0..5000_u32).map(|i| (i % 251) as u8).collect();
        pages.write_bytes(4000, &text).unwrap();
        let mut back = vec![0; text.len()];
        pages.read_bytes(4000, &mut back).unwrap();
        assert_eq!(back, text);
        assert_eq!(pages.read(1).unwrap()[..], text[96..96 + PAGE_BYTES]);
        let length = 3 * PAGE_BYTES as u64;
        pages.write_bytes(length - 1, b"x").unwrap();
        assert_eq!(pages.write_bytes(length - 1, b"xy"), Err(Errno::INVAL));
        assert_eq!(pages.read_bytes(length, &mut [0]), Err(Errno::INVAL));
        assert_eq!(pages.read_bytes(u64::MAX, &mut [0; 2]), Err(Errno::INVAL));
        pages.read_bytes(u64::MAX, &mut []).unwrap();
    }
}
