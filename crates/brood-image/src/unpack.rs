//! Turns one layer archive into a directory that an overlay can use as a lower layer.
//!
//! The archive is hostile. Nothing of it is resolved by the kernel outside the root of the new layer: every parent
//! directory is opened by [`tree::Tree`], which lets no symbolic link lead out, and the last component of a path is
//! never followed. Whiteouts take the form that overlayfs knows, owners are shifted, device nodes never appear.

mod attributes;
mod error;
mod file;
mod path;
mod tree;
mod whiteout;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

pub use error::{Refusal, UnpackError};

use crate::options::{IdShift, Limits};
use crate::tar_stream::{EntryKind, TarEntry, TarReader, Timestamp};
use attributes::Attributes;
use error::IoContext as _;
use path::EntryPath;
use tree::{Existing, Tree};
use whiteout::Marker;

/// What was left out or changed while unpacking a layer, and how much there was of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerNotes {
    /// Entries in the archive.
    pub entries: u64,
    /// Sum of the sizes of its files, in bytes, holes included.
    pub file_bytes: u64,
    /// Device nodes of the standard set (`/dev/null` and the like) that were left out: every sandbox has its own.
    pub devices_skipped: u64,
    /// Entries whose owner or group lay outside the range and became nobody.
    pub owners_replaced: u64,
    /// Extended attributes that are not taken over from images.
    pub xattrs_skipped: u64,
    /// The layer hides everything below it.
    pub opaque_root: bool,
}

/// Unpacks the archive that `source` yields into the empty directory `root`.
///
/// On an error the directory holds a part of the layer; the caller removes it. Returns the reader, positioned behind the
/// end marker.
pub(crate) fn unpack_archive<R: Read>(
    source: R,
    root: OwnedFd,
    shift: IdShift,
    limits: &Limits,
    end_marker_optional: bool,
) -> Result<(LayerNotes, R), UnpackError> {
    let mut reader = TarReader::new(source, limits, end_marker_optional);
    let mut unpacker = Unpacker::new(root, shift, limits)?;
    while let Some(entry) = reader.next_entry()? {
        unpacker.add(&entry, &mut reader)?;
    }
    Ok((unpacker.finish()?, reader.into_inner()))
}

