//! Codecs, pool, references and predictors for memory pages.
//!
//! Sandboxes of one cohort are near-copies of each other. This crate keeps the pages of idle ones as differences to
//! their template and to each other, and guesses which pages will be wanted back first.
//!
//! It is pure: it makes no system calls, knows no process and no clock, and runs on any operating system. Whoever uses
//! it hands in page contents and a byte store, and moves real memory according to what it answers.

//! # Example
//!
//! ```
//! use brood_pages::codec::EncoderSettings;
//! use brood_pages::cohort::{Cohort, Reader, Squeezed, Squeezer};
//! use brood_pages::pool::{CohortId, MemoryRegion, Pool, PoolError};
//! use brood_pages::{Lineage, PAGE_SIZE, PageKey, PageNumber};
//!
//! # fn main() -> Result<(), PoolError> {
//! let mut pool = Pool::new(MemoryRegion::new(), 64 << 20);
//! let mut cohort = Cohort::new(CohortId(1));
//! let mut squeezer = Squeezer::new(EncoderSettings::default());
//!
//! // A page that differs from its template's in one counter.
//! let template = std::array::from_fn::<u8, PAGE_SIZE, _>(|i| (i * 7) as u8);
//! let mut page = template;
//! page[512] += 1;
//!
//! let key = PageKey { lineage: Lineage(0), page: PageNumber::containing(0x7fff_f000) };
//! let Squeezed::Pooled(entry, _) = squeezer.squeeze(&mut cohort, &mut pool, key, &page, Some(&template))? else {
//!     panic!("the page is not its template's");
//! };
//! assert!(pool.frame_bytes(entry)? < 8);
//!
//! let mut back = [0; PAGE_SIZE];
//! Reader::new().page(&pool, cohort.dictionaries().set(), entry, Some(&template), &mut back)?;
//! assert_eq!(back, page);
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`codec`]: one page to a few bytes and back; the frame around them.
//! - [`pool`]: frames packed into a byte store, counted, compacted; page tables that checkpoints share.
//! - [`mod@reference`]: what pages are encoded against: elected sibling pages, similar pages, trained dictionaries.
//! - [`cohort`]: the three together.
//! - [`predict`]: which pages to restore before they are missed.
//! - [`schedule`]: when to squeeze what.

#![forbid(unsafe_code)]

pub mod codec;
pub mod cohort;
mod page;
pub mod pool;
pub mod predict;
pub mod reference;
pub mod schedule;

#[cfg(test)]
mod testing;

pub use page::{EntryId, Lineage, PAGE_SIZE, Page, PageKey, PageNumber, WORDS_PER_PAGE, ZERO_PAGE};
