//! The state directory.

mod adopt;
mod retain;
mod spaces;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{Named, Result, StoreError};
use crate::home::Home;
use crate::id::{LayerId, SpaceId, UpperId, random_name};
use crate::layer::{Layer, LayerStack};
use crate::space::Space;
use crate::trash::Trash;
use crate::upper::{Upper, copy_root, make_private_directory};

pub use retain::Retained;

/// Layers, uppers and trash in one directory, on one file system.
///
/// Cheap to clone; clones are the same store. The directory stays locked
/// until the last one is dropped.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: Home,
    /// Host user and group id of the sandboxes' root.
    id_base: u32,
    /// Layers that are referred to in memory, and some that are not.
    layers: Mutex<HashMap<LayerId, Layer>>,
    /// Merged layers by the run that each stands for.
    merged: Mutex<HashMap<Box<[LayerId]>, LayerId>>,
    /// Spaces on disk. Locked after `layers` where both are.
    spaces: Mutex<HashMap<SpaceId, OpenSpace>>,
    trash: Trash,
    /// Held for its `flock`; the last field, so released last.
    _lock: File,
}

#[derive(Debug)]
struct OpenSpace {
    space: Space,
    /// The owner has given it up: it goes with its last layer.
    discarded: bool,
}

/// A layer being built: a directory to fill. Dropping it throws it away.
#[derive(Debug)]
pub struct Staging {
    store: Store,
    path: PathBuf,
}

impl Store {
    /// Opens the store in `root`, making what is missing, and removes what a
    /// crash left half made. Finished layers and uppers are kept until
    /// [`Self::retain`] says which are wanted.
    ///
    /// `id_base` is the host's user and group id of the sandboxes' root. The
    /// file system must be able to hold uppers of an overlay: ext4, XFS and
    /// btrfs can, an overlay cannot.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process has it open.
    pub fn open(root: &Path, id_base: u32) -> Result<Self> {
        fs::create_dir_all(root).named("make directory", root)?;
        let root = fs::canonicalize(root).named("resolve", root)?;
        let lock = lock(&root)?;
        // Layers hold setuid files of the shifted range: nobody else gets in.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).named("set mode of", &root)?;
        let home = Home::make(root)?;
        let trash = Trash::new(home.path())?;
        let inner = Inner {
            home: home.clone(),
            id_base,
            layers: Mutex::default(),
            merged: Mutex::default(),
            spaces: Mutex::default(),
            trash,
            _lock: lock,
        };
        let store = Self(Arc::new(inner));
        store.open_spaces()?;
        for home in store.homes() {
            for path in list(&home.staging())? {
                store.throw(&home, &path)?;
            }
            store.0.trash.empty(&home);
        }
        Ok(store)
    }

