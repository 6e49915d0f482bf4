//! What the squeezed sandboxes of one cohort share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use brood_pages::Lineage;
use brood_pages::cohort::Cohort;
use brood_pages::pool::CohortId;
use brood_pages::reference::DictionarySet;

use crate::template::TemplatePages;

/// What tells the processes of a sandbox apart in a way that its siblings agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineageName {
    /// Process of the cohort's template, by its number inside the sandbox.
    Template(i32),
    /// A process that came later, by a hash of its executable and arguments.
    Program(u64),
}

/// A lineage and the template's pages that all its entries were encoded against. These never change: an entry that is a
/// difference to a template's page is only right with that very page.
#[derive(Clone, Debug)]
pub struct LineagePages {
    pub(crate) lineage: Lineage,
    pub(crate) template: Option<TemplatePages>,
}

/// References, indexes and dictionaries of a cohort, and who is who in it.
#[derive(Debug)]
pub struct SharedCohort {
    id: CohortId,
    cohort: Mutex<Cohort>,
    /// A copy of the cohort's dictionaries, for decoding without waiting for who encodes.
    dictionaries: RwLock<Arc<DictionarySet>>,
    lineages: Mutex<HashMap<LineageName, LineagePages>>,
}

impl SharedCohort {
    pub(crate) fn new(id: CohortId) -> Self {
        Self {
            id,
            cohort: Mutex::new(Cohort::new(id)),
            dictionaries: RwLock::default(),
            lineages: Mutex::default(),
        }
    }

    /// The cohort's number in the pool.
    #[must_use]
    pub fn id(&self) -> CohortId {
        self.id
    }

    /// The lineage of this name. The first who asks decides which template pages it has.
    pub fn lineage(&self, name: LineageName, template: impl FnOnce() -> Option<TemplatePages>) -> LineagePages {
        let mut lineages = self.lineages.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Lineage(u32::try_from(lineages.len()).unwrap_or(u32::MAX));
        lineages.entry(name).or_insert_with(|| LineagePages { lineage: next, template: template() }).clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cohort> {
        self.cohort.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn dictionaries(&self) -> Arc<DictionarySet> {
        Arc::clone(&self.dictionaries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the cohort's present dictionaries those that are decoded with.
    pub(crate) fn publish_dictionaries(&self, cohort: &Cohort) {
        let set = Arc::clone(cohort.dictionaries().set());
        *self.dictionaries.write().unwrap_or_else(PoisonError::into_inner) = set;
    }
}
