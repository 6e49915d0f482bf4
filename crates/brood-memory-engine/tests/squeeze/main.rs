//! Processes squeezed and woken: whatever they do, their memory is what it would have been.
#![expect(clippy::unwrap_used, reason = "tests")]

mod death;
mod harness;
mod races;
mod real_programs;
mod semantics;
