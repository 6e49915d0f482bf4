//! The pool's bytes: a memfd, so that they can outlive the process that filled it.

use std::io;
use std::ops::Range;

use brood_kernel::shared_pages::{PAGE_BYTES, SharedPages};
use brood_pages::pool::Region;

/// A fixed stretch of addresses over a memfd, whose memory exists only where something was written.
#[derive(Debug)]
pub struct PoolMemory {
    pages: SharedPages,
}

impl PoolMemory {
    /// Makes an empty one that can hold `bytes` at most. No memory is taken yet.
    ///
    /// # Errors
    /// Out of addresses or descriptors.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let pages = usize::try_from(bytes.div_ceil(PAGE_BYTES as u64)).map_err(io::Error::other)?;
        Ok(Self { pages: SharedPages::new("brood-pool", pages.max(1))? })
    }
}

impl Region for PoolMemory {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        Ok(self.pages.read_bytes(offset, bytes)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Ok(self.pages.write_bytes(offset, bytes)?)
    }

    fn discard(&mut self, range: Range<u64>) -> io::Result<()> {
        let page = |offset: u64| usize::try_from(offset / PAGE_BYTES as u64).map_err(io::Error::other);
        let (start, end) = (page(range.start)?, page(range.end)?.min(self.pages.pages()));
        if start < end {
            self.pages.discard(start, end - start)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_was_discarded_is_gone() {
        let mut memory = PoolMemory::new(1 << 20).unwrap();
        memory.write(5000, b"frame").unwrap();
        let mut back = [0; 5];
        memory.read(5000, &mut back).unwrap();
        assert_eq!(&back, b"frame");
        memory.discard(4096..8192).unwrap();
        memory.read(5000, &mut back).unwrap();
        assert_eq!(back, [0; 5]);
        memory.discard(0..1 << 30).unwrap();
        assert!(memory.write(1 << 20, b"x").is_err());
    }
}
