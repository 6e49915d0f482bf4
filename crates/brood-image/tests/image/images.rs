//! Images made by real tools (umoci and skopeo), and what they must look like when mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use brood_image::{Digest, Image};

use crate::support::{BASE, run};

/// Installs a Debian package unless the program is there. The tests are of no use without.
pub fn need(program: &str, package: &str) {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if found.status.success() {
        return;
    }
    run(Command::new("apt-get").arg("update"));
    run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", package]));
}

/// An OCI layout in a directory, built by umoci.
pub struct Layout {
    pub dir: PathBuf,
    scratch: PathBuf,
}

impl Layout {
    pub fn new(scratch: &Path) -> Self {
        need("umoci", "umoci");
        need("skopeo", "skopeo");
        let layout = Self { dir: scratch.join("layout"), scratch: scratch.to_owned() };
        run(Command::new("umoci").arg("init").arg("--layout").arg(&layout.dir));
        layout
    }

    pub fn named(&self, tag: &str) -> String {
        format!("{}:{tag}", self.dir.display())
    }

    /// A new image without layers.
    pub fn start(&self, tag: &str) {
        run(Command::new("umoci").args(["new", "--image", &self.named(tag)]));
    }

    /// Adds a layer: unpack, change by `change`, repack.
    pub fn add_layer(&self, tag: &str, change: impl FnOnce(&Path)) {
        let bundle = self.scratch.join(format!("bundle-{tag}"));
        run(Command::new("umoci").args(["unpack", "--image", &self.named(tag)]).arg(&bundle));
        change(&bundle.join("rootfs"));
        run(Command::new("umoci").args(["repack", "--image", &self.named(tag)]).arg(&bundle));
        fs::remove_dir_all(bundle).unwrap();
    }

    pub fn configure(&self, tag: &str, options: &[&str]) {
        run(Command::new("umoci").args(["config", "--image", &self.named(tag)]).args(options));
    }

    pub fn copy(&self, tag: &str, to: &str, options: &[&str]) {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet"]).args(options);
        run(skopeo.arg(format!("oci:{}", self.named(tag))).arg(to));
    }

    /// The same with its layers compressed by zstd, which skopeo only does from layers that are not compressed yet.
    pub fn copy_zstd(&self, tag: &str, to: &str, options: &[&str]) {
        let plain = format!("dir:{}", self.scratch.join(format!("plain-{tag}")).display());
        self.copy(tag, &plain, &["--dest-decompress"]);
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-compress-format", "zstd"]).args(options);
        run(skopeo.arg(plain).arg(to));
    }

    /// Tags an index that lists the manifests of `tags`, each for the architecture beside it.
    pub fn make_index(&self, tag: &str, tags: &[(&str, &str)]) {
        let path = self.dir.join("index.json");
        let mut top: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let entries = tags.iter().map(|(tag, architecture)| {
            let mut entry = self.entry(&top, tag);
            entry["platform"] = serde_json::json!({ "os": "linux", "architecture": architecture });
            entry
        });
        let entries: Vec<_> = entries.collect();
        let media_type = "application/vnd.oci.image.index.v1+json";
        let index = serde_json::json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": entries });
        let bytes = serde_json::to_vec(&index).unwrap();
        let digest = Digest::of(&bytes);
        fs::write(self.dir.join("blobs/sha256").join(digest.hex()), &bytes).unwrap();
        top["manifests"].as_array_mut().unwrap().push(serde_json::json!({
            "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len(),
            "annotations": { "org.opencontainers.image.ref.name": tag },
        }));
        fs::write(path, serde_json::to_vec(&top).unwrap()).unwrap();
    }

    fn entry(&self, top: &serde_json::Value, tag: &str) -> serde_json::Value {
        let named = |entry: &&serde_json::Value| entry["annotations"]["org.opencontainers.image.ref.name"] == tag;
        let mut entry = top["manifests"].as_array().unwrap().iter().find(named).unwrap().clone();
        entry.as_object_mut().unwrap().remove("annotations");
        entry
    }
}

