//! Writes the data of regular files, leaving holes where there are only zeros.

use std::io::Read;
use std::os::fd::OwnedFd;

use super::error::{IoContext as _, UnpackError};
use super::path::EntryPath;
use crate::tar_stream::{TarEntry, TarReader};

/// Bytes read and written at once.
pub(super) const BUFFER_BYTES: usize = 256 << 10;
/// Smallest hole worth leaving: the block of the usual file systems.
const HOLE_BYTES: usize = 4096;
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// Copies the data of the current entry of `reader` into `file`.
pub(super) fn write_body<R: Read>(
    file: &OwnedFd,
    entry: &TarEntry,
    reader: &mut TarReader<R>,
    path: &EntryPath,
    buffer: &mut [u8],
) -> Result<(), UnpackError> {
    let whole = [(0, entry.size_bytes)];
    let pieces = entry.sparse.as_ref().map_or(&whole[..], |map| &map.0);
    let mut written_end = 0;
    for (offset, length) in pieces {
        let mut position = *offset;
        let end = offset + length;
        while position < end {
            let wanted = buffer.len().min(usize::try_from(end - position).unwrap_or(usize::MAX));
            let count = fill(reader, &mut buffer[..wanted])?;
            if let Some(last) = write_without_holes(file, &buffer[..count], position).at("write", path)? {
                written_end = last;
            }
            position += count as u64;
        }
    }
    if written_end < entry.size_bytes {
        rustix::fs::ftruncate(file, entry.size_bytes).at("set the size of", path)?;
    }
    Ok(())
}

/// Fills the buffer: chunks must begin at whole blocks for holes to be found. The reader reports early ends itself.
fn fill<R: Read>(reader: &mut TarReader<R>, buffer: &mut [u8]) -> Result<usize, UnpackError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let count = reader.read_body(&mut buffer[filled..])?;
        if count == 0 {
            return Err(UnpackError::Corrupt("a file's data is shorter than its size".to_owned()));
        }
        filled += count;
    }
    Ok(filled)
}

/// Writes the parts of `data` that are not whole blocks of zeros; returns the end of the last part written.
fn write_without_holes(file: &OwnedFd, data: &[u8], position: u64) -> rustix::io::Result<Option<u64>> {
    let mut end = None;
    let mut start = 0;
    while start < data.len() {
        let Some(first) = data[start..].chunks(HOLE_BYTES).position(is_worth_writing) else {
            break;
        };
        let from = start + first * HOLE_BYTES;
        let run = data[from..].chunks(HOLE_BYTES).take_while(|chunk| is_worth_writing(chunk)).count();
        let to = data.len().min(from + run * HOLE_BYTES);
        write_all_at(file, &data[from..to], position + from as u64)?;
        end = Some(position + to as u64);
        start = to;
    }
    Ok(end)
}

/// Everything but whole blocks of zeros. A tail shorter than a block would need the block anyway.
fn is_worth_writing(chunk: &[u8]) -> bool {
    // Comparing slices is a vectorised memcmp.
    chunk.len() < HOLE_BYTES || chunk != ZEROS
}

fn write_all_at(file: &OwnedFd, mut data: &[u8], mut position: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, position) {
            Ok(count) => {
                data = &data[count..];
                position += count as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
