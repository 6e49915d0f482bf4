//! Stacks as layers of OCI images: tar streams in which `.wh.NAME` says that
//! NAME was removed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use tar::{Builder, EntryType, Header};

use crate::attributes;
use crate::diff::{Change, ChangeKind, Diff};
use crate::error::{Named, Result, StoreError};
use crate::tree::{Directory, FileTree, Found, Node, OpenDirectory};

/// Leads the name of what was removed, in the OCI format.
const WHITEOUT: &str = ".wh.";

/// Ids of one sandbox; above them nothing belongs to it.
const IDS: u32 = 65_536;

/// The id that stands for all that have none.
const NOBODY: u32 = 65_534;

/// Prefix of extended attributes in PAX records.
const PAX_ATTRIBUTE: &str = "SCHILY.xattr.";

/// Writes the difference from `old` to `new` to `output` as an uncompressed
/// layer of an OCI image, and returns `output`. For a layer with everything
/// in it `old` is the tree of an empty stack; leave the system layers out of
/// both. Neither may change meanwhile.
///
/// Owners are shifted back by `id_base`. Sockets are left out, and so are
/// paths of which only the times differ.
///
/// # Errors
/// [`StoreError::NotExportable`] for names that the format cannot express, or
/// as reading files and writing to `output`.
pub fn export_layer<W: Write>(old: FileTree, new: FileTree, id_base: u32, output: W) -> Result<W> {
    let mut diff = Diff::new(old, new);
    let mut export = Export { builder: Builder::new(output), id_base, linked: HashMap::new(), parent: None };
    while let Some(change) = diff.next() {
        let change = change?;
        export.add(diff.new_tree(), &change)?;
    }
    export.builder.into_inner().named("write", Path::new("the exported layer"))
}

struct Export<W: Write> {
    builder: Builder<W>,
    id_base: u32,
    /// First path of each file with several links.
    linked: HashMap<(u64, u64), PathBuf>,
    /// The directory looked up last: the next change is mostly in it too.
    parent: Option<(PathBuf, Option<Directory>)>,
}

impl<W: Write> Export<W> {
    fn add(&mut self, tree: &FileTree, change: &Change) -> Result<()> {
        let (Some(parent), Some(name)) = (change.path.parent(), change.path.file_name()) else { return Ok(()) };
        if name.as_bytes().starts_with(WHITEOUT.as_bytes()) {
            return Err(StoreError::NotExportable { path: change.path.clone() });
        }
        // Gone, or no directory any more: then that says it all.
        let Some(directory) = self.directory(tree, parent)? else { return Ok(()) };
        if change.kind == ChangeKind::Deleted {
            let mut whiteout = OsString::from(WHITEOUT);
            whiteout.push(name);
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o600);
            header.set_size(0);
            return self.written(&change.path, |builder| {
                builder.append_data(&mut header, parent.join(&whiteout), std::io::empty())
            });
        }
        let open = OpenDirectory::new(tree, &directory);
        match open.child(name)? {
            Some(Node::Directory(child, status)) => {
                let Some(top) = open.open_top(&child)? else { return Ok(()) };
                let inside = brood_kernel::mount::descriptor_path(top.as_fd()).join(".");
                self.add_object(&change.path, &status, &inside, EntryType::Directory)
            }
            Some(Node::File(found)) => self.add_file(&open, &change.path, &found),
            None | Some(Node::Whiteout(_)) => Ok(()),
        }
    }

    fn directory(&mut self, tree: &FileTree, path: &Path) -> Result<Option<Directory>> {
        match &self.parent {
            Some((known, directory)) if known == path => Ok(directory.clone()),
            _ => {
                let directory = tree.find_directory(path)?;
                self.parent = Some((path.to_owned(), directory.clone()));
                Ok(directory)
            }
        }
    }

    fn add_file(&mut self, open: &OpenDirectory<'_>, path: &Path, found: &Found) -> Result<()> {
        let name = path.file_name().unwrap_or_default();
        let (Some(host), Some(part)) = (open.path_of(found.part, name)?, open.part(found.part)?) else { return Ok(()) };
        let status = &found.status;
        if status.st_nlink > 1 {
            let key = (status.st_dev, status.st_ino);
            if let Some(first) = self.linked.get(&key).cloned() {
                let mut header = self.header(status, EntryType::Link);
                return self.written(path, |builder| builder.append_link(&mut header, path, first));
            }
            self.linked.insert(key, path.to_owned());
        }
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => {
                self.add_attributes(path, &host)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(part, name, flags, Mode::empty()).named("open", path)?;
                let mut header = self.header(status, EntryType::Regular);
                let bytes = u64::try_from(status.st_size).unwrap_or(0);
                header.set_size(bytes);
                // Exactly as long as announced, whatever the file does.
                let content = File::from(file).chain(std::io::repeat(0)).take(bytes);
                self.written(path, |builder| builder.append_data(&mut header, path, content))
            }
            FileType::Symlink => {
                let target = std::fs::read_link(&host).named("read link", path)?;
                let mut header = self.header(status, EntryType::Symlink);
                self.written(path, |builder| builder.append_link(&mut header, path, target))
            }
            FileType::Fifo => self.add_object(path, status, &host, EntryType::Fifo),
            FileType::CharacterDevice => self.add_object(path, status, &host, EntryType::Char),
            FileType::BlockDevice => self.add_object(path, status, &host, EntryType::Block),
            _ => Ok(()),
        }
    }

    /// Adds something without content.
    fn add_object(&mut self, path: &Path, status: &Stat, host: &Path, kind: EntryType) -> Result<()> {
        self.add_attributes(path, host)?;
        let mut header = self.header(status, kind);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(major(status.st_rdev)).named("device number of", path)?;
            header.set_device_minor(minor(status.st_rdev)).named("device number of", path)?;
        }
        self.written(path, |builder| builder.append_data(&mut header, path, std::io::empty()))
    }

    fn add_attributes(&mut self, path: &Path, host: &Path) -> Result<()> {
        let attributes = attributes::read(host)?;
        if attributes.is_empty() {
            return Ok(());
        }
        let named: Vec<(String, &Vec<u8>)> = attributes
            .iter()
            .map(|(name, value)| (format!("{PAX_ATTRIBUTE}{}", String::from_utf8_lossy(name)), value))
            .collect();
        let records = named.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.written(path, |builder| builder.append_pax_extensions(records))
    }

    fn header(&self, status: &Stat, kind: EntryType) -> Header {
        let inside = |id: u32| match id.checked_sub(self.id_base) {
            Some(inside) if inside < IDS => inside,
            _ => NOBODY,
        };
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(status.st_mode & 0o7777);
        header.set_uid(inside(status.st_uid).into());
        header.set_gid(inside(status.st_gid).into());
        header.set_mtime(u64::try_from(status.st_mtime).unwrap_or(0));
        header.set_size(0);
        header
    }

    fn written(&mut self, path: &Path, write: impl FnOnce(&mut Builder<W>) -> std::io::Result<()>) -> Result<()> {
        write(&mut self.builder).named("export", path)
    }
}
