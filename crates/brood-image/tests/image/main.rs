//! Images of every source, unpacked for real: needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking; clippy exempts only functions marked as tests")]

mod archives;
mod crafted;
mod debian;
mod hostile;
mod images;
mod interruption;
mod local;
mod namespace;
mod registry;
mod registry_server;
mod round_trip;
mod support;
mod token_server;
