//! The HTTP interfaces of the daemon.
//!
//! [`native`] is Brood's own interface, served on a unix socket by [`listener`]. Routers are plain
//! axum routers over shared state, so that further interfaces stand beside it.
//!
//! What this crate must never know: how a sandbox is made; it calls the engine and waits.
#![forbid(unsafe_code)]

pub mod e2b;
pub mod listener;
pub mod native;
