//! `oci-archive:FILE` and `docker-archive:FILE`: images packed into one tar file, read by position without unpacking it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde::Deserialize;

use super::assemble::{LayerBlobs, assemble};
use super::manifest::{self, Document, LayerPlan, image_error};
use super::{Context, tar_file};
use crate::compression::{Decompressor, Guard};
use crate::digest::Digest;
use crate::options::Limits;
use crate::progress::Progress;
use crate::tar_stream::{EntryKind, TarReader};
use crate::unpack::UnpackError;
use crate::{ErrorKind, FetchOptions, Image, ImageError};

/// Entries that an archive of an image may have: a few for each layer.
const ENTRIES_MAX: usize = 100_000;
/// Links inside an archive that lead from one to the next: old `docker save` shares layers so.
const LINKS_MAX: usize = 8;
/// Layers unpacked at once. They come from one file, and decompression is what takes time.
const WORKERS: usize = 2;

pub(super) fn fetch_oci(path: &Path, context: &Context<'_>, options: &FetchOptions) -> Result<Image, ImageError> {
    let archive = Archive::open(path, context, options)?;
    let explain = image_error(&context.origin);
    let mut bytes = archive.read_document("index.json", context)?;
    for _ in 0..manifest::INDEX_DEPTH_MAX {
        let descriptor = match manifest::parse_document(&bytes).map_err(&explain)? {
            Document::Index(index) => manifest::choose(&index, "the archive").map_err(&explain)?.clone(),
            Document::Manifest(manifest) => {
                let digest = manifest::parse_digest(manifest.config()).map_err(&explain)?;
                let config = archive.read_blob(&digest, context)?;
                let plan = manifest::plan(&manifest, &config, &options.unpack.limits).map_err(&explain)?;
                let blob_paths = plan.layers.iter().filter_map(|layer| layer.blob);
                let names = blob_paths.map(|(digest, _)| blob_path(&digest)).collect();
                return assemble(context, plan, &ArchiveBlobs { archive: &archive, names, context }, WORKERS);
            }
        };
        bytes = archive.read_blob(&manifest::parse_digest(&descriptor).map_err(&explain)?, context)?;
    }
    Err(explain("its indexes lead from one to the next without an image".to_owned()))
}

pub(super) fn fetch_docker(path: &Path, context: &Context<'_>, options: &FetchOptions) -> Result<Image, ImageError> {
    /// One image of `manifest.json`.
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Saved {
        config: String,
        #[serde(default)]
        repo_tags: Option<Vec<String>>,
        layers: Vec<String>,
    }

    let archive = Archive::open(path, context, options)?;
    let explain = image_error(&context.origin);
    let text = archive.read_document("manifest.json", context)?;
    let saved: Vec<Saved> = serde_json::from_slice(&text)
        .map_err(|error| explain(format!("manifest.json in it cannot be understood: {error}")))?;
    let [saved] = &saved[..] else {
        let tags: Vec<_> = saved.iter().flat_map(|saved| saved.repo_tags.iter().flatten().cloned()).collect();
        let (count, tags) = (saved.len(), tags.join(", "));
        return Err(explain(format!("it holds {count} images ({tags}); save one of them alone")));
    };
    let config = archive.read_document(&saved.config, context)?;
    let blobs = vec![None; saved.layers.len()];
    let plan = manifest::plan_layers(blobs, &config, &options.unpack.limits).map_err(&explain)?;
    let names = saved.layers.clone();
    assemble(context, plan, &ArchiveBlobs { archive: &archive, names, context }, WORKERS)
}

/// Where a member's bytes lie in the archive.
#[derive(Debug, Clone)]
enum Member {
    File {
        offset: u64,
        size_bytes: u64,
    },
    /// The path that a link leads to.
    Link(Vec<u8>),
}

/// An archive and where everything in it lies.
struct Archive {
    file: File,
    members: HashMap<Vec<u8>, Member>,
}

impl Archive {
    fn open(path: &Path, context: &Context<'_>, options: &FetchOptions) -> Result<Self, ImageError> {
        let (file, size_bytes) = tar_file::open(path, &context.origin)?;
        let opened = plain_file(file, size_bytes, context.progress, options).and_then(|file| {
            let members = list_members(&file, &options.unpack.limits)?;
            Ok(Self { file, members })
        });
        opened.map_err(context.unpack_error("the archive"))
    }

