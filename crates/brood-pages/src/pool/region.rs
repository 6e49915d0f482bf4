//! The byte store below the pool.

use std::io;
use std::ops::Range;

/// A growable range of bytes, such as a memfd. The pool reads only what it wrote and did not
/// discard.
pub trait Region {
    /// Copies the bytes at `offset` out.
    ///
    /// # Errors
    /// Those of the store.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Copies bytes in at `offset`, growing the store if they lie behind its end.
    ///
    /// # Errors
    /// Those of the store.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Gives the physical memory of `range` (whole pages) back to the host, as punching a hole does. What the range
    /// reads afterwards doesn't matter. It may reach beyond the last byte that was written.
    ///
    /// # Errors
    /// Those of the store.
    fn discard(&mut self, range: Range<u64>) -> io::Result<()>;
}

/// A region on the heap: for tests, benchmarks and tools that work on pages without processes.
#[derive(Debug, Default)]
pub struct MemoryRegion {
    bytes: Vec<u8>,
}

impl MemoryRegion {
    /// An empty region.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

fn as_range(offset: u64, length: usize) -> io::Result<Range<usize>> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
    Ok(start..end)
}

impl Region for MemoryRegion {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = as_range(offset, bytes.len())?;
        bytes.copy_from_slice(self.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = as_range(offset, bytes.len())?;
        if self.bytes.len() < range.end {
            self.bytes.resize(range.end, 0);
        }
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn discard(&mut self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.bytes.len() as u64);
        let length = usize::try_from(end.saturating_sub(range.start)).map_err(io::Error::other)?;
        // Not zeros: whoever reads discarded bytes should notice.
        if let Some(bytes) = self.bytes.get_mut(as_range(range.start, length)?) {
            bytes.fill(0xdd);
        }
        Ok(())
    }
}
