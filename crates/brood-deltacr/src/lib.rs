//! Capture and restore of process trees.
