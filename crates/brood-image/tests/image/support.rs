//! What the tests share: a place to unpack into, and views of trees that can be compared.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use brood_image::{FetchOptions, Image, ImageError, NoProgress, Source, fetch};

/// First host id of the range that the tests unpack into.
pub const BASE: u32 = 100_000_000;

/// A directory with room for layers, cache and inputs; removed when dropped.
pub struct Place {
    /// Unmounted before the directory is removed.
    _disk: Option<MemoryDisk>,
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root: layers belong to shifted ids");
        Self { _disk: None, dir: tempfile::tempdir().unwrap() }
    }

    /// The same in memory: for what writes gigabytes, so that the test takes as long as the work and not as the disk.
    pub fn in_memory() -> Self {
        let place = Self::new();
        let disk = MemoryDisk::mount(place.dir.path().to_owned(), 4096);
        Self { _disk: Some(disk), ..place }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn layers_dir(&self) -> PathBuf {
        self.path("layers")
    }

    pub fn options(&self) -> FetchOptions {
        FetchOptions::new(self.layers_dir(), self.path("cache"))
    }

    pub fn fetch(&self, source: &str) -> Result<Image, ImageError> {
        let source: Source = source.parse().unwrap();
        fetch(&source, &self.options(), &NoProgress)
    }

    /// Names in the directory of layers: complete layers and whatever was left behind.
    pub fn names_in_layers_dir(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.layers_dir()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A file system of its own, of a known size. Unmounted when dropped.
pub struct MemoryDisk(PathBuf);

impl MemoryDisk {
    pub fn mount(point: PathBuf, megabytes: u32) -> Self {
        std::fs::create_dir_all(&point).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("brood-test", &point, "tmpfs", flags, &*Self::options(megabytes)).unwrap();
        Self(point)
    }

    pub fn grow(&self, megabytes: u32) {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount_remount(&self.0, flags, &*Self::options(megabytes)).unwrap();
    }

    fn options(megabytes: u32) -> std::ffi::CString {
        std::ffi::CString::new(format!("size={megabytes}m,mode=0700")).unwrap()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

/// Everything about a file that unpacking must keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileView {
    pub kind: u32,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    pub modified: (i64, i64),
    pub links: u64,
    pub content: Vec<u8>,
    pub xattrs: Vec<(String, Vec<u8>)>,
}

/// All files below `root` by relative path; the root itself is "".
pub fn view(root: &Path) -> BTreeMap<PathBuf, FileView> {
    let mut files = BTreeMap::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_file() {
            std::fs::read(&path).unwrap()
        } else if metadata.is_symlink() {
            std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            metadata.rdev().to_le_bytes().to_vec()
        };
        if metadata.is_dir() {
            ahead.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let view = FileView {
            kind: metadata.mode() & 0o170_000,
            mode: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            links: if metadata.is_dir() { 0 } else { metadata.nlink() },
            content,
            xattrs: xattrs(&path),
        };
        files.insert(path.strip_prefix(root).unwrap().to_owned(), view);
    }
    files
}

pub fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; 65536];
    let count = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 65536];
            let count = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(count);
            (String::from_utf8(name.to_vec()).unwrap(), value)
        })
        .collect();
    found.sort();
    found
}

/// Runs a tool that must succeed; returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The message of an error with those of its causes, as a command line would show it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|cause| cause.to_string()).collect::<Vec<_>>().join(": ")
}
