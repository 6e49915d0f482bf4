//! Where pages come from, and who wants to know what happens to them.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use brood_kernel::shared_pages::PAGE_BYTES;

use crate::space::SpaceId;

/// The address of a page: a multiple of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageAddress(u64);

impl PageAddress {
    /// The page that holds an address.
    #[must_use]
    pub fn of(address: u64) -> Self {
        Self(address & !(PAGE_BYTES as u64 - 1))
    }

    /// The address itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What a source says about a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    /// The content was written to the buffer.
    Page,
    /// The page is zeros.
    Zero,
    /// The content is lost. Whoever touches the page gets an error, never zeros.
    Unknown,
}

/// Knows the content of pages, by the addresses at which they were when they became owed.
pub trait PageSource: Send + Sync + Debug {
    /// Writes a page's content to `into`. Called on the pager's threads while a task waits: no
    /// waiting for locks that are held for long, and never for a process that may fault.
    fn supply(&self, address: PageAddress, into: &mut [u8; PAGE_BYTES]) -> Supply;

    /// The first page from `range.start` on that isn't zeros, before `range.end`.
    fn next_page(&self, range: Range<PageAddress>) -> Option<PageAddress>;

    /// How many pages to put in place when this one is touched: those of its aligned group of
    /// that many (a power of two, at most 16) that lie next to it without a gap.
    fn together(&self, _address: PageAddress) -> usize {
        1
    }

    /// Whether its pages are what the last image of the process holds, so that they may count as unwritten.
    fn arrives_clean(&self) -> bool {
        true
    }

    /// The source itself, for owners that want to know whether it is one of theirs.
    fn as_any(&self) -> &dyn Any;
}

/// Is told what happens in an address space. Called on the pager's threads while tasks wait: it
/// should only take notes.
pub trait Observer: Send + Sync + Debug {
    /// A task waited for this page, which it has now.
    fn touched(&self, _address: PageAddress) {}

    /// The content of this page could not be had; its toucher gets an error.
    fn lost(&self, _address: PageAddress) {}

    /// Contents were given up; the pages are zeros from now on.
    fn removed(&self, _range: Range<PageAddress>) {}

    /// Mappings were removed.
    fn unmapped(&self, _range: Range<PageAddress>) {}

    /// Memory was moved from a range to the range of the same length at an address.
    fn moved(&self, _from: Range<PageAddress>, _to: PageAddress) {}

    /// The process forked. Returns the observer of the child.
    fn forked(&self, _child: SpaceId) -> Option<Arc<dyn Observer>> {
        None
    }

    /// The address space has ended: its process did, or executed another program.
    fn ended(&self) {}
}
