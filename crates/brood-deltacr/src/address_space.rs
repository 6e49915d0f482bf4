//! Address-space images: the mappings of a process and where each page's content comes from.
//!
//! The page table is a persistent map of chunks of 64 pages. A checkpoint's image shares every
//! chunk with its parent's in which nothing changed; a chunk holds references to its slots.

use std::sync::Arc;

use brood_kernel::maps::{MappingFlags, Protection};
use brood_kernel::shared_pages::PAGE_BYTES;

use crate::hot_pages::HotPages;
use crate::page_store::{PageStore, Slot};

/// Pages in a chunk: one bit each in a machine word.
pub const CHUNK_PAGES: usize = 64;
/// Bytes that a chunk stands for.
pub const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_BYTES) as u64;

/// Where the content of a page comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSource {
    /// Nothing was ever written there.
    Zero,
    /// The page of the mapped file.
    File,
    /// A page of the store.
    Store(Slot),
}

/// A file, or an object like one, that mappings and descriptors refer to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MappedFile {
    /// A file that can be opened again by its path inside the sandbox.
    Path(Box<str>),
    /// Memory without a path that processes share: a memfd or a shared anonymous mapping.
    Memory(ObjectIdentity),
}

/// What tells a kernel object with an inode from all others of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// What is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappingKind {
    /// Private memory.
    Anonymous,
    /// Private view of a file: written pages are copies.
    Private(MappedFile),
    /// A file's own pages, or shared memory.
    Shared(MappedFile),
    /// One of the kernel's own mappings, by its name.
    Special(Box<str>),
}

/// One mapping of an address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingImage {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Access allowed.
    pub protection: Protection,
    /// Properties beside protection.
    pub flags: MappingFlags,
    /// Offset in the file or object, in bytes.
    pub offset: u64,
    /// What is mapped.
    pub kind: MappingKind,
}

impl MappingImage {
    /// Whether its pages can hold content that is private to the process and must be kept.
    #[must_use]
    pub fn is_private(&self) -> bool {
        let droppable = self.flags.contains(MappingFlags::DROPPABLE);
        matches!(self.kind, MappingKind::Anonymous | MappingKind::Private(_)) && !droppable
    }
}

/// The slots of 64 pages in a row. Owns one reference to each.
#[derive(Debug)]
pub struct Chunk {
    store: Arc<PageStore>,
    slots: [u32; CHUNK_PAGES],
    stored: u64,
}

impl Chunk {
    /// Which pages are stored, as bits.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// The slot of a page.
    #[must_use]
    pub fn slot(&self, page: usize) -> Option<Slot> {
        self.slots.get(page).copied().and_then(Slot::from_number)
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter().filter_map(|number| Slot::from_number(*number))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.store.release(self.slots());
    }
}

/// The page table of an image: a persistent map, cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PageTable {
    chunks: imbl::OrdMap<u64, Arc<Chunk>>,
}

impl PageTable {
    /// The slot that holds the page at an address, if it is stored.
    #[must_use]
    pub fn slot(&self, address: u64) -> Option<Slot> {
        let page = (address % CHUNK_BYTES) as usize / PAGE_BYTES;
        self.chunks.get(&(address / CHUNK_BYTES))?.slot(page)
    }

    /// The chunk with a number (address divided by [`CHUNK_BYTES`]).
    #[must_use]
    pub fn chunk(&self, number: u64) -> Option<&Arc<Chunk>> {
        self.chunks.get(&number)
    }

