//! `dir:PATH`: a copy of a directory of the host.
//!
//! The directory is packed into a canonical archive (sorted, fixed form) that goes through a pipe into the same unpacker
//! as everything else, so that an unchanged directory gives the same layer and no second way of judging entries exists.
//! Other file systems mounted below are left out, as are sockets.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::Context;
use crate::config::ImageConfig;
use crate::layers::Promise;
use crate::progress::{ProgressItem, Stage};
use crate::tar_stream::{EntryKind, TarEntry, TarWriter, Timestamp};
use crate::{Image, ImageError};

/// Bytes handed to the pipe at once: its default capacity.
const PIPE_BYTES: usize = 64 << 10;

pub(super) fn fetch(path: &Path, context: &Context<'_>) -> Result<Image, ImageError> {
    let origin = &context.origin;
    let open_error = |source| ImageError::Open { origin: origin.clone(), path: path.to_owned(), source };
    let metadata = path.metadata().map_err(open_error)?;
    if !metadata.is_dir() {
        let (origin, path) = (origin.clone(), path.to_owned());
        return Err(ImageError::WrongKind { origin, path, found: "no directory", wanted: "a directory" });
    }
    let top = File::open(path).map_err(open_error)?;
    let item = ProgressItem { stage: Stage::Unpack, name: path.display().to_string() };
    let (reader, writer) = io::pipe().map_err(open_error)?;
    std::thread::scope(|scope| {
        let packer = scope.spawn(move || pack(&top, writer));
        let unpacked = context.store.unpack(reader, &Promise::default(), &item, context.progress);
        let packed = packer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (packed, unpacked) {
            // The packer's broken pipe follows from the unpacker's refusal; its other errors come first.
            (Err(error), _) if error.source.kind() != io::ErrorKind::BrokenPipe => {
                let path = path.join(error.path);
                Err(ImageError::Open { origin: origin.clone(), path, source: error.source })
            }
            (_, Err(error)) => Err(context.unpack_error("the copy of the directory")(error)),
            (_, Ok(layer)) => Ok(Image { layers: vec![layer], config: ImageConfig::default() }),
        }
    })
}

/// An error and the path below the top that it concerns.
struct PackError {
    path: std::path::PathBuf,
    source: io::Error,
}

fn pack(top: &File, sink: impl Write) -> Result<(), PackError> {
    let at_top = |source| PackError { path: ".".into(), source };
    let metadata = top.metadata().map_err(at_top)?;
    let writer = TarWriter::new(BufWriter::with_capacity(PIPE_BYTES, sink));
    let mut packer = Packer { writer, device: metadata.dev(), links: HashMap::new(), buffer: vec![0; PIPE_BYTES] };
    packer.add_top(top, &metadata)?;
    packer.writer.finish().map_err(at_top)?;
    Ok(())
}

struct Packer<W: Write> {
    writer: TarWriter<W>,
    device: u64,
    /// First path of each file that has several names.
    links: HashMap<u64, Vec<u8>>,
    buffer: Vec<u8>,
}

impl<W: Write> Packer<W> {
    fn add_top(&mut self, top: &File, metadata: &Metadata) -> Result<(), PackError> {
        let at_top = |source| PackError { path: ".".into(), source };
        let mut entry = describe(metadata, b"./".to_vec(), EntryKind::Directory);
        entry.xattrs = xattrs(top).map_err(at_top)?;
        self.writer.start_entry(&entry).map_err(at_top)?;
        self.add_contents(top, b"")
    }

    fn add_contents(&mut self, directory: &File, path: &[u8]) -> Result<(), PackError> {
        let at = |path: &[u8], source: io::Error| {
            let path = Path::new(std::ffi::OsStr::from_bytes(path)).to_owned();
            PackError { path, source }
        };
        for name in sorted_names(directory).map_err(|source| at(path, source))? {
            let inner = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            let added = self.add(directory, &name, inner.clone()).map_err(|source| at(&inner, source))?;
            if let Some(directory) = added {
                self.add_contents(&directory, &inner)?;
            }
        }
        Ok(())
    }

