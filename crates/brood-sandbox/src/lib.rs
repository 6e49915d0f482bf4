//! The life of a sandbox: templates, isolation, tool calls, limits.
//!
//! [`Engine`](engine::Engine) is the one entry point. It is synchronous: its own threads watch
//! sandboxes, and callers that live in an async runtime use the `poll_*` methods of
//! [`Output`](output::Subscription) and [`Process`](process::Process), which take a waker.
//!
//! What this crate must never know: HTTP, the command line, JSON on a wire.
#![forbid(unsafe_code)]

pub mod error;
pub mod ids;
pub mod limits;
pub mod model;
