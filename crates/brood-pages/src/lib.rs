//! Codecs, pool, references and predictors for memory pages.
//!
//! Sandboxes of one cohort are near-copies of each other. This crate keeps the pages of idle ones as differences to
//! their template and to each other, and guesses which pages will be wanted back first.
//!
//! It is pure: it makes no system calls, knows no process and no clock, and runs on any operating system. Whoever uses
//! it hands in page contents and a byte store, and moves real memory according to what it answers.

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
