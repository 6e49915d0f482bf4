//! `tar:FILE`: one archive of a root file system.

use std::fs::File;
use std::path::Path;

use super::Context;
use crate::config::ImageConfig;
use crate::layers::Promise;
use crate::progress::{ProgressItem, Stage};
use crate::{Image, ImageError};

pub(super) fn fetch(path: &Path, context: &Context<'_>) -> Result<Image, ImageError> {
    let (file, blob_bytes) = open(path, &context.origin)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let item = ProgressItem { stage: Stage::Unpack, name };
    let promise = Promise { blob_bytes: Some(blob_bytes), ..Promise::default() };
    let layer = context.store.unpack(file, &promise, &item, context.progress);
    let layer = layer.map_err(context.unpack_error("the archive"))?;
    Ok(Image { layers: vec![layer], config: ImageConfig::default() })
}

/// Opens a regular file for reading; returns its size in bytes as well.
pub(super) fn open(path: &Path, origin: &str) -> Result<(File, u64), ImageError> {
    let open_error = |source| ImageError::Open { origin: origin.to_owned(), path: path.to_owned(), source };
    // Looked at before it is opened: opening a fifo would wait for a writer.
    let metadata = path.metadata().map_err(open_error)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "no regular file" };
        let (origin, path) = (origin.to_owned(), path.to_owned());
        return Err(ImageError::WrongKind { origin, path, found, wanted: "a file" });
    }
    let file = File::open(path).map_err(open_error)?;
    Ok((file, metadata.len()))
}
