//! Writes tar archives in one canonical form: the same tree always gives the same bytes.

use std::io::{self, Write};

use tar::{EntryType, Header};

use super::{BLOCK_BYTES, EntryKind, TarEntry, padding};

/// Largest number that a plain octal size field of eleven digits holds.
const OCTAL_SIZE_MAX: u64 = 0o77_777_777_777;
/// Largest id that a plain octal field of seven digits holds.
const OCTAL_ID_MAX: u64 = 0o7_777_777;

/// An archive being written. Every entry carries an extended header with its path, exact time and attributes.
pub(crate) struct TarWriter<W> {
    sink: W,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(sink: W) -> Self {
        Self { sink }
    }

    /// Writes the headers of `entry`. Exactly `entry.size_bytes` bytes of data must follow by [`Self::write_body`].
    pub(crate) fn start_entry(&mut self, entry: &TarEntry) -> io::Result<()> {
        let records = records(entry);
        let mut extended = Header::new_ustar();
        extended.set_entry_type(EntryType::XHeader);
        extended.set_size(records.len() as u64);
        extended.set_cksum();
        self.sink.write_all(extended.as_bytes())?;
        self.sink.write_all(&records)?;
        self.finish_body(records.len() as u64)?;

        let mut header = Header::new_ustar();
        header.set_entry_type(entry_type(entry.kind));
        header.set_mode(entry.mode);
        header.set_uid(entry.user.min(OCTAL_ID_MAX));
        header.set_gid(entry.group.min(OCTAL_ID_MAX));
        header.set_size(entry.size_bytes.min(OCTAL_SIZE_MAX));
        header.set_mtime(u64::try_from(entry.modified.seconds).unwrap_or(0));
        if let EntryKind::CharacterDevice { major, minor } | EntryKind::BlockDevice { major, minor } = entry.kind {
            header.set_device_major(major)?;
            header.set_device_minor(minor)?;
        }
        header.set_cksum();
        self.sink.write_all(header.as_bytes())
    }

    pub(crate) fn write_body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)
    }

    /// Fills up to a whole block behind a body of `size_bytes`.
    pub(crate) fn finish_body(&mut self, size_bytes: u64) -> io::Result<()> {
        let zeros = [0; BLOCK_BYTES as usize];
        self.sink.write_all(&zeros[..usize::try_from(padding(size_bytes)).unwrap_or(0)])
    }

    /// Writes the end marker.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.sink.write_all(&[0; 2 * BLOCK_BYTES as usize])?;
        self.sink.flush()?;
        Ok(self.sink)
    }
}

fn entry_type(kind: EntryKind) -> EntryType {
    match kind {
        EntryKind::File => EntryType::Regular,
        EntryKind::HardLink => EntryType::Link,
        EntryKind::Symlink => EntryType::Symlink,
        EntryKind::CharacterDevice { .. } => EntryType::Char,
        EntryKind::BlockDevice { .. } => EntryType::Block,
        EntryKind::Directory => EntryType::Directory,
        EntryKind::Fifo => EntryType::Fifo,
        EntryKind::Unknown(byte) => EntryType::new(byte),
    }
}

fn records(entry: &TarEntry) -> Vec<u8> {
    let mut out = Vec::new();
    push_record(&mut out, b"path", &entry.path);
    if !entry.link.is_empty() {
        push_record(&mut out, b"linkpath", &entry.link);
    }
    push_record(&mut out, b"mtime", timestamp(entry).as_bytes());
    if entry.user > OCTAL_ID_MAX {
        push_record(&mut out, b"uid", entry.user.to_string().as_bytes());
    }
    if entry.group > OCTAL_ID_MAX {
        push_record(&mut out, b"gid", entry.group.to_string().as_bytes());
    }
    if entry.size_bytes > OCTAL_SIZE_MAX {
        push_record(&mut out, b"size", entry.size_bytes.to_string().as_bytes());
    }
    for (name, value) in &entry.xattrs {
        push_record(&mut out, &[b"SCHILY.xattr.", name.as_slice()].concat(), value);
    }
    out
}

fn timestamp(entry: &TarEntry) -> String {
    let time = entry.modified;
    if time.seconds < 0 && time.nanoseconds > 0 {
        // Text counts the fraction away from zero.
        let whole = time.seconds + 1;
        let sign = if whole == 0 { "-" } else { "" };
        format!("{sign}{whole}.{:09}", 1_000_000_000 - time.nanoseconds)
    } else {
        format!("{}.{:09}", time.seconds, time.nanoseconds)
    }
}

/// Appends `LENGTH KEY=VALUE\n`, where the length counts its own digits.
pub(super) fn push_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    out.extend_from_slice(format!("{length} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}
