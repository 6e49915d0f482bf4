//! What the squeezed sandboxes of one cohort share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use brood_pages::cohort::Cohort;
use brood_pages::pool::CohortId;
use brood_pages::reference::DictionarySet;
use brood_pages::{Lineage, Page, PageNumber};

use crate::error::{Error, Result};
use crate::template::TemplatePages;

/// What tells the processes of a sandbox apart in a way that its siblings agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineageName {
    /// Process of the cohort's template, by its number inside the sandbox.
    Template(i32),
    /// A process that came later, by a hash of its executable and arguments.
    Program(u64),
}

#[derive(Clone, Debug)]
struct LineagePages {
    lineage: Lineage,
    template: Option<TemplatePages>,
}

/// Which process of which cohort pages belong to, and the template's pages that all its entries are encoded against.
/// These never change: an entry that is a difference to a template's page is only right with that very page.
#[derive(Clone, Debug)]
pub struct Kin {
    cohort: Arc<SharedCohort>,
    pages: LineagePages,
}

impl Kin {
    /// The cohort.
    #[must_use]
    pub fn cohort(&self) -> &Arc<SharedCohort> {
        &self.cohort
    }

    /// The process.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.pages.lineage
    }

    /// Copies the template's page out; `false` if there is none.
    ///
    /// # Errors
    /// [`Error::Template`].
    pub fn copy_template(&self, page: PageNumber, into: &mut Page) -> Result<bool> {
        match &self.pages.template {
            Some(template) => template.copy(page, into).map_err(Error::Template),
            None => Ok(false),
        }
    }
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
        Self { id, cohort: Mutex::new(Cohort::new(id)), dictionaries: RwLock::default(), lineages: Mutex::default() }
    }

    /// The cohort's number in the pool.
    #[must_use]
    pub fn id(&self) -> CohortId {
        self.id
    }

    /// The process of this name. The first who asks decides which template pages it has.
    pub fn kin(self: &Arc<Self>, name: LineageName, template: impl FnOnce() -> Option<TemplatePages>) -> Kin {
        let mut lineages = self.lineages.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Lineage(u32::try_from(lineages.len()).unwrap_or(u32::MAX));
        let pages =
            lineages.entry(name).or_insert_with(|| LineagePages { lineage: next, template: template() }).clone();
        Kin { cohort: Arc::clone(self), pages }
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
