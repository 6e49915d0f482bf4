//! The directory of unpacked layers: one directory per layer, complete or absent.
//!
//! ```text
//! layers_dir/
//!   <hex of the diff id>/tree/         the layer: a lower directory for overlays
//!   <hex of the diff id>/layer.json    size, notes, range of ids
//!   .partial-<random>/                 being unpacked, locked by who does it
//!   .lock-<hex of the diff id>         held while that layer is unpacked
//!   .lock                              held for an instant while a .partial directory is made or judged
//! ```
//!
//! A layer appears by one rename of a complete, flushed directory; [`Scratch`] takes care of what is not complete.
//!
//! Lock order: the lock of a digest, then `.lock`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::compression::{Decompressor, Guard};
use crate::digest::{Digest, HashingReader};
use crate::lock::LockFile;
use crate::options::{IdShift, UnpackOptions};
use crate::pipeline;
use crate::progress::{Progress, ProgressItem};
use crate::scratch::Scratch;
use crate::unpack::{LayerNotes, UnpackError, unpack_archive};

/// Name of the layer itself within its directory.
const TREE_NAME: &str = "tree";
/// Name of the description within a layer's directory.
const DESCRIPTION_NAME: &str = "layer.json";
/// Raised when the same archive would be unpacked to something else.
const FORMAT: u32 = 1;

/// An unpacked layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLayer {
    /// Digest of the uncompressed archive: the layer's identity.
    pub diff_id: Digest,
    /// The directory to mount as a lower layer. Never written to again.
    pub path: PathBuf,
    /// Sum of its files' sizes in bytes.
    pub bytes: u64,
    /// What was left out or changed.
    pub notes: LayerNotes,
}

#[derive(Serialize, Deserialize)]
struct Description {
    format: u32,
    id_base: u32,
    id_count: u32,
    notes: LayerNotes,
}

/// What is promised about an archive, to be checked before its layer appears.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Promise {
    /// Digest of the bytes as stored (compressed).
    pub(crate) blob: Option<Digest>,
    /// Digest of the uncompressed bytes.
    pub(crate) diff_id: Option<Digest>,
    /// Size of the bytes as stored.
    pub(crate) blob_bytes: Option<u64>,
}

/// The directory of unpacked layers, open for use.
#[derive(Debug, Clone)]
pub struct LayerStore {
    options: UnpackOptions,
}

