//! The life of a sandbox: templates, isolation, tool calls, limits.
//!
//! [`Engine`](engine::Engine) is the one entry point. It is synchronous: its own threads watch
//! sandboxes, and callers that live in an async runtime use the `poll_*` methods of
//! [`Output`](output::Subscription) and [`Process`](process::Process), which take a waker.
//!
//! What this crate must never know: HTTP, the command line, JSON on a wire.
#![forbid(unsafe_code)]

mod after_calls;
pub mod build;
mod catalog;
mod cgroup;
pub mod checkpoint;
mod connection;
mod control;
mod copy_source;
mod endpoints;
pub mod engine;
pub mod error;
pub mod events;
pub mod files;
pub mod ids;
mod isolation;
mod janitor;
pub mod limits;
pub mod memory;
pub mod model;
mod network;
pub mod output;
mod pause;
pub mod process;
mod reactor;
mod ready_forks;
pub mod sandbox;
mod seccomp;
mod seccomp_calls;
mod shared_stack;
mod spawn;
mod storage;
mod template;
mod transaction;
pub mod users;
mod warm;