    /// All chunks in address order.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, &Arc<Chunk>)> {
        self.chunks.iter().map(|(number, chunk)| (*number, chunk))
    }

    /// The chunks that hold pages between two addresses.
    pub fn chunks_between(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Arc<Chunk>)> {
        let numbers = start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES).max(start / CHUNK_BYTES);
        self.chunks.range(numbers).map(|(number, chunk)| (*number, chunk))
    }

    /// Number of stored pages.
    #[must_use]
    pub fn stored_pages(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.stored.count_ones() as usize).sum()
    }

    /// Replaces a chunk: keeps the pages of `kept` from the old one and takes over `new`, pairs
    /// of page number and slot whose references the chunk owns from now on.
    pub(crate) fn replace(&mut self, store: &Arc<PageStore>, number: u64, kept: u64, new: &[(usize, Slot)]) {
        let mut chunk = Chunk { store: Arc::clone(store), slots: [0; CHUNK_PAGES], stored: 0 };
        if let Some(old) = self.chunks.get(&number) {
            for page in bits(kept & old.stored) {
                chunk.slots[page] = old.slots[page];
                chunk.stored |= 1 << page;
            }
            store.retain(chunk.slots());
        }
        for (page, slot) in new {
            chunk.slots[*page] = slot.number();
            chunk.stored |= 1 << page;
        }
        if chunk.stored == 0 {
            self.chunks.remove(&number);
        } else {
            self.chunks.insert(number, Arc::new(chunk));
        }
    }
}

/// Positions of the bits that are set, lowest first.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let position = word.trailing_zeros() as usize;
            word &= word - 1;
            position
        })
    })
}

/// The address space of one process.
#[derive(Debug, Clone)]
pub struct AddressSpaceImage {
    /// Mappings in address order, without the engine's own.
    pub mappings: Arc<[MappingImage]>,
    /// Stored pages of private mappings.
    pub pages: PageTable,
    /// The kernel's notes about the layout.
    pub layout: MemoryLayout,
    /// What copies of it touch first.
    pub(crate) hot: Arc<HotPages>,
}

impl AddressSpaceImage {
    /// Where the page at an address comes from; `None` where nothing is mapped or the page
    /// isn't private.
    #[must_use]
    pub fn source(&self, address: u64) -> Option<PageSource> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        let mapping = self.mappings.get(index).filter(|mapping| mapping.start <= address)?;
        match (&mapping.kind, self.pages.slot(address)) {
            (MappingKind::Anonymous | MappingKind::Private(_), Some(slot)) => Some(PageSource::Store(slot)),
            (MappingKind::Anonymous, None) => Some(PageSource::Zero),
            (MappingKind::Private(_), None) => Some(PageSource::File),
            _ => None,
        }
    }
}

/// What the kernel notes about a process' memory beside mappings (`prctl(PR_SET_MM_MAP)`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryLayout {
    /// Start and end of the program's code.
    pub code: (u64, u64),
    /// Start and end of its data.
    pub data: (u64, u64),
    /// Start and current end of the heap.
    pub heap: (u64, u64),
    /// Bottom of the initial stack.
    pub stack: u64,
    /// Start and end of the arguments.
    pub arguments: (u64, u64),
    /// Start and end of the environment.
    pub environment: (u64, u64),
    /// The auxiliary vector.
    pub auxiliary: Vec<u8>,
    /// The program's path inside the sandbox.
    pub program: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_listed_in_order() {
        assert_eq!(bits(1 | 1 << 5 | 1 << 63).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(bits(0).count(), 0);
    }

    #[test]
    fn images_share_chunks_and_references_end_with_the_last_of_them() {
        let store = PageStore::new();
        let slots = store.allocate(3).unwrap();
        let mut parent = PageTable::default();
        parent.replace(&store, 7, 0, &[(0, slots[0]), (1, slots[1])]);
        let mut child = parent.clone();
        child.replace(&store, 7, 0b01, &[(2, slots[2])]);
        assert_eq!(child.slot(7 * CHUNK_BYTES), Some(slots[0]));
        assert_eq!(child.slot(7 * CHUNK_BYTES + 4096), None);
        assert_eq!(parent.slot(7 * CHUNK_BYTES + 4096), Some(slots[1]));
        drop(parent);
        assert_eq!(store.usage().used, 2, "the page that only the parent had is free");
        child.replace(&store, 7, 0, &[]);
        assert_eq!(store.usage().used, 0);
        assert_eq!(child.stored_pages(), 0);
    }
}