/// An image of three layers: files, changes with whiteouts and an opaque directory, and big random data.
pub fn make_image(scratch: &Path) -> Layout {
    let layout = Layout::new(scratch);
    layout.start("v1");
    layout.add_layer("v1", |root| {
        for dir in ["etc", "kept", "emptied", "replaced/inner", "gone/deep"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("etc/release"), "one").unwrap();
        fs::write(root.join("etc/removed"), "soon gone").unwrap();
        fs::write(root.join("kept/file"), "kept").unwrap();
        fs::write(root.join("emptied/file"), "gone").unwrap();
        fs::write(root.join("replaced/inner/file"), "gone").unwrap();
        fs::write(root.join("gone/deep/file"), "gone").unwrap();
        fs::hard_link(root.join("kept/file"), root.join("kept/link")).unwrap();
    });
    layout.add_layer("v1", |root| {
        fs::write(root.join("etc/release"), "two").unwrap();
        fs::remove_file(root.join("etc/removed")).unwrap();
        fs::remove_file(root.join("emptied/file")).unwrap();
        fs::remove_dir_all(root.join("gone")).unwrap();
        fs::remove_dir_all(root.join("replaced")).unwrap();
        fs::write(root.join("replaced"), "now a file").unwrap();
    });
    layout.add_layer("v1", |root| fs::write(root.join("big"), random_bytes(3 << 20)).unwrap());
    layout.configure(
        "v1",
        &[
            "--config.env=GREETING=hello",
            "--config.workingdir=/kept",
            "--config.user=1000:1000",
            "--config.entrypoint=/bin/sh",
            "--config.cmd=-c",
            "--config.label=made-by=test",
            "--config.exposedports=8080/tcp",
        ],
    );
    layout
}

/// Bytes that do not compress.
pub fn random_bytes(count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Checks the image of [`make_image`] by mounting its layers as an overlay does.
pub fn assert_image(image: &Image, scratch: &Path) {
    let mounted = Overlay::mount(image, scratch);
    let read = |path: &str| fs::read_to_string(mounted.point.join(path));
    assert_eq!(read("etc/release").unwrap(), "two");
    assert_eq!(read("kept/file").unwrap(), "kept");
    assert_eq!(read("replaced").unwrap(), "now a file");
    assert_eq!(fs::read(mounted.point.join("big")).unwrap(), random_bytes(3 << 20));
    for absent in ["etc/removed", "emptied/file", "gone"] {
        assert!(!mounted.point.join(absent).exists(), "{absent} is visible");
    }
    assert_eq!(fs::read_dir(mounted.point.join("emptied")).unwrap().count(), 0);
    let owner = std::os::unix::fs::MetadataExt::uid(&mounted.point.join("kept/link").metadata().unwrap());
    assert_eq!(owner, BASE);

    let config = &image.config;
    assert!(config.env.contains(&("GREETING".to_owned(), "hello".to_owned())), "{:?}", config.env);
    assert_eq!(config.workdir.as_deref(), Some("/kept"));
    assert_eq!(config.user.as_deref(), Some("1000:1000"));
    assert_eq!((&*config.entrypoint, &*config.cmd), (&["/bin/sh".to_owned()][..], &["-c".to_owned()][..]));
    assert_eq!(config.labels.get("made-by").map(String::as_str), Some("test"));
    assert_eq!(config.exposed_ports, ["8080/tcp"]);
}

/// The layers of an image, mounted read-only. Unmounted when dropped.
struct Overlay {
    point: PathBuf,
}

impl Overlay {
    fn mount(image: &Image, scratch: &Path) -> Self {
        let point = tempfile::Builder::new().prefix("merged").tempdir_in(scratch).unwrap().keep();
        let lowers: Vec<_> = image.layers.iter().rev().map(|layer| layer.path.display().to_string()).collect();
        let options = std::ffi::CString::new(format!("lowerdir={}", lowers.join(":"))).unwrap();
        let flags = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount("brood-test", &point, "overlay", flags, &*options).unwrap();
        Self { point }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.point.display());
        }
    }
}
