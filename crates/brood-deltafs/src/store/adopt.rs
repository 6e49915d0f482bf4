//! Layers that somebody else keeps: those unpacked from images, one directory for each digest.

use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Named, Result};
use crate::id::{LayerId, random_name};
use crate::layer::Layer;
use crate::store::Store;

impl Store {
    /// Makes `directory`, an immutable tree kept outside of this store, known as the layer `id`.
    /// The store keeps a link to it: releasing the layer removes the link, never the tree. If the
    /// store has that layer already, nothing changes.
    ///
    /// # Errors
    /// As file operations.
    pub fn adopt(&self, id: LayerId, directory: &Path) -> Result<Layer> {
        let home = &self.0.home;
        let staging = home.staging().join(random_name().named("name in", home.path())?);
        symlink(directory, &staging).named("link", &staging)?;
        let target = home.layers().join(id.as_str());
        match renameat_with(CWD, &staging, CWD, &target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => std::fs::remove_file(&staging).named("remove", &staging)?,
            Err(errno) => return Err(errno).named("rename", &staging),
        }
        self.layer(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releasing_an_adopted_layer_keeps_its_tree() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), "kept").unwrap();
        let store = Store::open(&directory.path().join("store"), 100_000_000).unwrap();
        let id: LayerId = "sha256-abc".parse().unwrap();
        let layer = store.adopt(id.clone(), &tree).unwrap();
        assert_eq!(store.adopt(id.clone(), &tree).unwrap(), layer);
        assert!(layer.path().join("file").exists());
        drop(layer);
        let stack = store.stack([&id]).unwrap();
        assert_eq!(store.release(stack).unwrap(), std::slice::from_ref(&id));
        store.wait_removed();
        store.layer(&id).unwrap_err();
        assert_eq!(std::fs::read_to_string(tree.join("file")).unwrap(), "kept");
    }
}
