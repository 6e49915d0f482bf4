//! What can go wrong in the pool.

use std::io;

use crate::codec::DecodeError;
use crate::page::EntryId;

/// Why the pool couldn't do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Storing would take more physical memory than the pool may have. Nothing was changed.
    #[error("pool is full: {needed_bytes} more bytes needed, {used_bytes} of {limit_bytes} in use")]
    Full {
        /// Physical bytes in use.
        used_bytes: u64,
        /// The limit.
        limit_bytes: u64,
        /// Physical bytes that were missing.
        needed_bytes: u64,
    },
    /// There are no more names for blocks (2^20 blocks of 64 KiB: 64 GiB).
    #[error("pool has no more block names")]
    OutOfNames,
    /// The entry doesn't exist: it was released once too often, or never stored.
    #[error("{0:?} is not in the pool")]
    NoSuchEntry(EntryId),
    /// What should be stored is not exactly one frame, or what is stored was damaged.
    #[error("not a frame")]
    Frame(#[from] DecodeError),
    /// The byte store failed.
    #[error("pool's memory can't be accessed at offset {offset}")]
    Region {
        /// Offset in bytes.
        offset: u64,
        /// What the byte store said.
        source: io::Error,
    },
}
