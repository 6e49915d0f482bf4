//! What entries, cohorts and the whole pool take, exact to the byte.

use super::block::Block;
use super::store::Cohort;
use super::{CohortId, Pool, Region};
use crate::codec::Codec;

/// Entries and their bytes by codec; index with [`CodecCounts::of`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecCounts([(u64, u64); Codec::ALL.len()]);

impl CodecCounts {
    /// Entries of this codec, and the bytes of their frames.
    #[must_use]
    pub fn of(&self, codec: Codec) -> (u64, u64) {
        self.0[codec as usize]
    }
}

/// What a cohort's entries take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CohortUsage {
    /// Stored entries.
    pub entries: u64,
    /// Bytes of their frames.
    pub frame_bytes: u64,
    /// Physical bytes of the blocks that hold them, free and dead bytes included.
    pub resident_bytes: u64,
    /// The same by codec.
    pub by_codec: CodecCounts,
}

/// What the whole pool takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes of stored frames.
    pub frame_bytes: u64,
    /// Physical bytes behind blocks, stale ones included.
    pub resident_bytes: u64,
}

impl PoolUsage {
    /// The share of physical bytes that hold no stored frame.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.resident_bytes == 0 { 0.0 } else { 1.0 - self.frame_bytes as f64 / self.resident_bytes as f64 }
    }
}

impl<R: Region> Pool<R> {
    /// What the pool takes.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        self.usage
    }

    /// What a cohort takes; all zero if it never stored anything.
    #[must_use]
    pub fn cohort_usage(&self, cohort: CohortId) -> CohortUsage {
        self.cohort_index.get(&cohort).map(|index| self.cohorts[*index as usize].usage).unwrap_or_default()
    }

    /// Entries of the cohort that need the dictionary of this version.
    #[must_use]
    pub fn dictionary_uses(&self, cohort: CohortId, version: u16) -> u64 {
        let index = self.cohort_index.get(&cohort);
        index.and_then(|index| self.cohorts[*index as usize].dictionary_uses.get(&version)).copied().unwrap_or(0)
    }

    /// The most physical memory that the pool may take, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Changes the limit. One below what is in use only keeps the pool from growing.
    pub fn set_limit_bytes(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// Heap bytes of the pool's bookkeeping: all that it takes besides the region. Page tables count themselves.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let blocks = self.blocks.iter().flatten().map(Block::heap_bytes).sum::<usize>();
        let cohorts = self.cohorts.iter().map(|cohort| {
            let uses = cohort.dictionary_uses.capacity() * (size_of::<(u16, u64)>() + 1);
            size_of::<Cohort>() + cohort.space.heap_bytes() + uses
        });
        blocks
            + self.blocks.capacity() * size_of::<Option<Block>>()
            + self.free_names.capacity() * size_of::<u32>()
            + self.free_places.capacity() * size_of::<(u32, u32)>()
            + cohorts.sum::<usize>()
            + self.cohort_index.capacity() * (size_of::<(CohortId, u32)>() + 1)
            + self.large_counts.capacity() * (size_of::<(u32, u64)>() + 1)
    }

    /// Counts a frame that was stored, or one that was freed.
    pub(super) fn count_frame(
        &mut self,
        cohort: u32,
        codec: Codec,
        bytes: usize,
        dictionary: Option<u16>,
        stored: bool,
    ) {
        let cohort = &mut self.cohorts[cohort as usize];
        let (entries, codec_bytes) = &mut cohort.usage.by_codec.0[codec as usize];
        let sign = if stored { 1 } else { -1 };
        *entries = entries.wrapping_add_signed(sign);
        *codec_bytes = codec_bytes.wrapping_add_signed(sign * bytes as i64);
        cohort.usage.entries = cohort.usage.entries.wrapping_add_signed(sign);
        if let Some(version) = dictionary {
            let uses = cohort.dictionary_uses.entry(version).or_default();
            *uses = uses.wrapping_add_signed(sign);
            if *uses == 0 {
                cohort.dictionary_uses.remove(&version);
            }
        }
    }

    pub(super) fn add_frame_bytes(&mut self, cohort: u32, change: i64) {
        let usage = &mut self.cohorts[cohort as usize].usage;
        usage.frame_bytes = usage.frame_bytes.wrapping_add_signed(change);
        self.usage.frame_bytes = self.usage.frame_bytes.wrapping_add_signed(change);
    }

    pub(super) fn add_resident(&mut self, cohort: u32, change: i64) {
        let usage = &mut self.cohorts[cohort as usize].usage;
        usage.resident_bytes = usage.resident_bytes.wrapping_add_signed(change);
        self.usage.resident_bytes = self.usage.resident_bytes.wrapping_add_signed(change);
    }
}