    /// The state directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.0.home.path()
    }

    /// Host user and group id of the sandboxes' root.
    #[must_use]
    pub fn id_base(&self) -> u32 {
        self.0.id_base
    }

    /// The layer `id`, if the store has it.
    ///
    /// # Errors
    /// [`StoreError::NoLayer`].
    pub fn layer(&self, id: &LayerId) -> Result<Layer> {
        let mut layers = self.layers();
        if let Some(layer) = layers.get(id) {
            return Ok(layer.clone());
        }
        let homes = self.homes();
        let mut paths = homes.iter().map(|home| home.layers().join(id.as_str()));
        let path = paths.find(|path| path.is_dir()).ok_or_else(|| StoreError::NoLayer { id: id.clone() })?;
        let layer = Layer::new(id.clone(), path);
        layers.insert(id.clone(), layer.clone());
        Ok(layer)
    }

    /// The stack of the layers `ids`, topmost first.
    ///
    /// # Errors
    /// [`StoreError::NoLayer`].
    pub fn stack<'i>(&self, ids: impl IntoIterator<Item = &'i LayerId>) -> Result<LayerStack> {
        let layers: Result<Vec<_>> = ids.into_iter().map(|id| self.layer(id)).collect();
        Ok(LayerStack::new(layers?))
    }

    /// A directory in which to build a layer. Its root belongs to the
    /// sandboxes' root, mode 0755.
    ///
    /// # Errors
    /// As file operations.
    pub fn stage(&self) -> Result<Staging> {
        Staging::create(self, &self.0.home)
    }

    /// A fresh upper for a mount of `stack`.
    ///
    /// # Errors
    /// [`StoreError::Depth`] for an empty stack, or as file operations.
    pub fn new_upper(&self, stack: &LayerStack) -> Result<Upper> {
        let Some(top) = stack.top() else {
            return Err(StoreError::Depth { depth: 0, max: crate::layer::DEPTH_MAX });
        };
        Upper::create(&self.0.home, top.path())
    }

    /// As [`Self::new_upper`], in a limited space.
    ///
    /// # Errors
    /// As [`Self::new_upper`].
    pub fn new_upper_in(&self, space: &Space, stack: &LayerStack) -> Result<Upper> {
        let Some(top) = stack.top() else {
            return Err(StoreError::Depth { depth: 0, max: crate::layer::DEPTH_MAX });
        };
        Upper::create(&space.0.home, top.path())
    }

    /// The upper `id`, left by an earlier process.
    ///
    /// # Errors
    /// [`StoreError::NoUpper`].
    pub fn upper(&self, id: &UpperId) -> Result<Upper> {
        for home in self.homes() {
            let upper = Upper::new(id.clone(), home.uppers().join(id.as_str()));
            if upper.changes().is_dir() {
                return Ok(upper);
            }
        }
        Err(StoreError::NoUpper { id: id.clone() })
    }

    /// Deletes `upper`. Its mount may still exist, but must not be used.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn discard(&self, upper: Upper) -> Result<()> {
        self.throw(&upper.home(), &upper.directory)
    }

    /// Gives back one owner's stack: each of its layers that nothing in
    /// memory refers to any more is deleted. Returns the ids of these. Mounts
    /// that contain them must be gone, or going with processes that are.
    ///
    /// # Errors
    /// As `rename(2)`; the remaining layers stay until [`Self::retain`].
    pub fn release(&self, stack: LayerStack) -> Result<Vec<LayerId>> {
        let ids: Vec<LayerId> = stack.ids().cloned().collect();
        let mut registered = self.layers();
        // Under the lock nobody can get a new reference from the store, and
        // with none but the store's own left nobody can clone one.
        drop(stack.into_layers());
        let mut removed = Vec::new();
        for id in ids {
            let unused = registered.get(&id).is_some_and(|layer| Arc::strong_count(&layer.0) == 1);
            if unused && let Some(layer) = registered.remove(&id) {
                self.throw(&layer.home(), layer.path())?;
                removed.push(id);
            }
        }
        let mut merged = self.0.merged.lock().unwrap_or_else(PoisonError::into_inner);
        merged.retain(|run, id| !removed.contains(id) && !run.iter().any(|id| removed.contains(id)));
        drop(merged);
        self.remove_discarded_spaces(&mut registered)?;
        Ok(removed)
    }

    /// Waits until what was deleted so far has been removed from the disk.
    pub fn wait_removed(&self) {
        self.0.trash.wait_empty();
    }

    pub(crate) fn register(&self, id: LayerId, path: PathBuf) -> Layer {
        let layer = Layer::new(id.clone(), path);
        self.layers().insert(id, layer.clone());
        layer
    }

    /// The merged layer that stands for `run`, if it was made and still is.
    /// A frozen layer has always the same below it, so the run says it all.
    pub(crate) fn merged(&self, run: &[LayerId]) -> Option<Layer> {
        let id = self.0.merged.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned()?;
        self.layer(&id).ok()
    }

    pub(crate) fn remember_merged(&self, run: Box<[LayerId]>, merged: &Layer) {
        let mut known = self.0.merged.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(run, merged.id().clone());
    }

    pub(crate) fn unregister(&self, id: &LayerId) {
        self.layers().remove(id);
    }

    pub(crate) fn throw(&self, home: &Home, path: &Path) -> Result<()> {
        self.0.trash.throw(home, path)
    }

    /// The store's own home.
    pub(crate) fn home(&self) -> &Home {
        &self.0.home
    }

    /// The store's own home and those of all spaces.
    pub(crate) fn homes(&self) -> Vec<Home> {
        let spaces = self.spaces();
        let limited = spaces.values().map(|open| open.space.0.home.clone());
        std::iter::once(self.0.home.clone()).chain(limited).collect()
    }

    fn layers(&self) -> MutexGuard<'_, HashMap<LayerId, Layer>> {
        self.0.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spaces(&self) -> MutexGuard<'_, HashMap<SpaceId, OpenSpace>> {
        self.0.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Staging {
    pub(crate) fn create(store: &Store, home: &Home) -> Result<Self> {
        let name = random_name().named("name in", home.path())?;
        let path = home.staging().join(name);
        make_private_directory(&path)?;
        let staging = Self { store: store.clone(), path };
        let base = Some(store.id_base());
        std::os::unix::fs::chown(&staging.path, base, base).named("set owner of", &staging.path)?;
        fs::set_permissions(&staging.path, fs::Permissions::from_mode(0o755)).named("set mode of", &staging.path)?;
        Ok(staging)
    }

    /// The directory to fill, in the form a lower layer of an overlay has:
    /// whiteouts are character devices 0/0, opaque directories carry
    /// `trusted.overlay.opaque=y`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the root of the layer owner and mode of the directory `root`.
    ///
    /// # Errors
    /// As `chown(2)` and `chmod(2)`.
    pub fn copy_root(&self, root: &Path) -> Result<()> {
        copy_root(root, &self.path)
    }

    /// Makes the directory the layer `id`. If the store has that layer
    /// already, what was built is thrown away and the old one is returned.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn publish(self, id: LayerId) -> Result<Layer> {
        let target = Home::of(&self.path).layers().join(id.as_str());
        match rustix::fs::renameat_with(
            rustix::fs::CWD,
            &self.path,
            rustix::fs::CWD,
            &target,
            rustix::fs::RenameFlags::NOREPLACE,
        ) {
            Ok(()) | Err(Errno::EXIST) => self.store.layer(&id),
            Err(errno) => Err(errno).named("rename", &self.path),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After publishing there is nothing at the path any more.
        if let Err(error) = self.store.throw(&Home::of(&self.path), &self.path) {
            tracing::error!(%error, "a half-made layer stays until the next start");
        }
    }
}

/// Paths of everything in `directory`.
fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).named("read directory", directory)?;
    entries.map(|entry| Ok(entry.named("read directory", directory)?.path())).collect()
}

fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).named("open", &path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StoreError::Locked { path: root.to_owned() }),
        Err(errno) => Err(errno).named("lock", &path),
    }
}
