//! The HTTP interfaces of the daemon.
