//! What a `COPY` step copies: a file or directory of the host.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use brood_kernel::beneath::Root;

use crate::error::{EngineError, ErrorKind, Result};
use crate::files::{Files, Owner};

/// Bytes read at once while hashing.
const READ_BYTES: usize = 64 * 1024;

/// A source that exists, and where it goes.
#[derive(Debug)]
pub(crate) struct CopySource {
    path: PathBuf,
    is_directory: bool,
    /// The directory inside that entries are unpacked into.
    directory: PathBuf,
    /// The name of a file in that directory.
    name: PathBuf,
}

impl CopySource {
    /// As in Docker: a directory's content goes into the destination; a file becomes the
    /// destination, or goes into it when that ends in a slash.
    pub(crate) fn open(path: &Path, destination: &str) -> Result<Self> {
        let failed = |error| EngineError::system(format!("cannot copy {}", path.display()), error);
        let is_directory = std::fs::metadata(path).map_err(failed)?.is_dir();
        if !destination.starts_with('/') {
            let message = format!("destination {destination:?} of {} must be absolute", path.display());
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        let destination_path = Path::new(destination);
        let own_name = path.file_name().map(PathBuf::from).unwrap_or_default();
        let (directory, name) = if is_directory || destination.ends_with('/') {
            (destination_path.to_owned(), own_name)
        } else {
            let parent = destination_path.parent().unwrap_or(Path::new("/")).to_owned();
            (parent, destination_path.file_name().map(PathBuf::from).unwrap_or(own_name))
        };
        Ok(Self { path: path.to_owned(), is_directory, directory, name })
    }

    /// A hash of everything that decides what the copy looks like.
    pub(crate) fn digest(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.write_archive(HashWriter(&mut hasher)).map_err(|error| self.failed(error))?;
        hasher.update(self.directory.as_os_str().as_bytes());
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Copies into a root. The archive runs through a pipe: it may be larger than memory.
    pub(crate) fn copy_into(&self, files: &Files, owner: Owner) -> Result<()> {
        let (reader, writer) = io::pipe().map_err(|error| self.failed(error))?;
        std::thread::scope(|scope| {
            let packing = scope.spawn(move || self.write_archive(writer));
            let unpacked = files.copy_in(reader, &self.directory, owner);
            let packed = packing.join().unwrap_or_else(|_panic| Err(io::Error::other("packing panicked")));
            // A reader that gave up breaks the writer's pipe: its own error says more.
            unpacked.and_then(|()| packed.map_err(|error| self.failed(error)))
        })
    }

    fn failed(&self, error: io::Error) -> EngineError {
        EngineError::system(format!("cannot copy {}", self.path.display()), error)
    }

    /// Entries in a fixed order, without times, so that the hash of the same content is the same.
    fn write_archive(&self, writer: impl Write) -> io::Result<()> {
        let mut builder = tar::Builder::new(writer);
        if self.is_directory {
            let root = Root::open(&self.path).map_err(io::Error::other)?;
            for entry in root.walk(Path::new(".")).map_err(io::Error::other)? {
                let entry = entry.map_err(io::Error::other)?;
                append(&mut builder, &self.path.join(&entry.path), &entry.path)?;
            }
        } else {
            append(&mut builder, &self.path, &self.name)?;
        }
        builder.into_inner()?.flush()
    }
}

fn append(builder: &mut tar::Builder<impl Write>, path: &Path, name: &Path) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(path)?;
    let mut header = tar::Header::new_gnu();
    header.set_mode(metadata.permissions().mode() & 0o7777);
    header.set_mtime(0);
    header.set_size(0);
    if name.as_os_str().is_empty() || name == Path::new(".") {
        return Ok(());
    }
    if metadata.is_dir() {
        header.set_entry_type(tar::EntryType::Directory);
        builder.append_data(&mut header, name, io::empty())
    } else if metadata.is_symlink() {
        header.set_entry_type(tar::EntryType::Symlink);
        builder.append_link(&mut header, name, std::fs::read_link(path)?)
    } else if metadata.is_file() {
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(metadata.len());
        builder.append_data(&mut header, name, File::open(path)?.take(metadata.len()))
    } else {
        Err(io::Error::other(format!("{} is no file, directory or link", path.display())))
    }
}

struct HashWriter<'h>(&'h mut blake3::Hasher);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(READ_BYTES);
        self.0.update(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
