//! Capture and restore of process trees.
//!
//! The crate knows processes and nothing of layers, limits or networks: what reaches outside
//! the tree is handed to it by the caller.
#![forbid(unsafe_code)]

pub mod address_space;
mod births;
mod births_of_paged;
mod capture;
mod checks;
mod creation;
mod credentials;
pub mod descriptors;
mod engine_area;
mod error;
mod hot_pages;
mod interrupted;
mod mapping_diff;
mod mappings;
mod memory;
mod memory_rollback;
mod owed_pages;
mod page_store;
mod proc_files;
mod process;
mod puppet;
mod rebuild;
mod reclaim;
mod refusal;
mod repoint;
mod reset;
mod restore;
mod revive;
mod rollback;
mod root;
mod seed;
mod signals;
mod stored_pages;
mod thread;
mod timers;
mod tree;
mod watcher;
mod words;

pub use capture::{CaptureStatistics, ProcessTreeImage};
pub use credentials::Credentials;
pub use engine_area::WANTED_ADDRESS as ENGINE_AREA_ADDRESS;
pub use error::{Error, NamespacePid, Refusal, RefusalKind, Result};
pub use page_store::{PageStore, PageStoreUsage, Slot, SlotRun};
pub use proc_files::{CapabilitySets, DescriptorInformation};
pub use process::{ProcessAttributes, ProcessImage, ProcessState};
pub use reclaim::ProcessIdentity;
pub use repoint::RepointStatistics;
pub use restore::{RestoreTarget, RestoredTree};
pub use rollback::{RollbackRequest, RollbackStatistics, RolledBack};
pub use root::SandboxRoot;
pub use seed::Seed;
pub use signals::SignalAction;
pub use thread::ThreadImage;
pub use timers::{PosixTimer, TimerSetting, Timers};
pub use tree::{StoppedTree, Tree};
pub use watcher::Paging;
