//! Reads tar archives entry by entry, trusting none of their numbers.
//!
//! The numeric fields and header variants are decoded by the `tar` crate; walking from header to header is done here,
//! because extended headers must be bounded before they are read into memory and a size given in one must be believed
//! for the data and for the skip alike.

mod pax;
mod sparse;
mod writer;

use std::io::{self, Read};

use tar::{EntryType, Header};

pub(crate) use sparse::SparseMap;
pub(crate) use writer::TarWriter;

use crate::options::Limits;
use pax::PaxRecords;

/// Headers and data come in units of this many bytes.
pub(crate) const BLOCK_BYTES: u64 = 512;

/// What kind of file an entry describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    CharacterDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Directory,
    Fifo,
    Unknown(u8),
}

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Timestamp {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// One entry, as alleged by the archive.
#[derive(Debug, Clone)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
    pub(crate) user: u64,
    pub(crate) group: u64,
    pub(crate) modified: Timestamp,
    /// Size of the file, holes included, in bytes.
    pub(crate) size_bytes: u64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the stored bytes belong, if not at the front in one piece.
    pub(crate) sparse: Option<SparseMap>,
}

/// Why an archive could not be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    #[error("corrupt archive at byte {offset}: {reason}")]
    Corrupt { offset: u64, reason: &'static str },
    #[error("the archive is truncated at byte {offset}: {reason}")]
    Truncated { offset: u64, reason: &'static str },
    #[error("the headers of one entry exceed {limit} bytes")]
    HeaderTooBig { limit: u64 },
    #[error("cannot read the archive at byte {offset}")]
    Read { offset: u64, source: io::Error },
}

/// An archive being read.
pub(crate) struct TarReader<R> {
    source: R,
    /// Bytes consumed, for messages.
    offset: u64,
    /// Stored bytes of the current entry that were not read yet.
    body_left: u64,
    padding_left: u64,
    global: PaxRecords,
    header_bytes_max: u64,
    /// The end of input between two entries counts as the end of the archive. Only right where a digest of the whole
    /// is checked as well.
    end_marker_optional: bool,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(source: R, limits: &Limits, end_marker_optional: bool) -> Self {
        Self {
            source,
            offset: 0,
            body_left: 0,
            padding_left: 0,
            global: PaxRecords::default(),
            header_bytes_max: limits.header_bytes_max,
            end_marker_optional,
        }
    }

    /// The underlying reader, to drain what follows the end marker.
    pub(crate) fn into_inner(self) -> R {
        self.source
    }

    /// Byte offset of the current entry's data, for archives that are read again by position.
    pub(crate) fn position(&self) -> u64 {
        self.offset
    }

    /// The next entry, or `None` at the end marker. Whatever was left of the previous entry's data is skipped.
    pub(crate) fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        self.skip_body()?;
        let mut extended = ExtendedHeaders::default();
        loop {
            let Some(header) = self.read_header()? else {
                if extended.bytes > 0 {
                    return Err(self.corrupt("an extended header describes no entry"));
                }
                return Ok(None);
            };
            let size = header.entry_size().map_err(|_| self.corrupt("the size is no number"))?;
            match header.entry_type() {
                EntryType::GNULongName => extended.path = Some(self.read_text(size, &mut extended.bytes)?),
                EntryType::GNULongLink => extended.link = Some(self.read_text(size, &mut extended.bytes)?),
                EntryType::XHeader => {
                    let records = self.read_records(size, &mut extended.bytes)?;
                    extended.pax.merge(records);
                }
                EntryType::XGlobalHeader => {
                    let records = self.read_records(size, &mut extended.bytes)?;
                    self.global.merge(records);
                }
                _ => return self.finish_entry(&header, extended, size).map(Some),
            }
        }
    }

    /// Reads stored bytes of the current entry; 0 at their end.
    pub(crate) fn read_body(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let wanted = buffer.len().min(usize::try_from(self.body_left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.read_some(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(self.truncated("a file's data ends early"));
        }
        self.body_left -= count as u64;
        Ok(count)
    }

    fn finish_entry(&mut self, header: &Header, extended: ExtendedHeaders, size: u64) -> Result<TarEntry, TarError> {
        let pax = &extended.pax;
        let kind = self.kind(header)?;
        let number = |key: &str| pax.number(key).or_else(|| self.global.number(key));
        let stored_size = number("size").unwrap_or(size);
        let header_user = header.uid().map_err(|_| self.corrupt("the user id is no number"))?;
        let header_group = header.gid().map_err(|_| self.corrupt("the group id is no number"))?;
        let mut entry = TarEntry {
            path: extended.path.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: extended.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned()),
            kind,
            mode: header.mode().map_err(|_| self.corrupt("the mode is no number"))? & 0o7777,
            user: number("uid").unwrap_or(header_user),
            group: number("gid").unwrap_or(header_group),
            modified: pax.timestamp("mtime").unwrap_or_else(|| header_time(header)),
            size_bytes: stored_size,
            xattrs: Vec::new(),
            sparse: None,
        };
        if let Some(path) = pax.get("path").or_else(|| self.global.get("path")) {
            entry.path = path.to_vec();
        }
        if let Some(link) = pax.get("linkpath").or_else(|| self.global.get("linkpath")) {
            entry.link = link.to_vec();
        }
        entry.xattrs = pax.xattrs();
        // Archives from before POSIX mark a directory by its name alone.
        if header.as_old().linkflag == [0] && entry.path.ends_with(b"/") {
            entry.kind = EntryKind::Directory;
        }
        self.start_body(header, &mut entry, pax, stored_size, extended.bytes)?;
        Ok(entry)
    }

    fn start_body(
        &mut self,
        header: &Header,
        entry: &mut TarEntry,
        pax: &PaxRecords,
        stored_size: u64,
        header_bytes: u64,
    ) -> Result<(), TarError> {
        // Only files carry data; what the size field of a link or directory says is ignored, as Go's reader does,
        // which made most images.
        let has_body = matches!(entry.kind, EntryKind::File | EntryKind::Unknown(_));
        if !has_body {
            entry.size_bytes = 0;
            return Ok(());
        }
        if entry.kind == EntryKind::File && header.entry_type() == EntryType::GNUSparse {
            self.read_gnu_sparse(header, entry, header_bytes)?;
        }
        self.body_left = stored_size;
        self.padding_left = padding(stored_size);
        if entry.kind == EntryKind::File {
            self.read_pax_sparse(entry, pax, header_bytes)?;
        }
        if let Some(map) = &entry.sparse {
            map.check(entry.size_bytes, self.body_left).map_err(|reason| self.corrupt(reason))?;
        }
        Ok(())
    }

    fn kind(&self, header: &Header) -> Result<EntryKind, TarError> {
        let device = |number: io::Result<Option<u32>>| {
            number.map(Option::unwrap_or_default).map_err(|_| self.corrupt("a device number is no number"))
        };
        let numbers = || Ok::<_, TarError>((device(header.device_major())?, device(header.device_minor())?));
        Ok(match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => EntryKind::File,
            EntryType::Link => EntryKind::HardLink,
            EntryType::Symlink => EntryKind::Symlink,
            EntryType::Directory => EntryKind::Directory,
            EntryType::Fifo => EntryKind::Fifo,
            EntryType::Char => {
                let (major, minor) = numbers()?;
                EntryKind::CharacterDevice { major, minor }
            }
            EntryType::Block => {
                let (major, minor) = numbers()?;
                EntryKind::BlockDevice { major, minor }
            }
            other => EntryKind::Unknown(other.as_byte()),
        })
    }

    /// The next header block with a correct checksum; `None` at the end marker.
    fn read_header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        let count = self.read_full(header.as_mut_bytes())?;
        if count == 0 {
            return if self.end_marker_optional {
                Ok(None)
            } else {
                Err(self.truncated("the end-of-archive marker is missing"))
            };
        }
        if (count as u64) < BLOCK_BYTES {
            return Err(self.truncated("a header ends early"));
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let stated = header.cksum().map_err(|_| self.corrupt("this is no tar header"))?;
        if !checksums(header.as_bytes()).contains(&i64::from(stated)) {
            return Err(self.corrupt("a header's checksum is wrong"));
        }
        Ok(Some(header))
    }

    /// Reads the `size` bytes of an extended header, charging them to the entry they belong to.
    fn read_extended(&mut self, size: u64, charged: &mut u64) -> Result<Vec<u8>, TarError> {
        *charged = charged.saturating_add(size);
        if *charged > self.header_bytes_max {
            return Err(TarError::HeaderTooBig { limit: self.header_bytes_max });
        }
        self.body_left = size;
        self.padding_left = padding(size);
        let mut data = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let count = self.read_body(&mut chunk)?;
            if count == 0 {
                break;
            }
            data.extend_from_slice(&chunk[..count]);
        }
        self.skip_body()?;
        Ok(data)
    }

    fn read_text(&mut self, size: u64, charged: &mut u64) -> Result<Vec<u8>, TarError> {
        let mut text = self.read_extended(size, charged)?;
        // GNU terminates its long names with a zero byte.
        if text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    fn read_records(&mut self, size: u64, charged: &mut u64) -> Result<PaxRecords, TarError> {
        let data = self.read_extended(size, charged)?;
        PaxRecords::parse(&data).ok_or_else(|| self.corrupt("an extended header's record is malformed"))
    }

    fn skip_body(&mut self) -> Result<(), TarError> {
        if self.body_left > 0 {
            let mut buffer = [0; 8192];
            while self.read_body(&mut buffer)? > 0 {}
        }
        let mut padding = [0; BLOCK_BYTES as usize];
        let left = usize::try_from(self.padding_left).unwrap_or(0);
        if self.read_full(&mut padding[..left])? < left {
            return Err(self.truncated("the padding behind a file is missing"));
        }
        self.padding_left = 0;
        Ok(())
    }

    fn read_full(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let count = self.read_some(&mut buffer[filled..])?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        Ok(filled)
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        loop {
            match self.source.read(buffer) {
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(TarError::Read { offset: self.offset, source });
                }
            }
        }
    }

    fn corrupt(&self, reason: &'static str) -> TarError {
        TarError::Corrupt { offset: self.offset, reason }
    }

    fn truncated(&self, reason: &'static str) -> TarError {
        TarError::Truncated { offset: self.offset, reason }
    }
}

