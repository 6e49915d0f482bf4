//! Squeezes idle sandboxes: their private pages are encoded into a pool, their memory goes back to the host, and a
//! touch brings a page back unnoticed.
//!
//! - [`engine`]: the pool, and what squeezed sandboxes share.
//! - [`cohort`]: siblings, and who is who among them.
//! - [`squeezed`]: the squeezed pages of one process.
#![forbid(unsafe_code)]

pub mod cohort;
pub mod engine;
mod error;
mod page_set;
mod pool_memory;
pub mod squeezed;
mod template;

pub use error::{Error, Result};
pub use page_set::PageSet;
pub use pool_memory::PoolMemory;
pub use template::TemplatePages;
