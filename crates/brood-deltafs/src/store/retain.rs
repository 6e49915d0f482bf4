//! Garbage collection against the owner's database, at start.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::error::{Named, Result};
use crate::freeze::NOTE;
use crate::home::Home;
use crate::id::{LayerId, UpperId};
use crate::store::{Store, list};
use crate::upper::CHANGES;

/// What [`Store::retain`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Layers that were deleted.
    pub layers_removed: usize,
    /// Uppers that were deleted.
    pub uppers_removed: usize,
    /// Spaces that were deleted, because nothing in them was wanted.
    pub spaces_removed: usize,
    /// Uppers whose interrupted freeze was undone.
    pub freezes_undone: Vec<UpperId>,
}

impl Store {
    /// Deletes every layer and upper but those named and those referred to in
    /// memory. A freeze that a crash interrupted is undone if `layers` does
    /// not have the layer it made but `uppers` has its upper.
    ///
    /// To be called at start, after the owner has read its database and before
    /// new sandboxes are made.
    ///
    /// # Errors
    /// As file operations; it can be called again.
    pub fn retain(&self, layers: &HashSet<LayerId>, uppers: &HashSet<UpperId>) -> Result<Retained> {
        let mut retained = Retained::default();
        for home in self.homes() {
            self.retain_uppers(&home, layers, uppers, &mut retained)?;
            for path in list(&home.layers())? {
                if !self.is_wanted(&path, layers) {
                    self.throw(&home, &path)?;
                    retained.layers_removed += 1;
                }
            }
        }
        retained.spaces_removed = self.remove_empty_spaces()?;
        Ok(retained)
    }

    fn retain_uppers(
        &self,
        home: &Home,
        layers: &HashSet<LayerId>,
        uppers: &HashSet<UpperId>,
        retained: &mut Retained,
    ) -> Result<()> {
        for path in list(&home.uppers())? {
            let id = name_of(&path).and_then(|name| name.parse::<UpperId>().ok());
            match id {
                Some(id) if uppers.contains(&id) => {
                    if undo_interrupted_freeze(self, home, &path, layers)? {
                        retained.freezes_undone.push(id);
                    }
                }
                _ => {
                    self.throw(home, &path)?;
                    retained.uppers_removed += 1;
                }
            }
        }
        Ok(())
    }

    fn is_wanted(&self, path: &Path, wanted: &HashSet<LayerId>) -> bool {
        let Some(id) = name_of(path).and_then(|name| name.parse::<LayerId>().ok()) else {
            return false;
        };
        let mut registered = self.layers();
        let in_use = registered.get(&id).is_some_and(|layer| std::sync::Arc::strong_count(&layer.0) > 1);
        if wanted.contains(&id) || in_use {
            return true;
        }
        registered.remove(&id);
        false
    }
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Puts the changes back into the upper in `directory` if a freeze had begun
/// and its layer is not in `layers`.
fn undo_interrupted_freeze(store: &Store, home: &Home, directory: &Path, layers: &HashSet<LayerId>) -> Result<bool> {
    let note = directory.join(NOTE);
    let text = match fs::read_to_string(&note) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).named("read", &note),
    };
    let changes = directory.join(CHANGES);
    // An id that does not parse was cut off while it was written, and then
    // the rename had not begun.
    let layer = text.parse::<LayerId>().ok().filter(|id| !layers.contains(id));
    if let Some(id) = layer
        && !changes.exists()
    {
        store.unregister(&id);
        let frozen = home.layers().join(id.as_str());
        fs::rename(&frozen, &changes).named("rename", &frozen)?;
    }
    fs::remove_file(&note).named("remove", &note)?;
    Ok(changes.exists())
}
