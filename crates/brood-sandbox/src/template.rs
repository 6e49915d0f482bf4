//! Templates in memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};

use brood_deltafs::{LayerId, LayerStack};

use crate::checkpoint::FrozenState;
use crate::model::{TemplateInfo, Warmth};

/// A template with its layers held, so that they are not deleted while a sandbox uses them.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) info: TemplateInfo,
    pub(crate) stack: LayerStack,
    /// Where its sandboxes start from, once its start command is ready.
    pub(crate) warm: OnceLock<Arc<FrozenState>>,
    /// Held by whoever starts that command.
    pub(crate) warming: Mutex<()>,
}

impl Template {
    /// Not warm yet, if it is ever to be.
    pub(crate) fn new(info: TemplateInfo, stack: LayerStack) -> Self {
        Self { info, stack, warm: OnceLock::new(), warming: Mutex::default() }
    }

    /// How it is shown, but for what only the engine knows.
    pub(crate) fn describe(&self) -> TemplateInfo {
        let warmth = match (&self.info.start_command, self.warm.get()) {
            (None, _) => Warmth::Cold,
            (Some(_), None) => Warmth::Pending,
            (Some(_), Some(_)) => Warmth::Warm,
        };
        TemplateInfo { warmth, ..self.info.clone() }
    }

    /// Its layers, which are never merged with what lies above them.
    pub(crate) fn layers(&self) -> HashSet<LayerId> {
        self.stack.ids().cloned().collect()
    }
}
