//! Templates in memory.

use brood_deltafs::LayerStack;

use crate::model::TemplateInfo;

/// A template with its layers held, so that they are not deleted while a sandbox uses them.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) info: TemplateInfo,
    pub(crate) stack: LayerStack,
}
