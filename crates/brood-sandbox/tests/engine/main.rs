//! The engine on real sandboxes, as root.
//!
//! All tests share one Debian root made by mmdebstrap, kept between runs in cargo's own target
//! directory; each test has an engine with a state directory of its own.

mod attacks;
mod builds;
mod calls;
mod checkpoints;
mod fixture;
mod lifecycle;
