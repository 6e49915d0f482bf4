//! Freezing: an upper becomes an immutable layer.
//!
//! The rename into `layers/` is what freezes. Before it, a note in the old
//! upper's directory says under which id, so that after a crash the owner's
//! database decides: if it knows the layer the freeze has happened, if it
//! knows only the upper it is undone ([`crate::Store::retain`]).

use std::fs;
use std::path::PathBuf;

use crate::error::{Named, Result};
use crate::failure_point;
use crate::home::Home;
use crate::id::LayerId;
use crate::layer::LayerStack;
use crate::store::Store;
use crate::upper::{CHANGES, Upper};

/// Name of the note in an upper's directory.
pub(crate) const NOTE: &str = "frozen-as";

/// A freeze that can still be undone.
///
/// The mount of the old upper goes on working, and writing through it would
/// change the layer: the tasks that use it must be stopped until they are on
/// a mount of the new stack and upper.
#[derive(Debug)]
#[must_use = "a freeze must be committed or undone"]
pub struct Frozen {
    stack: LayerStack,
    upper: Upper,
    old_directory: PathBuf,
}

impl Store {
    /// Makes the changes in `upper` a layer on top of `stack`, the stack that
    /// `upper` is mounted on, and a new empty upper above it, in the space of
    /// the old one if that has one.
    ///
    /// # Errors
    /// As file operations; nothing has changed then. A full disk is possible:
    /// a few directories are made.
    pub fn freeze(&self, upper: &Upper, stack: &LayerStack) -> Result<Frozen> {
        let home = upper.home();
        let id = LayerId::random().named("name for a layer in", home.path())?;
        let path = home.layers().join(id.as_str());
        let changes = upper.changes();
        let note = upper.directory.join(NOTE);
        let fresh = Upper::create(&home, &changes)?;
        failure_point::reach("freeze.upper-made");
        let renamed = fs::write(&note, id.as_str()).named("write", &note).and_then(|()| {
            failure_point::reach("freeze.noted");
            fs::rename(&changes, &path).named("rename", &changes)
        });
        if let Err(error) = renamed {
            drop(fs::remove_file(&note));
            self.discard(fresh)?;
            return Err(error);
        }
        failure_point::reach("freeze.renamed");
        let layer = self.register(id, path);
        Ok(Frozen { stack: stack.with_top(layer), upper: fresh, old_directory: upper.directory.clone() })
    }

    /// Undoes a freeze, for when the new stack could not be mounted or
    /// swapped in. The old upper is one again; its mount never noticed.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn undo_freeze(&self, frozen: Frozen) -> Result<()> {
        let Frozen { stack, upper, old_directory } = frozen;
        let Some(top) = stack.top() else {
            return Ok(());
        };
        let changes = old_directory.join(CHANGES);
        fs::rename(top.path(), &changes).named("rename", top.path())?;
        self.unregister(top.id());
        let note = old_directory.join(NOTE);
        fs::remove_file(&note).named("remove", &note)?;
        self.discard(upper)
    }

    /// Completes a freeze after the caller has recorded it: what is left of
    /// the old upper is deleted.
    ///
    /// # Errors
    /// As `rename(2)`; the freeze stands.
    pub fn commit_freeze(&self, frozen: Frozen) -> Result<(LayerStack, Upper)> {
        self.throw(&Home::of(&frozen.old_directory), &frozen.old_directory)?;
        Ok((frozen.stack, frozen.upper))
    }
}

impl Frozen {
    /// The old stack with the new layer on top.
    #[must_use]
    pub fn stack(&self) -> &LayerStack {
        &self.stack
    }

    /// The new upper, to be mounted on [`Self::stack`].
    #[must_use]
    pub fn upper(&self) -> &Upper {
        &self.upper
    }
}
