//! `debian:SUITE[+package,…]`: a minimal system by mmdebstrap, with the apt configuration of the host.
//!
//! The tool writes a tar stream that goes into the same unpacker as everything else. It runs in namespaces of its own
//! (mounts and processes), so that whatever it mounts or starts ends with it, and it ends with the thread that waits for
//! it. What it made is remembered by suite, packages and apt configuration, **without a date**: a template must not
//! change because a mirror did. `refresh` installs anew.

mod apt;
mod tool;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Context;
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::layers::{ImageLayer, Promise};
use crate::lock::LockFile;
use crate::progress::{ProgressItem, Stage};
use crate::scratch::Scratch;
use crate::source::PackageSet;
use crate::{ErrorKind, FetchOptions, Image, ImageError, UnpackError};
use apt::AptConfiguration;

/// Raised when the same set would be installed differently.
const RECIPE: u32 = 1;
/// The search path of a Debian login.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a Debian package set could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// A tool is missing on the host.
    #[error("{tool} is not installed on this host; install it: apt-get install {package}")]
    NotInstalled {
        /// The program.
        tool: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The suite or a package does not exist, as far as the host's apt knows.
    #[error("the suite or a package does not exist: {said}; check the names, and the host's apt sources")]
    NotFound {
        /// What the tool said.
        said: String,
    },
    /// The tool failed otherwise.
    #[error("mmdebstrap failed ({status}): {said}")]
    Failed {
        /// Its exit status.
        status: String,
        /// The last of what it said.
        said: String,
    },
    /// A file or process of the host cannot be used.
    #[error("cannot {action} '{object}'")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        object: String,
        /// The system's error.
        source: io::Error,
    },
}

impl DebianError {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotInstalled { .. } | Self::Failed { .. } => ErrorKind::Unavailable,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => ErrorKind::DiskFull,
            Self::Io { .. } => ErrorKind::Other,
        }
    }

    fn io(action: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self::Io { action, object: object.into(), source }
    }
}

/// What is remembered of an installation.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    source: String,
    diff_id: Digest,
    installed_unix_seconds: u64,
}

pub(super) fn fetch(set: &PackageSet, context: &Context<'_>, options: &FetchOptions) -> Result<Image, ImageError> {
    let failed = |source| ImageError::Debian { origin: context.origin.clone(), source };
    let dir = options.cache_dir.join("debian");
    let at_dir = |source| failed(DebianError::io("use", dir.display().to_string(), source));
    fs::create_dir_all(&dir).map_err(at_dir)?;
    Scratch::remove_stale(&dir).map_err(at_dir)?;
    let apt = AptConfiguration::of_host(&set.suite).map_err(failed)?;
    let key = key(set, &apt);
    // Held to the end: a second fetch of this set waits and then finds the record.
    let _locked = LockFile::acquire(&dir.join(format!(".lock-{key}"))).map_err(at_dir)?;
    let record = dir.join(format!("{key}.json"));
    let known = if options.refresh { None } else { remembered(&record, context)? };
    let layer = match known {
        Some(layer) => layer,
        None => {
            let layer = install(set, &apt, &dir, context)?;
            remember(&record, context, &layer).map_err(failed)?;
            layer
        }
    };
    let config = ImageConfig {
        env: vec![("PATH".to_owned(), PATH.to_owned())],
        cmd: vec!["bash".to_owned()],
        ..ImageConfig::default()
    };
    Ok(Image { layers: vec![layer], config })
}

/// Everything that decides what is installed, but for the mirror's state on the day.
fn key(set: &PackageSet, apt: &AptConfiguration) -> String {
    let parts = format!("{RECIPE}\n{}\n{}\n{apt:?}\n{}", std::env::consts::ARCH, set.suite, set.packages.join(" "));
    Digest::of(parts.as_bytes()).hex()
}

fn remembered(record: &Path, context: &Context<'_>) -> Result<Option<ImageLayer>, ImageError> {
    // A record that is missing, damaged or of a removed layer only means that the set is installed again.
    let Ok(text) = fs::read(record) else { return Ok(None) };
    let Ok(record) = serde_json::from_slice::<Record>(&text) else { return Ok(None) };
    context.store.get(&record.diff_id).map_err(context.unpack_error("the installed system"))
}

fn remember(path: &Path, context: &Context<'_>, layer: &ImageLayer) -> Result<(), DebianError> {
    let at_path = |source| DebianError::io("write", path.display().to_string(), source);
    let installed_unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let record = Record { source: context.origin.clone(), diff_id: layer.diff_id, installed_unix_seconds };
    let text = serde_json::to_vec_pretty(&record).map_err(|error| at_path(io::Error::other(error)))?;
    let parent: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
    let file = tempfile::NamedTempFile::new_in(parent).map_err(at_path)?;
    fs::write(file.path(), text).map_err(at_path)?;
    file.persist(path).map_err(|error| at_path(error.error))?;
    Ok(())
}

fn install(
    set: &PackageSet,
    apt: &AptConfiguration,
    dir: &Path,
    context: &Context<'_>,
) -> Result<ImageLayer, ImageError> {
    let failed = |source| ImageError::Debian { origin: context.origin.clone(), source };
    let work = Scratch::make(dir)
        .map_err(|source| failed(DebianError::io("make a directory in", dir.display().to_string(), source)))?;
    let install = ProgressItem { stage: Stage::Install, name: context.origin.clone() };
    let unpack = ProgressItem { stage: Stage::Unpack, name: context.origin.clone() };
    context.progress.started(&install, None);
    let (unpacked, ended) = tool::run(set, apt, work.path(), &install, context.progress, |stream| {
        context.store.unpack(stream, &Promise::default(), &unpack, context.progress)
    })
    .map_err(failed)?;
    match (unpacked, ended) {
        (Err(error @ UnpackError::Cancelled), _) => Err(context.unpack_error("the installed system")(error)),
        // The stream breaks off because the tool failed: what it says comes first.
        (_, Err(error)) => Err(failed(error)),
        (Err(error), Ok(())) => Err(context.unpack_error("the installed system")(error)),
        (Ok(layer), Ok(())) => {
            context.progress.finished(&install);
            Ok(layer)
        }
    }
}
