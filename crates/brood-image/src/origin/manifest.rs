//! Manifests, indexes and configurations: which layers make the image for this machine.

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;

use crate::ImageError;
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::options::Limits;

/// Bytes of a manifest, index or configuration that are read into memory. Registries commonly allow 4 MiB.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Indexes inside indexes that are followed.
pub(super) const INDEX_DEPTH_MAX: usize = 4;

/// One layer that an image needs.
#[derive(Debug, Clone)]
pub(super) struct LayerPlan {
    pub(super) diff_id: Digest,
    /// Digest and size of the stored (compressed) archive, if the image names them.
    pub(super) blob: Option<(Digest, u64)>,
}

/// All that an image consists of.
#[derive(Debug)]
pub(super) struct ImagePlan {
    pub(super) layers: Vec<LayerPlan>,
    pub(super) config: ImageConfig,
}

/// A manifest or an index, told apart by what it holds.
#[derive(Debug)]
pub(super) enum Document {
    Index(Box<ImageIndex>),
    Manifest(Box<ImageManifest>),
}

/// Errors of this module, before the source is known.
pub(super) type Reason = String;

/// Parses what a descriptor or reference of an image led to.
pub(super) fn parse_document(bytes: &[u8]) -> Result<Document, Reason> {
    /// The two members that tell the kinds apart.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Probe {
        schema_version: Option<u32>,
        manifests: Option<serde_json::Value>,
    }
    let explain = |error: serde_json::Error| format!("its manifest cannot be understood: {error}");
    let probe: Probe = serde_json::from_slice(bytes).map_err(explain)?;
    if probe.schema_version == Some(1) {
        return Err("its manifest is of Docker's first schema, which nothing has written since 2017; \
             pull and push it again with a current tool"
            .to_owned());
    }
    if probe.manifests.is_some() {
        serde_json::from_slice(bytes).map(|index| Document::Index(Box::new(index))).map_err(explain)
    } else {
        serde_json::from_slice(bytes).map(|manifest| Document::Manifest(Box::new(manifest))).map_err(explain)
    }
}

/// The entry of an index that this machine can run. An index of one entry without a platform is that entry.
pub(super) fn choose<'i>(index: &'i ImageIndex, what: &str) -> Result<&'i Descriptor, Reason> {
    let wanted = host_architecture();
    let mut offered = Vec::new();
    let mut fitting = Vec::new();
    for entry in index.manifests() {
        match entry.platform() {
            None => fitting.push(entry),
            Some(platform) if platform.os().to_string() == "linux" && platform.architecture().to_string() == wanted => {
                fitting.push(entry);
            }
            Some(platform) => offered.push(format!("{}/{}", platform.os(), platform.architecture())),
        }
    }
    // Where an index says both, what has a platform is the image and the rest are attestations.
    if fitting.iter().any(|entry| entry.platform().is_some()) {
        fitting.retain(|entry| entry.platform().is_some());
    }
    match fitting[..] {
        [only] => Ok(only),
        [] => Err(format!("it has no image for linux/{wanted}, only for: {}", offered.join(", "))),
        // Variants of one architecture, the plain one first.
        [first, ..] if first.platform().is_some() => Ok(first),
        _ => Err(format!("{what} holds {} images; make one that holds a single image", fitting.len())),
    }
}

/// Combines manifest and configuration, which must agree on the layers.
pub(super) fn plan(manifest: &ImageManifest, config: &[u8], limits: &Limits) -> Result<ImagePlan, Reason> {
    let blobs = manifest.layers().iter().map(|layer| {
        let media_type = layer.media_type().to_string();
        if media_type.contains("encrypted") {
            return Err("its layers are encrypted; decrypt it with skopeo first".to_owned());
        }
        if layer.size() > limits.layer_bytes_max {
            return Err(format!(
                "a layer has {} bytes, more than the limit of {}",
                layer.size(),
                limits.layer_bytes_max
            ));
        }
        Ok(Some((parse_digest(layer)?, layer.size())))
    });
    plan_layers(blobs.collect::<Result<_, _>>()?, config, limits)
}

