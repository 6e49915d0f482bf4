//! Downloads of layer archives into files: resumed where they broke off, kept until the layer is unpacked.
//!
//! ```text
//! cache_dir/blobs/
//!   <hex of the blob's digest>           complete and checked, about to be unpacked
//!   <hex of the blob's digest>.partial   as far as it got; the next pull goes on from there
//!   <hex of the blob's digest>.lock      held while downloading
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use oci_client::client::BlobResponse;

use super::{Registry, RegistryError, STALL_TIMEOUT};
use crate::digest::Digest;
use crate::lock::LockFile;
use crate::origin::assemble::short;
use crate::progress::{Progress, ProgressItem, Stage};

/// Attempts in a row that bring nothing new before the download counts as broken.
const FRUITLESS_ATTEMPTS_MAX: u32 = 5;
/// Attempts in all: a registry that hands out a few bytes at a time must not keep us busy for ever.
const ATTEMPTS_MAX: u32 = 50;
/// Pause after an attempt that brought nothing; doubled for each further one in a row.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a waiting download looks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(200);
/// Age at which downloads that nobody resumed are removed.
const PARTIAL_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The directory of downloads.
#[derive(Debug)]
pub(super) struct BlobCache {
    dir: PathBuf,
}

/// One download in progress.
struct Download<'a> {
    registry: &'a Registry,
    digest: &'a Digest,
    size_bytes: u64,
    file: File,
    path: &'a Path,
    item: ProgressItem,
    progress: &'a dyn Progress,
    /// Bytes already reported: a restart from the first byte reports them once.
    reported: u64,
}

impl BlobCache {
    pub(super) fn open(dir: &Path) -> Result<Self, RegistryError> {
        let cache = Self { dir: dir.to_owned() };
        fs::create_dir_all(dir).map_err(|source| io_error(dir, source))?;
        for entry in fs::read_dir(dir).map_err(|source| io_error(dir, source))?.flatten() {
            let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|modified| modified.elapsed());
            let is_old = matches!(age, Ok(Ok(age)) if age > PARTIAL_AGE_MAX);
            if is_old && let Err(error) = fs::remove_file(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "cannot remove an old download");
            }
        }
        Ok(cache)
    }

    /// The archive with this digest, downloaded unless it is there.
    pub(super) fn get(
        &self,
        registry: &Registry,
        digest: &Digest,
        size_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<File, RegistryError> {
        let complete = self.dir.join(digest.hex());
        let lock = self.dir.join(format!("{}.lock", digest.hex()));
        let _locked = LockFile::acquire(&lock).map_err(|source| io_error(&lock, source))?;
        match File::open(&complete) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(io_error(&complete, source)),
        }
        let partial = self.dir.join(format!("{}.partial", digest.hex()));
        let file = File::options().create(true).append(true).read(true).open(&partial);
        let file = file.map_err(|source| io_error(&partial, source))?;
        let item = ProgressItem { stage: Stage::Download, name: short(digest) };
        progress.started(&item, Some(size_bytes));
        let mut download = Download { registry, digest, size_bytes, file, path: &partial, item, progress, reported: 0 };
        if let Err(error) = download.run() {
            let is_worthless = matches!(error, RegistryError::DigestMismatch { .. } | RegistryError::TooLong { .. });
            if is_worthless {
                fs::remove_file(&partial).map_err(|source| io_error(&partial, source))?;
            }
            return Err(error);
        }
        progress.finished(&download.item);
        fs::rename(&partial, &complete).map_err(|source| io_error(&complete, source))?;
        File::open(&complete).map_err(|source| io_error(&complete, source))
    }

    /// Forgets an archive.
    pub(super) fn remove(&self, digest: &Digest) {
        let path = self.dir.join(digest.hex());
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a downloaded layer");
        }
    }
}