impl LayerStore {
    /// Makes the directory if it is missing, and removes what killed processes left half-made.
    pub fn open(options: &UnpackOptions) -> Result<Self, UnpackError> {
        let shift = options.id_shift;
        if !shift.is_valid() {
            return Err(UnpackError::IdRange { base: shift.base, count: shift.count });
        }
        let dir = &options.layers_dir;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| io_error("make the directory", dir, source))?;
        let store = Self { options: options.clone() };
        Scratch::remove_stale(dir).map_err(|source| io_error("clean up", dir, source))?;
        Ok(store)
    }

    /// The layer `diff_id`, if it is there.
    pub fn get(&self, diff_id: &Digest) -> Result<Option<ImageLayer>, UnpackError> {
        let path = self.layer_dir(diff_id).join(DESCRIPTION_NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io_error("read", &path, source)),
        };
        let description: Description =
            serde_json::from_slice(&text).map_err(|error| io_error("understand", &path, io::Error::other(error)))?;
        if description.format != FORMAT {
            return Err(UnpackError::OtherFormat { digest: *diff_id, found: description.format, wanted: FORMAT });
        }
        let wanted = self.options.id_shift;
        let found = IdShift { base: description.id_base, count: description.id_count };
        if found != wanted {
            return Err(UnpackError::OtherIdRange { digest: *diff_id, found, wanted });
        }
        Ok(Some(self.layer(diff_id, description.notes)))
    }

    /// All complete layers.
    pub fn list(&self) -> Result<Vec<Digest>, UnpackError> {
        let dir = &self.options.layers_dir;
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(|source| io_error("list", dir, source))? {
            let entry = entry.map_err(|source| io_error("list", dir, source))?;
            if let Some(digest) = entry.file_name().to_str().and_then(|name| Digest::from_hex(name).ok()) {
                found.push(digest);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Removes a layer; `false` if there is none. The caller knows that no overlay uses it.
    pub fn remove(&self, diff_id: &Digest) -> Result<bool, UnpackError> {
        let _locked = self.lock_digest(diff_id)?;
        let partial = self.make_partial()?;
        let from = self.layer_dir(diff_id);
        match fs::rename(&from, partial.path().join("removed")) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(io_error("remove the layer", &from, source)),
        }
    }

    /// Unpacks the archive that `source` yields (plain, gzip, zstd or xz) unless its layer is there already, and returns
    /// the layer. Checks all that is promised before the layer appears.
    pub(crate) fn unpack(
        &self,
        source: impl Read + Send,
        promise: &Promise,
        item: &ProgressItem,
        progress: &dyn Progress,
    ) -> Result<ImageLayer, UnpackError> {
        // Held to the end, so that a second unpack of this digest waits and then finds the layer.
        let locked = promise.diff_id.map(|diff_id| self.lock_digest(&diff_id)).transpose()?;
        if let Some(diff_id) = &promise.diff_id
            && let Some(layer) = self.get(diff_id)?
        {
            return Ok(layer);
        }
        let partial = self.make_partial()?;
        progress.started(item, promise.blob_bytes);
        let counted = Counted { inner: source, item, progress };
        let (diff_id, notes) = self.unpack_into(&partial, counted, promise, progress)?;
        let locked = match locked {
            Some(locked) => locked,
            None => self.lock_digest(&diff_id)?,
        };
        let layer = match self.get(&diff_id)? {
            Some(layer) => layer,
            None => self.commit(&partial, &diff_id, notes)?,
        };
        drop(locked);
        progress.finished(item);
        Ok(layer)
    }

    fn unpack_into(
        &self,
        partial: &Scratch,
        source: impl Read + Send,
        promise: &Promise,
        progress: &dyn Progress,
    ) -> Result<(Digest, LayerNotes), UnpackError> {
        let limits = &self.options.limits;
        let tree = make_tree(partial)?;
        let (digests, unpacked) = pipeline::run(
            |sink| {
                let mut plain = Decompressor::new(HashingReader::new(source))?;
                // Hashing is much of the work: what is stored plain has one digest, and one that nobody checks has none.
                let is_plain = plain.is_plain();
                if is_plain || promise.blob.is_none() {
                    plain.source_mut().stop_hashing();
                }
                let mut hashed = HashingReader::new(Guard::new(plain, limits, progress, promise.blob_bytes));
                sink.pass(&mut hashed)?;
                let (diff_id, guarded) = hashed.finish();
                // What follows the compressed data belongs to the blob.
                let mut compressed = guarded.into_inner().into_inner();
                io::copy(&mut compressed, &mut io::sink())?;
                let (blob, _) = compressed.into_inner().finish();
                let diff_id = diff_id.ok_or_else(|| io::Error::other("not hashed"))?;
                let blob = if is_plain { Some(diff_id) } else { blob };
                Ok((diff_id, blob))
            },
            |reader| {
                let optional = promise.diff_id.is_some();
                let (notes, mut rest) = unpack_archive(reader, tree, self.options.id_shift, limits, optional)?;
                // What follows the end marker belongs to the digests.
                io::copy(&mut rest, &mut io::sink()).map_err(read_error)?;
                Ok::<_, UnpackError>(notes)
            },
        );
        let notes = unpacked?;
        let broken = || UnpackError::Corrupt("the archive broke off behind its end marker".to_owned());
        let (diff_id, blob) = digests.ok_or_else(broken)?;
        check("the stored archive", promise.blob, blob)?;
        check("the uncompressed archive", promise.diff_id, Some(diff_id))?;
        Ok((diff_id, notes))
    }

    /// Gives a complete layer its name.
    fn commit(&self, partial: &Scratch, diff_id: &Digest, notes: LayerNotes) -> Result<ImageLayer, UnpackError> {
        let shift = self.options.id_shift;
        let description =
            Description { format: FORMAT, id_base: shift.base, id_count: shift.count, notes: notes.clone() };
        let path = partial.path().join(DESCRIPTION_NAME);
        let text = serde_json::to_vec_pretty(&description)
            .map_err(|error| io_error("describe", &path, io::Error::other(error)))?;
        fs::write(&path, text).map_err(|source| io_error("write", &path, source))?;
        if self.options.durable {
            rustix::fs::syncfs(partial.directory()).map_err(|errno| io_error("flush", partial.path(), errno.into()))?;
        }
        let to = self.layer_dir(diff_id);
        // Without a description it is no layer: the rest of one that was being removed by hand, say.
        let replaces = to.exists();
        if replaces {
            fs::rename(&to, partial.path().join("replaced")).map_err(|source| io_error("replace", &to, source))?;
        }
        fs::rename(partial.path(), &to).map_err(|source| io_error("name the layer", &to, source))?;
        if replaces {
            let replaced = to.join("replaced");
            fs::remove_dir_all(&replaced).map_err(|source| io_error("remove", &replaced, source))?;
        }
        if self.options.durable {
            let dir = &self.options.layers_dir;
            let opened = File::open(dir).and_then(|opened| opened.sync_all());
            opened.map_err(|source| io_error("flush", dir, source))?;
        }
        Ok(self.layer(diff_id, notes))
    }

    fn layer(&self, diff_id: &Digest, notes: LayerNotes) -> ImageLayer {
        ImageLayer { diff_id: *diff_id, path: self.layer_dir(diff_id).join(TREE_NAME), bytes: notes.file_bytes, notes }
    }

    fn layer_dir(&self, diff_id: &Digest) -> PathBuf {
        self.options.layers_dir.join(diff_id.hex())
    }

    fn lock_digest(&self, diff_id: &Digest) -> Result<LockFile, UnpackError> {
        let path = self.options.layers_dir.join(format!(".lock-{}", diff_id.hex()));
        LockFile::acquire(&path).map_err(|source| io_error("lock", &path, source))
    }

    /// A new locked directory for a layer to be unpacked into.
    fn make_partial(&self) -> Result<Scratch, UnpackError> {
        let dir = &self.options.layers_dir;
        Scratch::make(dir).map_err(|source| io_error("make a directory in", dir, source))
    }
}

/// The open directory for the layer itself.
fn make_tree(partial: &Scratch) -> Result<OwnedFd, UnpackError> {
    let tree = partial.path().join(TREE_NAME);
    fs::create_dir(&tree).map_err(|source| io_error("make the directory", &tree, source))?;
    let opened = File::open(&tree).map_err(|source| io_error("open", &tree, source))?;
    Ok(opened.into())
}

/// Reports bytes as they are read.
struct Counted<'a, R> {
    inner: R,
    item: &'a ProgressItem,
    progress: &'a dyn Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.progress.advanced(self.item, count as u64);
        Ok(count)
    }
}

fn check(what: &'static str, expected: Option<Digest>, actual: Option<Digest>) -> Result<(), UnpackError> {
    match (expected, actual) {
        (None, _) => Ok(()),
        (Some(expected), Some(actual)) if expected == actual => Ok(()),
        (Some(expected), Some(actual)) => Err(UnpackError::DigestMismatch { what, expected, actual }),
        (Some(_), None) => Err(UnpackError::Corrupt(format!("{what} was not hashed"))),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> UnpackError {
    UnpackError::io(action, path.display().to_string(), source)
}

/// An error while reading the archive, which may be one of ours in disguise.
fn read_error(error: io::Error) -> UnpackError {
    match error.downcast::<UnpackError>() {
        Ok(inner) => inner,
        Err(source) => UnpackError::io("read", "the archive", source),
    }
}
