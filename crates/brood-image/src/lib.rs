//! Sources of templates: registries, archives, Debian package sets; unpacked into layers.
//!
//! [`fetch`] takes a [`Source`] and returns an [`Image`]: its layers as directories that an overlay can mount, bottom
//! first, and what the image says about running it. Layers are kept by digest in a [`LayerStore`] and are unpacked once.
//! Everything that comes in is treated as hostile; `docs/images.md` lists what is refused and what is left out.
//!
//! This crate knows no sandbox and no template. It needs to run as root, because layers belong to shifted ids.
//!
//! ```no_run
//! use brood_image::{FetchOptions, NoProgress, Source, fetch};
//!
//! let source: Source = "debian:bookworm+python3,git".parse()?;
//! let options = FetchOptions::new("/var/lib/brood/layers", "/var/lib/brood/cache");
//! let image = fetch(&source, &options, &NoProgress)?;
//! for layer in &image.layers {
//!     println!("{} {}", layer.diff_id, layer.path.display());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod compression;
mod config;
mod digest;
mod error;
mod layers;
mod lock;
mod options;
mod origin;
mod pipeline;
mod progress;
mod scratch;
mod source;
mod tar_stream;
mod unpack;

use std::path::PathBuf;

pub use config::ImageConfig;
pub use digest::{Digest, DigestSyntaxError};
pub use error::{ErrorKind, ImageError};
pub use layers::{ImageLayer, LayerStore};
pub use options::{IdShift, Limits, NOBODY_ID, UnpackOptions};
pub use origin::{Credentials, DebianError, RegistryError};
pub use progress::{NoProgress, Progress, ProgressItem, Stage};
pub use source::{ImageReference, PackageSet, Source, SourceError};
pub use unpack::{LayerNotes, Refusal, UnpackError};

/// How to fetch an image.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Where and how layers are unpacked.
    pub unpack: UnpackOptions,
    /// Directory for downloads in progress and for what is remembered between fetches; made if missing.
    pub cache_dir: PathBuf,
    /// Credentials for the registry; without them those in `docker_config` count.
    pub credentials: Option<Credentials>,
    /// Docker's file of credentials, if not the usual one (`$DOCKER_CONFIG/config.json` or `~/.docker/config.json`).
    pub docker_config: Option<PathBuf>,
    /// Do not reuse what an earlier fetch remembered about a source whose content changes with time (Debian suites).
    pub refresh: bool,
}

impl FetchOptions {
    /// Defaults for everything but the two directories.
    pub fn new(layers_dir: impl Into<PathBuf>, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            unpack: UnpackOptions::new(layers_dir),
            cache_dir: cache_dir.into(),
            credentials: None,
            docker_config: None,
            refresh: false,
        }
    }
}

/// An image, ready to be mounted.
#[derive(Debug, Clone)]
pub struct Image {
    /// Layers, bottom first. The same layer may occur twice.
    pub layers: Vec<ImageLayer>,
    /// How it wants to be run.
    pub config: ImageConfig,
}

/// Brings the image that `source` names onto this machine, reusing every layer that is already there.
///
/// Blocks until done; asynchronous callers run it on a thread for blocking work, because pulls use a runtime of their
/// own. Layers that were complete before a failure stay; nothing else does.
pub fn fetch(source: &Source, options: &FetchOptions, progress: &dyn Progress) -> Result<Image, ImageError> {
    origin::fetch(source, options, progress)
}
