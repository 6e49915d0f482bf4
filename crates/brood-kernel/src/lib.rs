//! The system calls that no crate wraps well: each safe, documented and tested.
