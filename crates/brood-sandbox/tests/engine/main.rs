//! The engine on real sandboxes, as root.
//!
//! All tests share one Debian root made by mmdebstrap, kept between runs in cargo's own target
//! directory; each test has an engine with a state directory of its own.

#![allow(clippy::unwrap_used, clippy::let_underscore_must_use, reason = "a test fails by panicking")]

mod after_calls;
mod attacks;
mod builds;
mod calls;
mod checkpoints;
mod depth;
mod fixture;
mod forks;
mod hostile;
mod lifecycle;
mod memory;
mod network;
mod search;
mod torture;
mod warm;
