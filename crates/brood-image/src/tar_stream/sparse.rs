//! The four ways in which GNU tar stores files with holes.

use std::io::Read;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::pax::PaxRecords;
use super::{BLOCK_BYTES, TarEntry, TarError, TarReader};

/// Bytes that one piece of a map takes in memory, charged against the header limit.
const PIECE_BYTES: u64 = 16;

/// Where the stored bytes of a file belong: (offset, length) in bytes, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SparseMap(pub(crate) Vec<(u64, u64)>);

impl SparseMap {
    /// Pieces ascend, do not overlap, lie within the file and add up to what is stored.
    pub(super) fn check(&self, size_bytes: u64, stored_bytes: u64) -> Result<(), &'static str> {
        let mut end = 0;
        let mut total: u64 = 0;
        for (offset, length) in &self.0 {
            if *offset < end {
                return Err("the pieces of a sparse file overlap");
            }
            end = offset.checked_add(*length).ok_or("a piece of a sparse file wraps around")?;
            if end > size_bytes {
                return Err("a piece of a sparse file lies behind its end");
            }
            total += length;
        }
        if total == stored_bytes { Ok(()) } else { Err("the pieces of a sparse file do not add up to its data") }
    }
}

impl<R: Read> TarReader<R> {
    /// The old GNU form: four pieces in the header, more in blocks that follow it.
    pub(super) fn read_gnu_sparse(
        &mut self,
        header: &Header,
        entry: &mut TarEntry,
        mut charged: u64,
    ) -> Result<(), TarError> {
        let gnu = header.as_gnu().ok_or_else(|| self.corrupt("a sparse file without a GNU header"))?;
        entry.size_bytes = gnu.real_size().map_err(|_| self.corrupt("a sparse file's size is no number"))?;
        let mut pieces = Vec::new();
        self.push_pieces(&mut pieces, &gnu.sparse)?;
        let mut is_extended = gnu.is_extended();
        while is_extended {
            charged += BLOCK_BYTES;
            if charged > self.header_bytes_max {
                return Err(TarError::HeaderTooBig { limit: self.header_bytes_max });
            }
            let mut block = GnuExtSparseHeader::new();
            if (self.read_full(block.as_mut_bytes())? as u64) < BLOCK_BYTES {
                return Err(self.truncated("a sparse file's map ends early"));
            }
            self.push_pieces(&mut pieces, block.sparse())?;
            is_extended = block.is_extended();
        }
        entry.sparse = Some(SparseMap(pieces));
        Ok(())
    }

    fn push_pieces(&self, pieces: &mut Vec<(u64, u64)>, from: &[GnuSparseHeader]) -> Result<(), TarError> {
        for piece in from.iter().filter(|piece| !piece.is_empty()) {
            let offset = piece.offset().map_err(|_| self.corrupt("a sparse offset is no number"))?;
            let length = piece.length().map_err(|_| self.corrupt("a sparse length is no number"))?;
            pieces.push((offset, length));
        }
        Ok(())
    }

    /// The POSIX forms 0.0 and 0.1 (map in the extended header) and 1.0 (map in front of the data).
    pub(super) fn read_pax_sparse(
        &mut self,
        entry: &mut TarEntry,
        pax: &PaxRecords,
        charged: u64,
    ) -> Result<(), TarError> {
        let is_in_body = pax.number("GNU.sparse.major") == Some(1);
        let map = if is_in_body {
            self.read_map_in_body(charged)?
        } else if let Some(text) = pax.get("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = text.split(|byte| *byte == b',').map(parse_number).collect();
            pairs(&numbers.ok_or_else(|| self.corrupt("a sparse map is malformed"))?)
        } else if pax.get("GNU.sparse.numblocks").is_some() {
            let wanted = |key: &[u8]| key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes";
            let values = pax.iter().filter(|(key, _)| wanted(key)).map(|(_, value)| parse_number(value));
            let numbers: Option<Vec<u64>> = values.collect();
            pairs(&numbers.ok_or_else(|| self.corrupt("a sparse map is malformed"))?)
        } else {
            return Ok(());
        };
        let size_key = if is_in_body { "GNU.sparse.realsize" } else { "GNU.sparse.size" };
        entry.size_bytes = pax.number(size_key).ok_or_else(|| self.corrupt("a sparse file without a size"))?;
        if let Some(name) = pax.get("GNU.sparse.name") {
            entry.path = name.to_vec();
        }
        entry.sparse = Some(SparseMap(map));
        Ok(())
    }

    /// Decimal numbers, one a line: how many pieces, then offset and length of each; filled up to a whole block.
    fn read_map_in_body(&mut self, mut charged: u64) -> Result<Vec<(u64, u64)>, TarError> {
        let mut numbers = Vec::new();
        let mut partial = Vec::new();
        let mut wanted: Option<u64> = None;
        let mut block = [0; BLOCK_BYTES as usize];
        loop {
            let mut filled = 0;
            while filled < block.len() {
                let count = self.read_body(&mut block[filled..])?;
                if count == 0 {
                    return Err(self.corrupt("a sparse map is longer than its file"));
                }
                filled += count;
            }
            for byte in block {
                if wanted.is_some_and(|wanted| numbers.len() as u64 == wanted) {
                    break;
                }
                if byte != b'\n' {
                    partial.push(byte);
                    continue;
                }
                let number = parse_number(&partial).ok_or_else(|| self.corrupt("a sparse map is malformed"))?;
                partial.clear();
                if wanted.is_some() {
                    numbers.push(number);
                    charged += PIECE_BYTES / 2;
                } else {
                    wanted = Some(number.checked_mul(2).ok_or_else(|| self.corrupt("a sparse map is malformed"))?);
                }
            }
            if wanted.is_some_and(|wanted| numbers.len() as u64 == wanted) {
                return Ok(pairs(&numbers));
            }
            if charged > self.header_bytes_max || partial.len() > 20 {
                return Err(TarError::HeaderTooBig { limit: self.header_bytes_max });
            }
        }
    }
}

fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn pairs(numbers: &[u64]) -> Vec<(u64, u64)> {
    numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}
