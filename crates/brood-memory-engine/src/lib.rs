//! Squeezes idle sandboxes: their private pages are encoded into a pool, their memory goes back to the host, and a
//! touch brings a page back unnoticed.
//!
//! - [`engine`]: the pool, and what squeezed sandboxes share.
//! - [`cohort`]: siblings, and who is who among them.
//! - [`squeezed`]: the squeezed pages of one process.
//! - [`guardian`]: sees to it that the death of this process shows nobody zeros.
//! - [`SandboxMemory`]: one sandbox, squeezed and brought back.
#![forbid(unsafe_code)]

mod accounting;
pub mod cohort;
pub mod engine;
mod error;
pub mod guardian;
mod page_set;
mod pool_memory;
mod program;
mod report;
mod sandbox_memory;
mod squeeze;
pub mod squeezed;
mod survey;
mod template;

pub use accounting::{PrivateMemory, cohort_metadata_bytes, private_memory};
pub use error::{Error, Result};
pub use page_set::PageSet;
pub use pool_memory::PoolMemory;
pub use report::{RestoreReport, SqueezeReport};
pub use sandbox_memory::{Machinery, SandboxMemory};
pub use squeeze::pages_per_second;
pub use template::TemplatePages;
