//! Layer stacks: overlay mounts, freezing, squashing, diffs and disk limits.
//!
//! The files of a sandbox are one overlay mount: a [`LayerStack`] of immutable
//! directories below, an [`Upper`] that takes the changes above. Everything is
//! kept by one [`Store`], a directory that this process holds locked:
//!
//! ```text
//! lock         held while the store is open
//! layers/ID    immutable directories; their content is a layer as an overlay sees it
//! uppers/ID/   upper: the changes; work.*: scratch space of the kernel, one a mount
//! staging/ID   layers being built
//! trash/ID     what a thread is removing
//! spaces/ID/   the same four again, for a sandbox with a disk limit
//! ```
//!
//! A name in `layers` or `uppers` is complete: it got there by one rename.
//! Nothing is deleted because a value went out of scope. Deletion is asked
//! for, by [`Store::release`], [`Store::discard`] or, at start, by
//! [`Store::retain`], which gets the list of what the owner's database knows.
//!
//! This crate knows nothing of sandboxes, processes or images.
#![forbid(unsafe_code)]

mod attributes;
mod carry;
mod diff;
mod durable;
mod error;
mod export;
mod ext4_image;
mod failure_point;
mod freeze;
mod home;
mod id;
mod layer;
mod overlay;
mod space;
mod squash;
mod store;
mod swap;
mod system_layer;
mod trash;
mod tree;
mod upper;
mod usage;

pub use diff::{Change, ChangeKind, Diff};
pub use error::{Result, StoreError};
pub use export::export_layer;
pub use freeze::Frozen;
pub use id::{InvalidId, LayerId, SpaceId, UpperId};
pub use layer::{DEPTH_MAX, Layer, LayerStack};
pub use overlay::OverlayMount;
pub use space::{
    LIMIT_BYTES_MAX, LIMIT_BYTES_MIN, LimitMechanism, LimitSupport, Space, SpaceUsage, support as limit_support,
};
pub use squash::DEPTH_AIM;
pub use store::{Retained, Staging, Store};
pub use swap::{RootSwapper, SwapError};
pub use system_layer::SystemLayers;
pub use tree::FileTree;
pub use upper::Upper;
pub use usage::DiskUsage;
