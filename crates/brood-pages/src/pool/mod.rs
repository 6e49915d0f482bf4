//! The pool: encoded pages that are mapped nowhere, packed into a byte store.
//!
//! # States of a page
//!
//! A page of a squeezed process is in one of these states; the caller keeps the first two, a [`PageTable`] the rest.
//!
//! - **present**: the process has its own physical page. No entry.
//! - **as the template's**: not present, and its content is the template's. No entry.
//! - **pooled**: not present, and its content is what an entry decodes to. The page table holds one reference to the
//!   entry. Storing makes a present page pooled, restoring makes it present (the reference is released); freezing a table
//!   for a checkpoint shares the references of a whole chunk of pages at once.
//!
//! # States of an entry
//!
//! - **stored**: its frame lies in a block, its reference count is at least one. Immutable.
//! - **forwarded**: compaction moved the frame. The old name stays valid: it stands for one reference to the new one.
//! - **free**: no references. Its bytes are dead until their block is packed or evacuated; its name may be used again.
//!
//! A frame that is a difference to another entry holds a reference to it from when it is stored until it is free, so
//! nothing that an entry needs is freed under it. References are one step deep: an entry that refers to another is never
//! referred to (the caller's rule; freeing would cope with more).
//!
//! # States of a block
//!
//! The byte store is cut into blocks of [`BLOCK_BYTES`]. Frames lie in a block end to end, without padding. A block
//! belongs to one cohort, so cohorts never share physical memory that one of them pays for.
//!
//! - **absent**: no memory behind it (never written, or discarded).
//! - **live**: holds at least one stored entry. Blocks are kept in classes by their free bytes, and a frame goes to the
//!   fullest class that surely has room: that keeps few blocks open and lets any freed byte serve any frame size, where slots of
//!   fixed sizes would lose some 5 % to rounding at these sizes.
//! - **stale**: empty, with memory behind it; used again first, or discarded by [`Pool::trim`].
//!
//! # Cost
//!
//! An entry costs three bytes of metadata (two for its offset, one for its reference count) and a page in a page
//! table four and a bit; see [`Pool::metadata_bytes`]. Frames know their own lengths.

mod block;
mod compact;
mod error;
mod page_table;
mod region;
mod shares;
mod space;
mod store;
mod usage;

pub use block::BLOCK_BYTES;
pub use compact::CompactionReport;
pub use error::PoolError;
pub use page_table::PageTable;
pub use region::{MemoryRegion, Region};
pub use shares::shares;
pub use store::{CohortId, Pool, Stamp};
pub use usage::{CodecCounts, CohortUsage, PoolUsage};

#[cfg(test)]
mod model_tests;