/// What the headers in front of an entry's own header said.
#[derive(Default)]
struct ExtendedHeaders {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: PaxRecords,
    bytes: u64,
}

/// Bytes from `size` to the next block.
fn padding(size: u64) -> u64 {
    (BLOCK_BYTES - size % BLOCK_BYTES) % BLOCK_BYTES
}

/// The sums that a header may state: of unsigned bytes, or of signed ones as some old writers had it.
fn checksums(header: &[u8; BLOCK_BYTES as usize]) -> [i64; 2] {
    const CHECKSUM_FIELD: std::ops::Range<usize> = 148..156;
    let bytes = header.iter().enumerate();
    let blanked = bytes.map(|(index, byte)| if CHECKSUM_FIELD.contains(&index) { b' ' } else { *byte });
    blanked
        .fold([0, 0], |[unsigned, signed], byte| [unsigned + i64::from(byte), signed + i64::from(byte.cast_signed())])
}

/// The modification time of a plain header. Times before 1970 are negative base-256 numbers.
fn header_time(header: &Header) -> Timestamp {
    let field = &header.as_old().mtime;
    let seconds = if field[0] == 0xff {
        let tail: [u8; 8] = field[4..].try_into().unwrap_or_default();
        i64::from_be_bytes(tail)
    } else {
        i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0)
    };
    Timestamp { seconds, nanoseconds: 0 }
}
