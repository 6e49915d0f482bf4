//! Netlink: a socket of one namespace, and batches of requests sent in one system call.
//!
//! The requests themselves are encoded by `netlink-bindings`, which is generated from the kernel's own descriptions.
//! What is ours is the sending: many requests in one write, and only the last one acknowledged, because that is what
//! makes an attachment cheap.

pub(crate) mod batch;
pub(crate) mod connections;
pub(crate) mod link;
pub(crate) mod socket;

pub use socket::NetlinkError;
