//! A memfd of whole pages, mapped here: raw page contents that processes may share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Bytes of a page on the only supported architecture.
pub const PAGE_BYTES: usize = 4096;

/// A fixed number of pages in a memfd and their mapping in this process.
///
/// The contents may change behind our back (other processes can map the file), so they are
/// only ever copied in and out.
#[derive(Debug)]
pub struct SharedPages {
    file: OwnedFd,
    base: NonNull<u8>,
    pages: usize,
}

// SAFETY: the struct owns the mapping; all access is by raw copies, whose races are those of
// any shared memory and produce arbitrary bytes, never undefined references.
unsafe impl Send for SharedPages {}
// SAFETY: as for Send; no method hands out a reference into the mapping.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Creates and maps `pages` empty pages. Memory is used only for those that are touched.
    ///
    /// # Errors
    /// ENOMEM or EMFILE if the kernel can't provide them; EINVAL for zero pages.
    pub fn new(name: &str, pages: usize) -> Result<Self> {
        let length = pages.checked_mul(PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
        ftruncate(&file, length as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let address = unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)? };
        let base = NonNull::new(address.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { file, base, pages })
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Address of a page in this process, as a number for the kernel.
    ///
    /// # Errors
    /// EINVAL if there is no such page.
    pub fn address(&self, page: usize) -> Result<u64> {
        Ok(self.pointer(page, 1)?.expose_provenance() as u64)
    }

    /// Copies a page's content out.
    ///
    /// # Errors
    /// EINVAL if there is no such page.
    pub fn read(&self, page: usize) -> Result<[u8; PAGE_BYTES]> {
        let mut content = [0_u8; PAGE_BYTES];
        self.read_into(page, &mut content)?;
        Ok(content)
    }

    /// Copies a page's content to a buffer.
    ///
    /// # Errors
    /// EINVAL if there is no such page.
    pub fn read_into(&self, page: usize, into: &mut [u8; PAGE_BYTES]) -> Result<()> {
        let source = self.pointer(page, 1)?;
        // SAFETY: `pointer` checked that a whole page lies there; `into` is as large and can't
        // overlap the mapping, to which nothing ever refers.
        unsafe { ptr::copy_nonoverlapping(source, into.as_mut_ptr(), PAGE_BYTES) };
        Ok(())
    }

    /// Replaces a page's content.
    ///
    /// # Errors
    /// EINVAL if there is no such page.
    pub fn write(&self, page: usize, content: &[u8; PAGE_BYTES]) -> Result<()> {
        let target = self.pointer(page, 1)?;
        // SAFETY: `pointer` checked that a whole page lies there; `content` is as large and
        // doesn't overlap the mapping.
        unsafe { ptr::copy_nonoverlapping(content.as_ptr(), target, PAGE_BYTES) };
        Ok(())
    }

    /// Allocates the memory of pages ahead of their use, without changing content.
    ///
    /// # Errors
    /// ENOMEM if there is no memory, EINVAL if they aren't all inside.
    pub fn populate(&self, page: usize, pages: usize) -> Result<()> {
        let start = self.pointer(page, pages)?;
        // SAFETY: the range lies inside the mapping, and populating changes no content.
        unsafe { madvise(start.cast(), pages * PAGE_BYTES, Advice::LinuxPopulateWrite) }
    }

    /// Gives the memory of pages back; they read as zeros afterwards.
    ///
    /// # Errors
    /// EINVAL if they aren't all inside.
    pub fn discard(&self, page: usize, pages: usize) -> Result<()> {
        self.pointer(page, pages)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let offset = (page * PAGE_BYTES) as u64;
        fallocate(&self.file, flags, offset, (pages * PAGE_BYTES) as u64)
    }

    pub(crate) fn pointer(&self, page: usize, pages: usize) -> Result<*mut u8> {
        let end = page.checked_add(pages).ok_or(Errno::INVAL)?;
        if end > self.pages || pages == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: `page` is below the number of mapped pages, so the offset stays inside.
        Ok(unsafe { self.base.as_ptr().add(page * PAGE_BYTES) })
    }
}

impl AsFd for SharedPages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        let length = self.pages * PAGE_BYTES;
        // SAFETY: the range is the one mapped in `new`, and no reference into it can exist.
        let result = unsafe { munmap(self.base.as_ptr().cast(), length) };
        debug_assert!(result.is_ok(), "unmapping an own range can't fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_content_until_discarded() {
        let pages = SharedPages::new("test", 4).unwrap();
        pages.write(2, &[5_u8; PAGE_BYTES]).unwrap();
        pages.populate(0, 4).unwrap();
        assert_eq!(pages.read(2).unwrap(), [5_u8; PAGE_BYTES]);
        assert_eq!(pages.read(1).unwrap(), [0_u8; PAGE_BYTES]);
        pages.discard(2, 1).unwrap();
        assert_eq!(pages.read(2).unwrap(), [0_u8; PAGE_BYTES]);
        assert_eq!(pages.read(4), Err(Errno::INVAL));
        assert_eq!(pages.discard(3, 2), Err(Errno::INVAL));
    }
}
