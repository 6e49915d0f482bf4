//! Capture and restore of process trees.
//!
//! The crate knows processes and nothing of layers, limits or networks: what reaches outside
//! the tree is handed to it by the caller.
#![forbid(unsafe_code)]

pub mod address_space;
mod births;
mod capture;
mod checks;
mod creation;
mod credentials;
pub mod descriptors;
mod engine_area;
mod error;
mod interrupted;
mod mappings;
mod memory;
mod page_store;
mod proc_files;
mod process;
mod puppet;
mod rebuild;
mod refusal;
mod restore;
mod revive;
mod root;
mod seed;
mod signals;
mod thread;
mod timers;
mod tree;
mod words;

pub use capture::{CaptureStatistics, ProcessTreeImage};
pub use credentials::Credentials;
pub use error::{Error, NamespacePid, Refusal, RefusalKind, Result};
pub use page_store::{PageStore, PageStoreUsage, Slot, SlotRun};
pub use proc_files::{CapabilitySets, DescriptorInformation};
pub use process::{ProcessAttributes, ProcessImage, ProcessState};
pub use restore::{RestoreTarget, RestoredTree};
pub use root::SandboxRoot;
pub use seed::Seed;
pub use signals::SignalAction;
pub use thread::ThreadImage;
pub use timers::{PosixTimer, TimerSetting, Timers};
pub use tree::{StoppedTree, Tree};