    fn find(&self, path: &str) -> Option<Slice<'_>> {
        let mut path = normal_path(path.as_bytes());
        for _ in 0..LINKS_MAX {
            match self.members.get(&path)? {
                Member::File { offset, size_bytes } => {
                    return Some(Slice { file: &self.file, position: *offset, left: *size_bytes });
                }
                Member::Link(target) => path.clone_from(target),
            }
        }
        None
    }

    fn member(&self, path: &str, context: &Context<'_>) -> Result<Slice<'_>, ImageError> {
        let missing = || format!("'{}' is missing in it; is it an archive of this kind?", path.escape_debug());
        self.find(path).ok_or_else(|| image_error(&context.origin)(missing()))
    }

    /// Reads a small file whole.
    fn read_document(&self, path: &str, context: &Context<'_>) -> Result<Vec<u8>, ImageError> {
        let slice = self.member(path, context)?;
        if slice.left > manifest::DOCUMENT_BYTES_MAX {
            let reason = format!("'{}' in it has {} bytes, which is no manifest", path.escape_debug(), slice.left);
            return Err(image_error(&context.origin)(reason));
        }
        let mut bytes = Vec::new();
        let mut slice = slice;
        slice
            .read_to_end(&mut bytes)
            .map_err(|source| context.unpack_error("the archive")(UnpackError::io("read", path, source)))?;
        Ok(bytes)
    }

    /// Reads a small file that is named by its digest.
    fn read_blob(&self, digest: &Digest, context: &Context<'_>) -> Result<Vec<u8>, ImageError> {
        let bytes = self.read_document(&blob_path(digest), context)?;
        let actual = Digest::of(&bytes);
        if actual == *digest {
            return Ok(bytes);
        }
        let what = "the manifest or configuration";
        Err(context.unpack_error("the archive")(UnpackError::DigestMismatch { what, expected: *digest, actual }))
    }
}

/// The archive itself if it is plain, otherwise an unnamed temporary copy that can be read by position.
fn plain_file(
    file: File,
    size_bytes: u64,
    progress: &dyn Progress,
    options: &FetchOptions,
) -> Result<File, UnpackError> {
    let reader = Decompressor::new(&file).map_err(|source| UnpackError::io("read", "the archive", source))?;
    if reader.is_plain() {
        return Ok(file);
    }
    let dir = &options.cache_dir;
    let at_cache = |source| UnpackError::io("make a temporary file in", dir.display().to_string(), source);
    std::fs::create_dir_all(dir).map_err(at_cache)?;
    let mut plain = tempfile::tempfile_in(dir).map_err(at_cache)?;
    let mut guarded = Guard::new(reader, &options.unpack.limits, progress, Some(size_bytes));
    match io::copy(&mut guarded, &mut plain) {
        Ok(_) => Ok(plain),
        Err(error) => Err(error.downcast::<UnpackError>().unwrap_or_else(at_cache)),
    }
}

fn list_members(file: &File, limits: &Limits) -> Result<HashMap<Vec<u8>, Member>, UnpackError> {
    let left = file.metadata().map_err(|source| UnpackError::io("look at", "the archive", source))?.len();
    let mut reader = TarReader::new(Slice { file, position: 0, left }, limits, false);
    let mut members = HashMap::new();
    while let Some(entry) = reader.next_entry()? {
        let path = normal_path(&entry.path);
        let member = match entry.kind {
            EntryKind::File if entry.sparse.is_none() => {
                Member::File { offset: reader.position(), size_bytes: entry.size_bytes }
            }
            EntryKind::HardLink => Member::Link(normal_path(&entry.link)),
            EntryKind::Symlink => {
                let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
                Member::Link(normal_path(&[parent, b"/", &entry.link].concat()))
            }
            _ => continue,
        };
        members.insert(path, member);
        if members.len() > ENTRIES_MAX {
            return Err(UnpackError::Limit { what: "files in an archive of an image", limit: ENTRIES_MAX as u64 });
        }
    }
    Ok(members)
}

/// The path without `.`, empty components and resolvable `..`: only ever a key of the table of members.
fn normal_path(path: &[u8]) -> Vec<u8> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                components.pop();
            }
            _ => components.push(component),
        }
    }
    components.join(&b'/')
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// A part of a file, read without moving the file's own position.
struct Slice<'a> {
    file: &'a File,
    position: u64,
    left: u64,
}

impl Read for Slice<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.position)?;
        self.position += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

struct ArchiveBlobs<'a> {
    archive: &'a Archive,
    /// Path of each layer in the archive.
    names: Vec<String>,
    context: &'a Context<'a>,
}

impl LayerBlobs for ArchiveBlobs<'_> {
    fn open(&self, index: usize, _: &LayerPlan, _: &dyn Progress) -> Result<Box<dyn Read + Send + '_>, ImageError> {
        Ok(Box::new(self.archive.member(&self.names[index], self.context)?))
    }

    fn done(&self, _: &LayerPlan, _: Option<ErrorKind>) {}
}
