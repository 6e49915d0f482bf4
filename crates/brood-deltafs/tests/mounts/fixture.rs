//! A store in a temporary directory, and mounts that nobody has to undo: a
//! detached mount is gone with its descriptor.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use brood_deltafs::{Layer, LayerId, LayerStack, OverlayMount, Store, SystemLayers, Upper};
use brood_kernel::mount::{attach_on, descriptor_path, detach, open_directory};

pub const ID_BASE: u32 = 100_000_000;

/// A directory that is removed at the end, also of a failing test.
pub struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("brood-deltafs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A store with the system layers and one image layer.
pub struct Place {
    pub store: Store,
    pub stack: LayerStack,
    // After the store, whose thread works in it.
    pub directory: TemporaryDirectory,
}

impl Place {
    pub fn new() -> Self {
        let directory = TemporaryDirectory::new();
        let store = Store::open(directory.path(), ID_BASE).unwrap();
        let image = image_layer(&store);
        let stack = SystemLayers::open(&store).unwrap().enclose([image]);
        Self { store, stack, directory }
    }
}

/// A layer with a little of everything.
pub fn image_layer(store: &Store) -> Layer {
    let staging = store.stage().unwrap();
    let root = staging.path();
    for directory in ["bin", "etc", "dev", "data/deep/er"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("etc/hostname"), "image\n").unwrap();
    fs::write(root.join("dev/null"), "not a device").unwrap();
    fs::write(root.join("data/file"), "one").unwrap();
    fs::write(root.join("data/deep/er/file"), "two").unwrap();
    fs::hard_link(root.join("data/file"), root.join("data/hard")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", root.join("data/link")).unwrap();
    staging.publish(LayerId::random().unwrap()).unwrap()
}

/// An overlay mount, reached through its descriptor.
pub struct Mounted {
    _overlay: OverlayMount,
    pub path: PathBuf,
}

impl Mounted {
    pub fn new(stack: &LayerStack, upper: &Upper) -> Self {
        Self::of(OverlayMount::mount(stack, upper).unwrap())
    }

    pub fn of(overlay: OverlayMount) -> Self {
        let path = descriptor_path(overlay.as_fd());
        Self { _overlay: overlay, path }
    }

    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.path.join(path), text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path.join(path)).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path.join(path)).is_ok()
    }
}

/// A mount that is attached, for programs that ask for their working directory.
pub struct Attached {
    pub path: PathBuf,
}

impl Attached {
    pub fn new(place: &Place, stack: &LayerStack, upper: &Upper) -> Self {
        let path = place.directory.path().join(format!("mount-{}", upper.id()));
        fs::create_dir(&path).unwrap();
        let overlay = OverlayMount::mount(stack, upper).unwrap();
        attach_on(overlay.as_fd(), open_directory(&path).unwrap().as_fd()).unwrap();
        Self { path }
    }

    /// Mounts something else in its place; whoever has files open keeps them.
    pub fn replace(&mut self, stack: &LayerStack, upper: &Upper) {
        let overlay = OverlayMount::mount(stack, upper).unwrap();
        detach(&self.path).unwrap();
        attach_on(overlay.as_fd(), open_directory(&self.path).unwrap().as_fd()).unwrap();
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        detach(&self.path).unwrap();
        fs::remove_dir(&self.path).unwrap();
    }
}
