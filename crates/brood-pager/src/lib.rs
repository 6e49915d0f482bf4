//! The pager: a few threads that answer the page faults of many processes.
//!
//! A process whose pages are *owed* has a userfaultfd that is adopted here together with a map of
//! where each page's content comes from. The page arrives when it is touched ([`PageSource`]), or
//! ahead of that ([`PagedSpace::fill`]). What the process does to its address space meanwhile
//! (fork, mremap, munmap, madvise, exit) is followed, so that memory behaves as if every page had
//! been there from the beginning.
//!
//! What holds at all times:
//!
//! - A page that is owed is never shown as zeros. Where its content can't be had, touching it
//!   fails (SIGBUS, EFAULT); where it can't be had *now*, the toucher waits.
//! - Each owed page is supplied once. What was supplied and is missing again was given up by the
//!   process, and is zeros.
//! - The pager never reads the memory of a process: that could wait for the pager.
//! - Locks: one for each address space, held while its faults are answered, so that what is known
//!   of it is what the kernel has reported. No lock is held that another address space needs.
#![forbid(unsafe_code)]

mod custodian;
mod fill;
mod latency;
mod owed;
mod pager;
mod server;
mod source;
mod space;
mod statistics;

pub use custodian::Custodian;
pub use latency::LatencyHistogram;
pub use owed::{Owed, OwedMap, OwedRange};
pub use pager::{FEATURES, Pager, PagerError, Settings};
pub use source::{Observer, PageAddress, PageSource, Supply};
pub use space::{Adoption, HeldSpace, PagedSpace, SpaceId};
pub use statistics::PagerStatistics;
