//! Archives written byte by byte, as no honest tool would.

use tar::{EntryType, Header};

/// An archive in the making.
#[derive(Default, Clone)]
pub struct Crafted(Vec<u8>);

impl Crafted {
    pub fn new() -> Self {
        Self::default()
    }

    /// An entry whose header `edit` may spoil before the checksum is set.
    pub fn entry(mut self, path: &str, kind: EntryType, body: &[u8], edit: impl FnOnce(&mut Header)) -> Self {
        let mut header = Header::new_gnu();
        let name = &mut header.as_old_mut().name;
        assert!(path.len() < name.len(), "use a long name");
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(body.len() as u64);
        edit(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.raw(body)
    }

    /// Bytes, filled up to a whole block.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: &str, body: &str) -> Self {
        self.entry(path, EntryType::Regular, body.as_bytes(), |_| {})
    }

    pub fn dir(self, path: &str) -> Self {
        self.entry(path, EntryType::Directory, b"", |_| {})
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Symlink, b"", |header| set_link(header, target))
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Link, b"", |header| set_link(header, target))
    }

    pub fn device(self, path: &str, kind: EntryType, major: u32, minor: u32) -> Self {
        self.entry(path, kind, b"", |header| {
            header.set_device_major(major).unwrap();
            header.set_device_minor(minor).unwrap();
        })
    }

    /// Extended records for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest + 1..rest + 20).find(|length| length.to_string().len() + rest == *length).unwrap();
            body.extend_from_slice(format!("{length} {key}=").as_bytes());
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        self.entry("pax", EntryType::XHeader, &body, |_| {})
    }

    /// The archive with its end marker.
    pub fn finish(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }

    /// The archive as it is, without an end marker.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

fn set_link(header: &mut Header, target: &str) {
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
}
