//! The sources, one module each. All end in [`LayerStore::unpack`](crate::layers::LayerStore).

mod archive;
mod assemble;
mod debian;
mod directory;
mod manifest;
mod registry;
mod tar_file;

pub use debian::DebianError;
pub use registry::{Credentials, RegistryError};

use crate::layers::LayerStore;
use crate::progress::Progress;
use crate::source::Source;
use crate::unpack::UnpackError;
use crate::{FetchOptions, Image, ImageError};

/// What every source needs to do its work.
struct Context<'a> {
    /// The source as the user wrote it, for messages.
    origin: String,
    store: LayerStore,
    progress: &'a dyn Progress,
}

impl Context<'_> {
    /// Names the source and the layer in an error.
    fn unpack_error(&self, what: impl Into<String>) -> impl FnOnce(UnpackError) -> ImageError {
        let (origin, what) = (self.origin.clone(), what.into());
        move |source| ImageError::Unpack { origin, what, source: Box::new(source) }
    }
}

pub(crate) fn fetch(source: &Source, options: &FetchOptions, progress: &dyn Progress) -> Result<Image, ImageError> {
    let origin = source.to_string();
    let opened = LayerStore::open(&options.unpack);
    let store = opened.map_err(|source| ImageError::Store { origin: origin.clone(), source: Box::new(source) })?;
    let context = Context { origin, store, progress };
    match source {
        Source::Tar(path) => tar_file::fetch(path, &context),
        Source::Directory(path) => directory::fetch(path, &context),
        Source::OciArchive(path) => archive::fetch_oci(path, &context, options),
        Source::DockerArchive(path) => archive::fetch_docker(path, &context, options),
        Source::Docker(reference) => registry::fetch(reference, &context, options),
        Source::Debian(set) => debian::fetch(set, &context, options),
    }
}
