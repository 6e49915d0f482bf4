//! Immutable layers and stacks of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::home::Home;
use crate::id::LayerId;
use crate::usage::DiskUsage;

/// Most layers that are mounted at once. A look-up that misses costs about a
/// microsecond a layer, so stacks are squashed long before; the kernel itself
/// stops at 500.
pub const DEPTH_MAX: usize = 128;

/// One immutable layer in the store. Clones refer to the same layer; a layer
/// is not deleted by [`crate::Store::release`] while another clone exists.
#[derive(Clone)]
pub struct Layer(pub(crate) Arc<LayerInner>);

pub(crate) struct LayerInner {
    pub(crate) id: LayerId,
    pub(crate) path: PathBuf,
    /// What it occupies, once somebody has asked.
    pub(crate) usage: OnceLock<DiskUsage>,
}

impl Layer {
    pub(crate) fn new(id: LayerId, path: PathBuf) -> Self {
        Self(Arc::new(LayerInner { id, path, usage: OnceLock::new() }))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &LayerId {
        &self.0.id
    }

    pub(crate) fn home(&self) -> Home {
        Home::of(&self.0.path)
    }

    /// The directory that holds it. Never to be written to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layer").field(&self.0.id).finish()
    }
}

impl PartialEq for Layer {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Layer {}

/// An immutable list of layers, topmost first. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStack {
    layers: Arc<[Layer]>,
}

impl LayerStack {
    /// A stack of `layers`, topmost first.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = Layer>) -> Self {
        Self { layers: layers.into_iter().collect() }
    }

    /// The layers, topmost first.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Ids of the layers, topmost first: what a database keeps of a stack.
    pub fn ids(&self) -> impl Iterator<Item = &LayerId> {
        self.layers.iter().map(Layer::id)
    }

    /// How many layers there are.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The topmost layer, if there is any.
    #[must_use]
    pub fn top(&self) -> Option<&Layer> {
        self.layers.first()
    }

    /// This stack with one more layer on top.
    #[must_use]
    pub fn with_top(&self, layer: Layer) -> Self {
        Self::new(std::iter::once(layer).chain(self.layers.iter().cloned()))
    }

    pub(crate) fn into_layers(self) -> Arc<[Layer]> {
        self.layers
    }
}
