//! The system calls that no crate wraps well: each safe, documented and tested.
//!
//! The crate knows processes, mappings and descriptors, and nothing of sandboxes.

pub mod beneath;
pub mod clone;
pub mod descriptors;
pub mod fault_service;
pub mod injection;
pub mod kcmp;
pub mod loop_device;
pub mod maps;
pub mod mount;
pub mod mount_namespace;
pub mod network_namespace;
pub mod pagemap;
pub mod process_copy;
pub mod process_memory;
pub mod ptrace;
pub mod quota;
pub mod scheduling;
mod shared_bytes;
pub mod shared_pages;
pub mod signal_descriptor;
pub mod spawn;
pub mod userfaultfd;

#[cfg(test)]
mod test_child;