impl Download<'_> {
    /// Attempts until the file is complete and has the right digest.
    fn run(&mut self) -> Result<(), RegistryError> {
        let mut fruitless = 0;
        let mut restarted = false;
        for attempt in 1..=ATTEMPTS_MAX {
            let before = self.length()?;
            let resumed = before > 0;
            let result = if before < self.size_bytes { self.attempt(before) } else { Ok(()) };
            let after = self.length()?;
            if after > self.size_bytes {
                self.restart()?;
                let registry = self.registry.host().to_owned();
                return Err(RegistryError::TooLong { registry, blob: *self.digest, bytes: self.size_bytes });
            }
            if after == self.size_bytes {
                let actual = self.hash()?;
                if actual == *self.digest {
                    return Ok(());
                }
                self.restart()?;
                // What an earlier process left may be at fault: once from the beginning.
                if !resumed || restarted {
                    let what = "a layer's archive";
                    return Err(RegistryError::DigestMismatch { what, expected: *self.digest, actual });
                }
                restarted = true;
                continue;
            }
            fruitless = if after > before { 0 } else { fruitless + 1 };
            let registry = self.registry.host().to_owned();
            let error = match result {
                // The registry closed the connection early but politely.
                Ok(()) => RegistryError::Stalled { registry: registry.clone() },
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            if fruitless >= FRUITLESS_ATTEMPTS_MAX || attempt == ATTEMPTS_MAX {
                let (blob, source) = (*self.digest, Box::new(error));
                return Err(RegistryError::Broken { registry, blob, bytes: after, attempts: attempt, source });
            }
            tracing::debug!(blob = %self.digest, bytes = after, %error, "download broke off, trying again");
            if fruitless > 0 {
                self.pause(PAUSE * 2_u32.pow(fruitless - 1))?;
            }
        }
        // The last round of the loop returned.
        Err(RegistryError::Stalled { registry: self.registry.host().to_owned() })
    }

    /// One request for what is missing.
    fn attempt(&mut self, offset: u64) -> Result<(), RegistryError> {
        let registry = self.registry;
        let name = self.digest.to_string();
        let failed = |error| RegistryError::new(registry.host(), &registry.auth, error);
        let stalled = || RegistryError::Stalled { registry: registry.host().to_owned() };
        registry.runtime.block_on(async {
            let request = async {
                // By its digest alone: never by an address that a manifest names.
                let layer = name.as_str();
                if offset == 0 {
                    let stream = registry.client.pull_blob_stream(&registry.reference, layer).await?;
                    return Ok(BlobResponse::Full(stream));
                }
                registry.client.pull_blob_stream_partial(&registry.reference, layer, offset, None).await
            };
            let response = tokio::time::timeout(STALL_TIMEOUT, request).await.map_err(|_| stalled())?;
            let mut stream = match response.map_err(failed)? {
                BlobResponse::Partial(stream) => stream.stream,
                BlobResponse::Full(stream) => {
                    // The registry ignored the range.
                    self.restart()?;
                    stream.stream
                }
            };
            let mut waited = Duration::ZERO;
            loop {
                if self.progress.is_cancelled() {
                    return Err(RegistryError::Cancelled);
                }
                match tokio::time::timeout(CANCEL_INTERVAL, stream.next()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(Ok(bytes))) => {
                        waited = Duration::ZERO;
                        self.write(&bytes)?;
                    }
                    Ok(Some(Err(source))) => return Err(failed(source.into())),
                    Err(_elapsed) => waited += CANCEL_INTERVAL,
                }
                if waited >= STALL_TIMEOUT {
                    return Err(stalled());
                }
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RegistryError> {
        self.file.write_all(bytes).map_err(|source| io_error(self.path, source))?;
        let length = self.length()?;
        if length > self.size_bytes {
            let registry = self.registry.host().to_owned();
            return Err(RegistryError::TooLong { registry, blob: *self.digest, bytes: self.size_bytes });
        }
        if length > self.reported {
            self.progress.advanced(&self.item, length - self.reported);
            self.reported = length;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64, RegistryError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|source| io_error(self.path, source))
    }

    fn restart(&mut self) -> Result<(), RegistryError> {
        self.file.set_len(0).map_err(|source| io_error(self.path, source))
    }

    fn hash(&self) -> Result<Digest, RegistryError> {
        let opened = File::open(self.path);
        opened.and_then(|mut file| Digest::of_reader(&mut file)).map_err(|source| io_error(self.path, source))
    }

    /// Waits, unless cancelled.
    fn pause(&self, pause: Duration) -> Result<(), RegistryError> {
        // Made inside the runtime, whose clock it uses.
        self.registry.runtime.block_on(async { tokio::time::sleep(pause).await });
        if self.progress.is_cancelled() { Err(RegistryError::Cancelled) } else { Ok(()) }
    }
}

fn io_error(path: &Path, source: io::Error) -> RegistryError {
    RegistryError::Io { path: path.display().to_string(), source }
}
