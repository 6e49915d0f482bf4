//! The spaces of a store: made, found again, removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::home::Home;
use crate::id::{LayerId, SpaceId};
use crate::layer::Layer;
use crate::space::{self, LimitSupport, Space};
use crate::store::{Inner, OpenSpace, Store, list};
use crate::upper::make_private_directory;

impl Store {
    /// How disk limits are kept here, or why they cannot be.
    #[must_use]
    pub fn limit_support(&self) -> LimitSupport {
        space::support(&self.spaces_path())
    }

    /// Makes a space in which no more than about `bytes_max` bytes can be
    /// written: exact to the block with quotas, at most 1 % above with an
    /// image.
    ///
    /// # Errors
    /// [`StoreError::NoLimits`], [`StoreError::LimitRange`], or as file
    /// operations.
    pub fn new_space(&self, bytes_max: u64) -> Result<Space> {
        let support = self.limit_support();
        let Some(mechanism) = support.mechanism else {
            return Err(StoreError::NoLimits { reason: support.reason });
        };
        let space = Space::create(&self.spaces_path(), bytes_max, mechanism)?;
        self.spaces().insert(space.id().clone(), OpenSpace { space: space.clone(), discarded: false });
        Ok(space)
    }

    /// The space `id`, made earlier or by an earlier process.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn space(&self, id: &SpaceId) -> Result<Space> {
        let spaces = self.spaces();
        let open = spaces.get(id).ok_or_else(|| StoreError::NoSpace { id: id.clone() })?;
        Ok(open.space.clone())
    }

    /// Deletes a space with everything in it, as soon as no layer of it is
    /// referred to any more. Its uppers must not be used again.
    ///
    /// # Errors
    /// As file operations; the space goes at the next start then.
    pub fn discard_space(&self, space: &Space) -> Result<()> {
        let mut layers = self.layers();
        if let Some(open) = self.spaces().get_mut(space.id()) {
            open.discarded = true;
        }
        self.remove_discarded_spaces(&mut layers)
    }

    /// Removes the discarded spaces that none of the registered layers in use
    /// is in.
    pub(super) fn remove_discarded_spaces(&self, layers: &mut HashMap<LayerId, Layer>) -> Result<()> {
        let mut spaces = self.spaces();
        let used: HashSet<Home> =
            layers.values().filter(|layer| Arc::strong_count(&layer.0) > 1).map(Layer::home).collect();
        let removable = |open: &OpenSpace| open.discarded && !used.contains(&open.space.0.home);
        let ids: Vec<SpaceId> = spaces.iter().filter(|(_, open)| removable(open)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(open) = spaces.remove(&id) {
                layers.retain(|_, layer| layer.home() != open.space.0.home);
                open.space.abandon();
                open.space.close();
                self.throw(&self.0.home, open.space.directory())?;
            }
        }
        Ok(())
    }

    /// Opens the spaces on disk. One that cannot be opened is left alone and
    /// reported: its sandbox is lost, but nothing else is.
    pub(super) fn open_spaces(&self) -> Result<()> {
        let path = self.spaces_path();
        if !path.exists() {
            make_private_directory(&path)?;
        }
        let mut spaces = self.spaces();
        for directory in list(&path)? {
            let name = directory.file_name().and_then(|name| name.to_str());
            let Some(id) = name.and_then(|name| name.parse::<SpaceId>().ok()) else { continue };
            match Space::open(directory, id.clone()) {
                Ok(space) => {
                    spaces.insert(id, OpenSpace { space, discarded: false });
                }
                Err(error) => tracing::error!(%id, error = &error as &dyn std::error::Error, "cannot open a space"),
            }
        }
        Ok(())
    }

    /// Removes the spaces that hold neither layers nor uppers, and what is no
    /// space at all.
    pub(super) fn remove_empty_spaces(&self) -> Result<usize> {
        let mut layers = self.layers();
        let mut removed = 0;
        for (id, home) in self.space_homes() {
            if list(&home.layers())?.is_empty() && list(&home.uppers())?.is_empty() {
                if let Some(open) = self.spaces().get_mut(&id) {
                    open.discarded = true;
                }
                removed += 1;
            }
        }
        self.remove_discarded_spaces(&mut layers)?;
        drop(layers);
        let known = self.spaces();
        for directory in list(&self.spaces_path())? {
            if !known.values().any(|open| open.space.directory() == directory) {
                self.throw(&self.0.home, &directory)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn space_homes(&self) -> Vec<(SpaceId, Home)> {
        self.spaces().iter().map(|(id, open)| (id.clone(), open.space.0.home.clone())).collect()
    }

    fn spaces_path(&self) -> std::path::PathBuf {
        self.0.home.path().join("spaces")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let spaces = self.spaces.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for open in spaces.values() {
            open.space.close();
        }
    }
}