struct Unpacker<'a> {
    tree: Tree,
    shift: IdShift,
    limits: &'a Limits,
    notes: LayerNotes,
    /// Directories whose time is set at the end, because making files in them changes it.
    directory_times: Vec<(EntryPath, Timestamp)>,
    buffer: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    fn new(root: OwnedFd, shift: IdShift, limits: &'a Limits) -> Result<Self, UnpackError> {
        let unpacker = Self {
            tree: Tree::new(root, shift.shift(0).0, limits.depth_max),
            shift,
            limits,
            notes: LayerNotes::default(),
            directory_times: Vec::new(),
            buffer: vec![0; file::BUFFER_BYTES],
        };
        unpacker.tree.prepare_root()?;
        Ok(unpacker)
    }

    fn add<R: Read>(&mut self, entry: &TarEntry, reader: &mut TarReader<R>) -> Result<(), UnpackError> {
        self.charge(entry)?;
        let path = EntryPath::parse(&entry.path, self.limits)?;
        let Some(name) = path.name() else {
            return if entry.kind == EntryKind::Directory {
                self.add_directory(entry, &path)
            } else {
                Err(path.refuse(Refusal::NoName))
            };
        };
        match whiteout::marker(name, &path)? {
            Some(marker) => return self.add_marker(&marker, &path),
            None => path.check_parents()?,
        }
        match entry.kind {
            EntryKind::File => self.add_file(entry, &path, reader),
            EntryKind::Directory => self.add_directory(entry, &path),
            EntryKind::Symlink => self.add_symlink(entry, &path),
            EntryKind::HardLink => self.add_hard_link(entry, &path),
            EntryKind::Fifo => self.add_fifo(entry, &path),
            EntryKind::CharacterDevice { major, minor } if is_standard_device(major, minor) => {
                self.notes.devices_skipped += 1;
                Ok(())
            }
            EntryKind::CharacterDevice { major, minor } => Err(path.refuse(Refusal::Device { major, minor })),
            EntryKind::BlockDevice { major, minor } => Err(path.refuse(Refusal::BlockDevice { major, minor })),
            EntryKind::Unknown(kind) => Err(path.refuse(Refusal::UnknownKind { kind: char::from(kind) })),
        }
    }

    /// Counts the entry against the limits, before anything of it is made.
    fn charge(&mut self, entry: &TarEntry) -> Result<(), UnpackError> {
        self.notes.entries += 1;
        if self.notes.entries > self.limits.entries_max {
            return Err(UnpackError::Limit { what: "entries", limit: self.limits.entries_max });
        }
        self.notes.file_bytes = self.notes.file_bytes.saturating_add(entry.size_bytes);
        if self.notes.file_bytes > self.limits.layer_bytes_max {
            return Err(UnpackError::Limit { what: "bytes of files", limit: self.limits.layer_bytes_max });
        }
        Ok(())
    }

    fn attributes(&mut self, entry: &TarEntry, path: &EntryPath) -> Result<Attributes, UnpackError> {
        Attributes::judge(entry, path, self.shift, self.limits, &mut self.notes)
    }

    fn add_file<R: Read>(
        &mut self,
        entry: &TarEntry,
        path: &EntryPath,
        reader: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let attributes = self.attributes(entry, path)?;
        let (parent, name) = self.parent_of(path)?;
        let file = match tree::create_file(&parent, name) {
            Err(rustix::io::Errno::EXIST) => {
                self.tree.remove_existing(&parent, path)?;
                tree::create_file(&parent, name)
            }
            other => other,
        }
        .at("create", path)?;
        file::write_body(&file, entry, reader, path, &mut self.buffer)?;
        attributes.apply_to(&file, path)?;
        rustix::fs::futimens(&file, &times(entry.modified)).at("set the times of", path)
    }

    fn add_directory(&mut self, entry: &TarEntry, path: &EntryPath) -> Result<(), UnpackError> {
        let attributes = self.attributes(entry, path)?;
        let directory = if path.name().is_none() {
            self.tree.open_root()?
        } else {
            let (parent, name) = self.parent_of(path)?;
            let hides_lower = match self.tree.existing(&parent, path)? {
                Existing::Nothing => Some(false),
                Existing::Directory => None,
                Existing::Whiteout => {
                    self.tree.remove_existing(&parent, path)?;
                    Some(true)
                }
                Existing::Other => {
                    self.tree.remove_existing(&parent, path)?;
                    Some(false)
                }
            };
            if hides_lower.is_some() {
                rustix::fs::mkdirat(&parent, name, Mode::RWXU).at("make the directory", path)?;
            }
            let directory = tree::open_directory(&parent, name).at("open the directory", path)?;
            if hides_lower == Some(true) {
                whiteout::set_opaque(&directory, path)?;
            }
            directory
        };
        attributes.apply_to(&directory, path)?;
        self.directory_times.push((path.clone(), entry.modified));
        Ok(())
    }

    fn add_symlink(&mut self, entry: &TarEntry, path: &EntryPath) -> Result<(), UnpackError> {
        // Where the link points is its own affair: it is only ever followed inside the sandbox.
        if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > self.limits.path_bytes_max {
            return Err(path.refuse(Refusal::LinkTarget));
        }
        let attributes = self.attributes(entry, path)?;
        let (parent, name) = self.parent_of(path)?;
        match rustix::fs::symlinkat(&*entry.link, &parent, name) {
            Err(rustix::io::Errno::EXIST) => {
                self.tree.remove_existing(&parent, path)?;
                rustix::fs::symlinkat(&*entry.link, &parent, name)
            }
            other => other,
        }
        .at("make the symbolic link", path)?;
        attributes.own_at(&parent, name, path)?;
        rustix::fs::utimensat(&parent, name, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)
            .at("set the times of", path)
    }

    fn add_fifo(&mut self, entry: &TarEntry, path: &EntryPath) -> Result<(), UnpackError> {
        let attributes = self.attributes(entry, path)?;
        let (parent, name) = self.parent_of(path)?;
        if !matches!(self.tree.existing(&parent, path)?, Existing::Nothing) {
            self.tree.remove_existing(&parent, path)?;
        }
        rustix::fs::mknodat(&parent, name, FileType::Fifo, Mode::RUSR, 0).at("make the fifo", path)?;
        attributes.own_at(&parent, name, path)?;
        rustix::fs::chmodat(&parent, name, attributes.mode(), AtFlags::empty()).at("set the mode of", path)?;
        rustix::fs::utimensat(&parent, name, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)
            .at("set the times of", path)
    }

    fn add_hard_link(&mut self, entry: &TarEntry, path: &EntryPath) -> Result<(), UnpackError> {
        let target = EntryPath::parse_target(&entry.link, path, self.limits)?;
        let Some(target_name) = target.name() else {
            return Err(path.refuse(Refusal::HardLinkTarget { target: target.to_string() }));
        };
        let (parent, name) = self.parent_of(path)?;
        let refused = || path.refuse(Refusal::HardLinkTarget { target: target.to_string() });
        let target_parent = self.tree.existing_parent(&target)?.ok_or_else(refused)?;
        let Some(target_inode) = tree::linkable_inode(&target_parent, target_name) else {
            return Err(refused());
        };
        let link = || rustix::fs::linkat(&target_parent, target_name, &parent, name, AtFlags::empty());
        match link() {
            Err(rustix::io::Errno::EXIST) => {
                if tree::linkable_inode(&parent, name) == Some(target_inode) {
                    return Ok(());
                }
                self.tree.remove_existing(&parent, path)?;
                link().map_err(|_| refused())
            }
            other => other.at("make the hard link", path),
        }
    }

    fn add_marker(&mut self, marker: &Marker, path: &EntryPath) -> Result<(), UnpackError> {
        path.check_parents()?;
        let Some(parent) = self.tree.parent_of_mark(path)? else { return Ok(()) };
        match marker {
            Marker::Ignored => {}
            Marker::Opaque => {
                whiteout::set_opaque(&tree::reopen_directory(&parent).at("open the parent of", path)?, path)?;
                self.notes.opaque_root |= path.depth() == 1;
            }
            Marker::Whiteout(hidden) => {
                let hidden = path.sibling(hidden);
                match self.tree.existing(&parent, &hidden)? {
                    Existing::Nothing => whiteout::make(&parent, &hidden)?,
                    // What this layer itself brings stays, whichever came first; only what lies below is hidden.
                    Existing::Directory => {
                        let name = hidden.name().unwrap_or_default();
                        let directory = tree::open_directory(&parent, name).at("open the directory", &hidden)?;
                        whiteout::set_opaque(&directory, &hidden)?;
                    }
                    Existing::Whiteout | Existing::Other => {}
                }
            }
        }
        Ok(())
    }

    /// The open parent directory of `path`, made if missing, and its last component.
    fn parent_of<'p>(&mut self, path: &'p EntryPath) -> Result<(tree::Directory, &'p [u8]), UnpackError> {
        let parent = self.tree.parent(path)?;
        Ok((parent, path.name().unwrap_or_default()))
    }

    fn finish(mut self) -> Result<LayerNotes, UnpackError> {
        for (path, time) in std::mem::take(&mut self.directory_times) {
            // A later entry may have replaced the directory.
            let Some(directory) = self.tree.existing_directory(&path)? else {
                continue;
            };
            rustix::fs::futimens(directory.as_fd(), &times(time)).at("set the times of", &path)?;
        }
        Ok(self.notes)
    }
}

/// Access time equals modification time: a layer is the same whenever it is unpacked.
fn times(time: Timestamp) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

/// null, zero, full, random, urandom; tty, console, ptmx: what `debootstrap` puts into `/dev` and every sandbox has.
fn is_standard_device(major: u32, minor: u32) -> bool {
    matches!((major, minor), (1, 3 | 5 | 7 | 8 | 9) | (5, 0..=2))
}
