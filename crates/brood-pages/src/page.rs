//! Pages, page numbers and page keys: the nouns that every other module uses.

use std::fmt;

/// Bytes in a page. The engine only handles the 4 KiB base pages of x86-64; huge pages are left to the kernel.
pub const PAGE_SIZE: usize = 4096;

/// 8-byte words in a page.
pub const WORDS_PER_PAGE: usize = PAGE_SIZE / 8;

/// The content of one page.
pub type Page = [u8; PAGE_SIZE];

/// A page of zeros, the content of untouched anonymous memory.
pub static ZERO_PAGE: Page = [0; PAGE_SIZE];

/// The page's 8-byte words. Comparing and patching words (not bytes) is what makes deltas run at memory speed.
#[inline]
pub(crate) fn words(page: &Page) -> &[[u8; 8]] {
    page.as_chunks().0
}

/// The page's words, to be overwritten.
#[inline]
pub(crate) fn words_mut(page: &mut Page) -> &mut [[u8; 8]] {
    page.as_chunks_mut().0
}

/// A virtual address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The page that holds `address` (bytes).
    #[must_use]
    pub fn containing(address: u64) -> Self {
        Self(address / PAGE_SIZE as u64)
    }

    /// The address of the page's first byte.
    #[must_use]
    pub fn address(self) -> u64 {
        self.0.wrapping_mul(PAGE_SIZE as u64)
    }
}

/// Which process of a sandbox an address belongs to, in a way that siblings agree on: processes inherited from
/// one template process share a lineage, and so do processes started with the same executable and arguments.
/// The caller chooses the number; it only has to be stable within a cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lineage(pub u32);

/// What a page is known by across siblings. With address randomisation off, siblings agree on it, so a page key
/// finds a good reference without any search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// The process.
    pub lineage: Lineage,
    /// The page inside it.
    pub page: PageNumber,
}

/// Names an immutable encoded page in the pool. The number is stable for as long as somebody holds a reference
/// to the entry, whatever compaction does to the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub(crate) u32);

impl EntryId {
    /// The number that stands for "no entry" in packed tables.
    pub(crate) const NONE: u32 = u32::MAX;

    /// From the number that [`EntryId::to_bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The entry's number, to be kept elsewhere in four bytes.
    #[must_use]
    pub fn to_bits(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({:#x})", self.0)
    }
}
