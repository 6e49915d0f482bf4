//! Memory without a path that processes share: memfds and shared anonymous mappings.
//!
//! Writes to it aren't watched: each checkpoint copies all of it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use brood_kernel::shared_pages::PAGE_BYTES;
use rustix::fs::{MemfdFlags, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::address_space::{CHUNK_BYTES, ObjectIdentity, PageTable};
use crate::page_store::{PageStore, Slot};

/// An open file on such memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFile {
    /// The memory.
    pub memory: ObjectIdentity,
}

/// The content of shared memory.
#[derive(Debug, Clone)]
pub struct SharedMemoryImage {
    /// Its name, as memfd_create(2) was given it.
    pub name: Box<str>,
    /// Its length in bytes.
    pub length: u64,
    /// `F_SEAL_*`.
    pub seals: u32,
    /// Pages by offset.
    pub pages: PageTable,
}

impl SharedMemoryImage {
    /// Copies all content of a file; holes stay holes.
    pub(crate) fn capture(file: BorrowedFd<'_>, link: &str, store: &Arc<PageStore>) -> Result<Self, Errno> {
        let length = rustix::fs::fstat(file)?.st_size.cast_unsigned();
        let seals = rustix::fs::fcntl_get_seals(file).map_or(0, |seals| seals.bits());
        let name = link.strip_prefix("/memfd:").unwrap_or("shared");
        let name = name.strip_suffix(crate::mappings::DELETED).unwrap_or(name).into();
        let mut pages = PageTable::default();
        let mut offset = 0;
        while let Some((start, end)) = next_data(file, offset, length)? {
            copy_extent(file, start, end, &mut pages, store)?;
            offset = end;
        }
        Ok(Self { name, length, seals, pages })
    }

    /// Makes the memory again with its content.
    pub(crate) fn make(&self, store: &Arc<PageStore>) -> Result<OwnedFd, Errno> {
        let file = rustix::fs::memfd_create(&*self.name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, self.length)?;
        self.fill(file.as_fd(), store)?;
        if self.seals != 0 {
            rustix::fs::fcntl_add_seals(&file, SealFlags::from_bits_retain(self.seals))?;
        }
        Ok(file)
    }

    /// Gives existing memory its former length and content.
    pub(crate) fn reset(&self, file: BorrowedFd<'_>, store: &Arc<PageStore>) -> Result<(), Errno> {
        if rustix::fs::fstat(file)?.st_size.cast_unsigned() != self.length {
            rustix::fs::ftruncate(file, self.length)?;
        }
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if self.length > 0 {
            rustix::fs::fallocate(file, hole, 0, self.length)?;
        }
        self.fill(file, store)
    }

    fn fill(&self, file: BorrowedFd<'_>, store: &Arc<PageStore>) -> Result<(), Errno> {
        for (number, chunk) in self.pages.chunks() {
            for page in crate::address_space::bits(chunk.stored()) {
                let Some(slot) = chunk.slot(page) else { continue };
                let offset = number * CHUNK_BYTES + (page * PAGE_BYTES) as u64;
                let length = (self.length - offset).min(PAGE_BYTES as u64) as usize;
                let content = store.read(slot)?;
                rustix::io::pwrite(file, &content[..length], offset)?;
            }
        }
        Ok(())
    }
}

fn next_data(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Option<(u64, u64)>, Errno> {
    if offset >= length {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some((start, end)))
}

fn copy_extent(
    file: BorrowedFd<'_>,
    start: u64,
    end: u64,
    pages: &mut PageTable,
    store: &Arc<PageStore>,
) -> Result<(), Errno> {
    let mut offset = start - start % PAGE_BYTES as u64;
    while offset < end {
        let number = offset / CHUNK_BYTES;
        let chunk_end = end.min((number + 1) * CHUNK_BYTES);
        let count = (chunk_end - offset).div_ceil(PAGE_BYTES as u64) as usize;
        let slots = store.allocate(count)?;
        let first = (offset % CHUNK_BYTES) as usize / PAGE_BYTES;
        let new: Vec<(usize, Slot)> = (first..).zip(slots).collect();
        // The table owns the slots from here on, also if a read fails.
        pages.replace(store, number, u64::MAX, &new);
        for (page, slot) in new {
            let mut content = [0; PAGE_BYTES];
            read_at(file, number * CHUNK_BYTES + (page * PAGE_BYTES) as u64, &mut content)?;
            let (segment, place) = store.locate(slot)?;
            segment.write(place, &content)?;
        }
        offset = chunk_end;
    }
    Ok(())
}

fn read_at(file: BorrowedFd<'_>, offset: u64, content: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < content.len() {
        let count = rustix::io::pread(file, &mut content[filled..], offset + filled as u64)?;
        if count == 0 {
            break;
        }
        filled += count;
    }
    Ok(())
}

impl MemoryFile {
    pub(crate) fn reopen(self, memories: &BTreeMap<ObjectIdentity, OwnedFd>, flags: u32) -> Result<OwnedFd, Errno> {
        reopen(memories.get(&self.memory).ok_or(Errno::NOENT)?, flags)
    }
}

/// Opens memory again, as an open file of its own.
pub(crate) fn reopen(memory: &OwnedFd, flags: u32) -> Result<OwnedFd, Errno> {
    let access = OFlags::from_bits_retain(flags) & (OFlags::RWMODE | OFlags::APPEND);
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_holes_length_and_seals_come_back() {
        let store = PageStore::new();
        let file = rustix::fs::memfd_create("zoo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 1_000_100).unwrap();
        rustix::io::pwrite(&file, b"begin", 0).unwrap();
        rustix::io::pwrite(&file, b"end", 1_000_097).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        let image = SharedMemoryImage::capture(file.as_fd(), "/memfd:zoo (deleted)", &store).unwrap();
        assert_eq!((&*image.name, image.pages.stored_pages()), ("zoo", 2));
        let made = image.make(&store).unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_size, 1_000_100);
        let mut end = [0; 3];
        rustix::io::pread(&made, &mut end, 1_000_097).unwrap();
        assert_eq!(&end, b"end");
        assert_eq!(rustix::fs::fcntl_get_seals(&made).unwrap(), SealFlags::GROW);
        drop(image);
        assert_eq!(store.usage().used, 0);
    }
}
