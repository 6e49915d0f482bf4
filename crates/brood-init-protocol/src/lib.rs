//! The messages between the daemon and PID 1 of a sandbox.
