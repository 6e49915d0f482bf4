//! How layers are unpacked: where, as whom, and within which limits.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The user and group id that stand for "an id that the sub-uid range has no room for": `nobody` on every Linux.
pub const NOBODY_ID: u32 = 65534;

/// Shift of ids inside an image to ids on the host.
///
/// Id `n` below `count` becomes `base + n`. Any other becomes `base + 65534` (nobody), because images made on machines
/// with directory services carry ids in the millions for files nobody cares about; refusing them would refuse the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdShift {
    /// Host id of the root user inside.
    pub base: u32,
    /// Length of the range.
    pub count: u32,
}

impl Default for IdShift {
    fn default() -> Self {
        Self { base: 100_000_000, count: 65536 }
    }
}

impl IdShift {
    /// The host id for `id`, and whether it had to be replaced by nobody.
    pub(crate) fn shift(self, id: u64) -> (u32, bool) {
        match u32::try_from(id) {
            Ok(id) if id < self.count => (self.base + id, false),
            _ => (self.base + NOBODY_ID.min(self.count - 1), true),
        }
    }

    /// Whether every id of the range is one the kernel accepts (`u32::MAX` means "no change" to `chown`).
    pub(crate) fn is_valid(self) -> bool {
        self.count > 0 && self.base.checked_add(self.count).is_some()
    }
}

/// What an archive may ask of the host. Each has a default that no image in common use comes near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries in one layer. A full desktop installation has half a million files.
    pub entries_max: u64,
    /// Bytes of one uncompressed layer archive, and separately the sum of its files' sizes (holes count).
    pub layer_bytes_max: u64,
    /// Bytes of a path or link target. The kernel resolves at most 4,095.
    pub path_bytes_max: usize,
    /// Directories below each other. Whoever walks or removes a tree holds one descriptor a level, of 1,024 that a
    /// process has by default.
    pub depth_max: usize,
    /// Bytes of one extended attribute's value; the kernel allows 64 KiB.
    pub xattr_bytes_max: usize,
    /// Bytes of the headers that describe one entry (long names, attributes): read into memory.
    pub header_bytes_max: u64,
    /// Uncompressed over compressed bytes, judged after [`Limits::RATIO_GRACE_BYTES`]. Gzip cannot exceed 1,032, so only
    /// formats that can turn kilobytes into terabytes are cut off.
    pub ratio_max: u64,
    /// Layers in one image; overlay mounts refuse more than 500.
    pub layers_max: usize,
}

impl Limits {
    /// Uncompressed bytes that are always allowed, however well they compressed.
    pub const RATIO_GRACE_BYTES: u64 = 256 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries_max: 2_000_000,
            layer_bytes_max: 64 << 30,
            path_bytes_max: 4095,
            depth_max: 512,
            xattr_bytes_max: 64 << 10,
            header_bytes_max: 1 << 20,
            ratio_max: 2000,
            layers_max: 256,
        }
    }
}

/// Where and how layers are unpacked.
#[derive(Debug, Clone)]
pub struct UnpackOptions {
    /// Directory that holds one directory per layer; made if missing, readable by root alone.
    pub layers_dir: PathBuf,
    /// Ownership inside layers.
    pub id_shift: IdShift,
    /// Limits on archives.
    pub limits: Limits,
    /// Flush a layer to the disk before it appears under its name, so that a power failure cannot leave a layer with
    /// empty files. Costs one `syncfs`.
    pub durable: bool,
}

impl UnpackOptions {
    /// Default range and limits, durable.
    pub fn new(layers_dir: impl Into<PathBuf>) -> Self {
        Self { layers_dir: layers_dir.into(), id_shift: IdShift::default(), limits: Limits::default(), durable: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_the_range_become_nobody() {
        let shift = IdShift { base: 1000, count: 65536 };
        assert_eq!(shift.shift(0), (1000, false));
        assert_eq!(shift.shift(65535), (66535, false));
        assert_eq!(shift.shift(65536), (66534, true));
        assert_eq!(shift.shift(u64::MAX), (66534, true));
        assert!(!IdShift { base: u32::MAX - 10, count: 65536 }.is_valid());
    }
}