    /// Writes one entry; returns it open if it is a directory to go into.
    fn add(&mut self, parent: &File, name: &[u8], path: Vec<u8>) -> io::Result<Option<File>> {
        if name.starts_with(b".wh.") {
            let text = "names that begin with .wh. mark whiteouts in images; rename it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // Opened by path alone first: that has no effect on fifos and devices, and nothing can be swapped in between.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = File::from(rustix::fs::openat(parent, name, flags, Mode::empty())?);
        let metadata = handle.metadata()?;
        let file_type = metadata.file_type();
        if metadata.nlink() > 1 && !metadata.is_dir() && metadata.dev() == self.device {
            if let Some(first) = self.links.get(&metadata.ino()) {
                let mut entry = describe(&metadata, path, EntryKind::HardLink);
                entry.link.clone_from(first);
                entry.size_bytes = 0;
                self.writer.start_entry(&entry)?;
                return Ok(None);
            }
            self.links.insert(metadata.ino(), path.clone());
        }
        if file_type.is_dir() {
            let directory = reopen(&handle, OFlags::DIRECTORY)?;
            let mut entry = describe(&metadata, path, EntryKind::Directory);
            entry.xattrs = xattrs(&directory)?;
            self.writer.start_entry(&entry)?;
            return Ok((metadata.dev() == self.device).then_some(directory));
        }
        if file_type.is_file() {
            let file = reopen(&handle, OFlags::empty())?;
            self.add_file(file, path)?;
        } else if file_type.is_symlink() {
            let mut entry = describe(&metadata, path, EntryKind::Symlink);
            entry.link = rustix::fs::readlinkat(&handle, c"", Vec::new())?.into_bytes();
            self.writer.start_entry(&entry)?;
        } else if file_type.is_fifo() {
            self.writer.start_entry(&describe(&metadata, path, EntryKind::Fifo))?;
        } else if !file_type.is_socket() {
            let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
            let kind = if file_type.is_block_device() {
                EntryKind::BlockDevice { major, minor }
            } else {
                EntryKind::CharacterDevice { major, minor }
            };
            self.writer.start_entry(&describe(&metadata, path, kind))?;
        }
        Ok(None)
    }

    fn add_file(&mut self, mut file: File, path: Vec<u8>) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut entry = describe(&metadata, path, EntryKind::File);
        entry.size_bytes = metadata.len();
        entry.xattrs = xattrs(&file)?;
        self.writer.start_entry(&entry)?;
        let mut left = entry.size_bytes;
        while left > 0 {
            let wanted = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = file.read(&mut self.buffer[..wanted])?;
            if count == 0 {
                return Err(io::Error::other(
                    "the file shrank while it was copied; try again when nothing writes to it",
                ));
            }
            self.writer.write_body(&self.buffer[..count])?;
            left -= count as u64;
        }
        self.writer.finish_body(entry.size_bytes)
    }
}

fn describe(metadata: &Metadata, path: Vec<u8>, kind: EntryKind) -> TarEntry {
    TarEntry {
        path,
        link: Vec::new(),
        kind,
        mode: metadata.mode() & 0o7777,
        user: metadata.uid().into(),
        group: metadata.gid().into(),
        modified: Timestamp {
            seconds: metadata.mtime(),
            nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        },
        size_bytes: 0,
        xattrs: Vec::new(),
        sparse: None,
    }
}

/// Opens for reading what is open by path.
fn reopen(handle: &File, flags: OFlags) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC | flags;
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle.as_fd()));
    let opened: OwnedFd = rustix::fs::open(link, flags, Mode::empty())?;
    Ok(opened.into())
}

fn sorted_names(directory: &File) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// All extended attributes, sorted by name. The unpacker decides which are kept.
fn xattrs(file: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    /// The kernel's limit for a list of names and for a value, in bytes.
    const XATTR_BYTES_MAX: usize = 64 << 10;
    let mut probe = [0; 1024];
    let names = match rustix::fs::flistxattr(file, &mut probe[..]) {
        Ok(count) => probe[..count].to_vec(),
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(rustix::io::Errno::RANGE) => {
            let mut list = vec![0; XATTR_BYTES_MAX];
            let count = rustix::fs::flistxattr(file, &mut list[..])?;
            list.truncate(count);
            list
        }
        Err(errno) => return Err(errno.into()),
    };
    let mut xattrs = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let count = rustix::fs::fgetxattr(file, name, &mut value[..])?;
        value.truncate(count);
        xattrs.push((name.to_vec(), value));
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}
