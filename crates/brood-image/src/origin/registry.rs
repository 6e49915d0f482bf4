//! `docker://REFERENCE`: images from a registry.
//!
//! HTTPS, except for registries on the loopback interface, which are asked in plain HTTP. Manifests are few and small;
//! layers go through [`download`], which resumes, and are removed from the cache once unpacked: what is kept is the layer.

mod credentials;
mod download;
mod error;

use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use tokio::runtime::Runtime;

use super::Context;
use super::assemble::{LayerBlobs, assemble};
use super::manifest::{self, Document, ImagePlan, LayerPlan, image_error};
use crate::digest::Digest;
use crate::progress::Progress;
use crate::source::ImageReference;
use crate::{ErrorKind, FetchOptions, Image, ImageError};
pub use credentials::Credentials;
use download::BlobCache;
pub use error::RegistryError;

/// Layers downloaded at once, as Docker does.
const WORKERS: usize = 3;
/// Time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a single byte after which a transfer counts as broken.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The kinds of manifest that are understood.
const MANIFEST_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

pub(super) fn fetch(
    reference: &ImageReference,
    context: &Context<'_>,
    options: &FetchOptions,
) -> Result<Image, ImageError> {
    let failed =
        |source: RegistryError| ImageError::Registry { origin: context.origin.clone(), source: Box::new(source) };
    let registry = Registry::connect(reference, options).map_err(failed)?;
    let cache = BlobCache::open(&options.cache_dir.join("blobs")).map_err(failed)?;
    let plan = registry.plan(context, options)?;
    let blobs = RegistryBlobs { registry: &registry, cache, context };
    assemble(context, plan, &blobs, WORKERS)
}

/// A connection to the registry of one image.
struct Registry {
    runtime: Runtime,
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
}

impl Registry {
    fn connect(reference: &ImageReference, options: &FetchOptions) -> Result<Self, RegistryError> {
        // Another user of rustls in this process may have chosen a provider before, which serves as well.
        let _already_chosen = rustls::crypto::ring::default_provider().install_default();
        let parsed: Result<Reference, _> = reference.0.parse();
        let reference = parsed.map_err(|error| RegistryError::Other {
            registry: reference.0.clone(),
            source: oci_client::errors::OciDistributionError::GenericError(Some(error.to_string())),
        })?;
        let host = reference.resolve_registry();
        let auth = match &options.credentials {
            Some(given) => RegistryAuth::Basic(given.username.clone(), given.password.clone()),
            None => credentials::find(host, options.docker_config.as_deref())?,
        };
        let protocol = if is_loopback(host) { ClientProtocol::Http } else { ClientProtocol::Https };
        let config = ClientConfig { protocol, connect_timeout: Some(CONNECT_TIMEOUT), ..ClientConfig::default() };
        let client = Client::new(config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|source| RegistryError::Io { path: "the network".to_owned(), source })?;
        Ok(Self { runtime, client, reference, auth })
    }

    fn host(&self) -> &str {
        self.reference.resolve_registry()
    }

    /// Finds out which layers the image has for this machine.
    fn plan(&self, context: &Context<'_>, options: &FetchOptions) -> Result<ImagePlan, ImageError> {
        let explain = image_error(&context.origin);
        let mut reference = self.reference.clone();
        for _ in 0..manifest::INDEX_DEPTH_MAX {
            let bytes = self.manifest(&reference).map_err(|error| registry_error(context, error))?;
            match manifest::parse_document(&bytes).map_err(&explain)? {
                Document::Index(index) => {
                    let chosen = manifest::choose(&index, "the index").map_err(&explain)?;
                    reference =
                        reference.clone_with_digest(manifest::parse_digest(chosen).map_err(&explain)?.to_string());
                }
                Document::Manifest(manifest) => {
                    let digest = manifest::parse_digest(manifest.config()).map_err(&explain)?;
                    let config = self.document(&digest).map_err(|error| registry_error(context, error))?;
                    return manifest::plan(&manifest, &config, &options.unpack.limits).map_err(&explain);
                }
            }
        }
        Err(explain("its indexes lead from one to the next without an image".to_owned()))
    }

    /// A manifest, checked against the digest in the reference if it has one.
    fn manifest(&self, reference: &Reference) -> Result<Vec<u8>, RegistryError> {
        let pull = async {
            self.client.auth(reference, &self.auth, RegistryOperation::Pull).await?;
            self.client.pull_manifest_raw(reference, &self.auth, &MANIFEST_TYPES).await
        };
        let (bytes, _) = self.within_timeout(pull)?;
        if let Some(expected) = reference.digest() {
            let expected: Digest = expected.parse().map_err(RegistryError::Digest)?;
            check("the manifest", expected, Digest::of(&bytes))?;
        }
        Ok(bytes.to_vec())
    }

    /// A small blob, checked.
    fn document(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        let name = digest.to_string();
        let pull = async {
            use futures::TryStreamExt as _;
            let mut stream = self.client.pull_blob_stream(&self.reference, name.as_str()).await?.stream;
            let mut bytes = Vec::new();
            while let Some(chunk) = stream.try_next().await? {
                bytes.extend_from_slice(&chunk);
                if bytes.len() as u64 > manifest::DOCUMENT_BYTES_MAX {
                    break;
                }
            }
            Ok(bytes)
        };
        let bytes = self.within_timeout(pull)?;
        check("the configuration", *digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    fn within_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, oci_client::errors::OciDistributionError>>,
    ) -> Result<T, RegistryError> {
        let limited = async { tokio::time::timeout(STALL_TIMEOUT, work).await };
        match self.runtime.block_on(limited) {
            Ok(result) => result.map_err(|error| RegistryError::new(self.host(), &self.auth, error)),
            Err(_elapsed) => Err(RegistryError::Stalled { registry: self.host().to_owned() }),
        }
    }
}

/// The layers of an image in a registry.
struct RegistryBlobs<'a> {
    registry: &'a Registry,
    cache: BlobCache,
    context: &'a Context<'a>,
}

impl LayerBlobs for RegistryBlobs<'_> {
    fn open(
        &self,
        _: usize,
        plan: &LayerPlan,
        progress: &dyn Progress,
    ) -> Result<Box<dyn Read + Send + '_>, ImageError> {
        let Some((digest, size_bytes)) = plan.blob else {
            return Err(image_error(&self.context.origin)("its manifest names no digest for a layer".to_owned()));
        };
        let file = self.cache.get(self.registry, &digest, size_bytes, progress);
        Ok(Box::new(file.map_err(|error| registry_error(self.context, error))?))
    }

    fn done(&self, plan: &LayerPlan, failure: Option<ErrorKind>) {
        // What could not be written for lack of space, or was interrupted, need not be downloaded again.
        let is_worth_keeping = matches!(failure, Some(ErrorKind::DiskFull | ErrorKind::Cancelled));
        if let Some((digest, _)) = plan.blob
            && !is_worth_keeping
        {
            self.cache.remove(&digest);
        }
    }
}

fn registry_error(context: &Context<'_>, source: RegistryError) -> ImageError {
    ImageError::Registry { origin: context.origin.clone(), source: Box::new(source) }
}

fn check(what: &'static str, expected: Digest, actual: Digest) -> Result<(), RegistryError> {
    if expected == actual { Ok(()) } else { Err(RegistryError::DigestMismatch { what, expected, actual }) }
}

/// Whether a `host[:port]` is this machine's loopback interface, judged by its text alone.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_interface_is_asked_in_plain_http() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["localhost.example", "127.0.0.1.example:80", "10.0.0.1:5000", "index.docker.io", "[2001:db8::1]:5000"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
