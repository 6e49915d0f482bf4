//! The whole program: the command line against a daemon of its own, as root, with a real template.
//!
//! The tests share one daemon in directories of its own (see [`fixture`]), which ends with this
//! process however that ends. Sandboxes are killed when their test is over.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a test's name says what it shows")]
#![allow(clippy::unwrap_used, reason = "clippy knows helpers of tests only in unit tests")]

mod attacks;
mod bad_input;
mod builds;
mod checkpoints;
mod concurrency;
mod copy;
mod daemon;
mod fixture;
mod lifecycle;
mod limits;
mod network;
mod soak;
mod streams;
mod terminal;