/// The same where only the configuration names digests: one `blobs` entry for each layer.
pub(super) fn plan_layers(
    blobs: Vec<Option<(Digest, u64)>>,
    config: &[u8],
    limits: &Limits,
) -> Result<ImagePlan, Reason> {
    let explain = |error| format!("its configuration is not that of a container image: {error}");
    let configuration: ImageConfiguration = serde_json::from_slice(config).map_err(explain)?;
    let (os, architecture) = (configuration.os().to_string(), configuration.architecture().to_string());
    if os != "linux" || architecture != host_architecture() {
        return Err(format!("it is for {os}/{architecture}, but this machine is linux/{}", host_architecture()));
    }
    let diff_ids = configuration.rootfs().diff_ids();
    if diff_ids.len() != blobs.len() {
        let (named, present) = (diff_ids.len(), blobs.len());
        return Err(format!("its configuration names {named} layers, but it has {present}"));
    }
    if blobs.is_empty() {
        return Err("it has no layers".to_owned());
    }
    if blobs.len() > limits.layers_max {
        return Err(format!("it has {} layers, more than {} cannot be mounted", blobs.len(), limits.layers_max));
    }
    let layers = diff_ids.iter().zip(blobs).map(|(diff_id, blob)| {
        let diff_id = diff_id.parse().map_err(|error| format!("in its configuration, {error}"))?;
        Ok(LayerPlan { diff_id, blob })
    });
    Ok(ImagePlan { layers: layers.collect::<Result<_, Reason>>()?, config: ImageConfig::from(&configuration) })
}

/// The digest of a descriptor, if it is one that can be checked here.
pub(super) fn parse_digest(descriptor: &Descriptor) -> Result<Digest, Reason> {
    descriptor.digest().to_string().parse().map_err(|error| format!("in its manifest, {error}"))
}

/// Names the source in an error of this module.
pub(super) fn image_error(origin: &str) -> impl Fn(Reason) -> ImageError + '_ {
    move |reason| ImageError::Image { origin: origin.to_owned(), reason }
}

/// The architecture in the words of OCI, which are those of Go.
fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

    fn index(platforms: &[Option<(&str, &str)>]) -> ImageIndex {
        let manifests = platforms.iter().map(|platform| {
            let mut entry = serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": DIGEST, "size": 2,
            });
            if let Some((os, architecture)) = platform {
                entry["platform"] = serde_json::json!({ "os": os, "architecture": architecture });
            }
            entry
        });
        let text = serde_json::json!({ "schemaVersion": 2, "manifests": manifests.collect::<Vec<_>>() });
        match parse_document(text.to_string().as_bytes()).unwrap() {
            Document::Index(index) => *index,
            Document::Manifest(_) => panic!("an index was taken for a manifest"),
        }
    }

    #[test]
    fn the_entry_for_this_machine_is_chosen_and_others_are_listed() {
        let host = host_architecture();
        let both = index(&[Some(("linux", "riscv64")), Some(("linux", host)), Some(("unknown", "unknown"))]);
        let chosen = choose(&both, "the index").unwrap();
        assert_eq!(chosen.platform().as_ref().unwrap().architecture().to_string(), host);
        let foreign = index(&[Some(("windows", host)), Some(("linux", "riscv64"))]);
        let reason = choose(&foreign, "the index").unwrap_err();
        assert!(reason.contains("windows/") && reason.contains("linux/riscv64"), "{reason}");
        assert!(choose(&index(&[None, None]), "the archive").unwrap_err().contains("holds 2 images"));
        choose(&index(&[None]), "the archive").unwrap();
    }

    #[test]
    fn configurations_that_do_not_fit_are_refused() {
        let host = host_architecture();
        let config = |architecture: &str, diff_ids: &[&str]| {
            serde_json::json!({
                "os": "linux", "architecture": architecture, "config": { "Env": ["A=b", "odd"], "Cmd": null },
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            })
            .to_string()
        };
        let limits = Limits::default();
        let plan = |config: String, count| plan_layers(vec![None; count], config.as_bytes(), &limits);
        let good = plan(config(host, &[DIGEST]), 1).unwrap();
        assert_eq!(good.config.env, [("A".to_owned(), "b".to_owned())]);
        assert!(plan(config("riscv64", &[DIGEST]), 1).unwrap_err().contains("riscv64"));
        assert!(plan(config(host, &[DIGEST]), 2).unwrap_err().contains("names 1 layers"));
        assert!(plan(config(host, &["sha256:.."]), 1).unwrap_err().contains("not a digest"));
        assert!(plan(config(host, &[]), 0).unwrap_err().contains("no layers"));
        assert!(plan(config(host, &[DIGEST; 300]), 300).unwrap_err().contains("300"));
        assert!(plan("[1]".to_owned(), 0).unwrap_err().contains("not that of a container image"));
    }

    #[test]
    fn old_and_odd_manifests_are_explained() {
        assert!(parse_document(br#"{"schemaVersion":1}"#).unwrap_err().contains("first schema"));
        assert!(parse_document(b"<html>").unwrap_err().contains("cannot be understood"));
    }
}
