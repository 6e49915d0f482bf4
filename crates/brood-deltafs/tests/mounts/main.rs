//! The store on real overlay mounts. Needs root.
#![allow(clippy::unwrap_used, reason = "every function here is part of a test")]

mod crash;
mod export;
mod fixture;
mod freeze;
mod full;
mod identity;
mod model;
mod space;
mod squash;
mod store;
mod swap;
mod tenant;
