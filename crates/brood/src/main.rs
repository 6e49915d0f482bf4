//! The `brood` command line and daemon.

fn main() {}
