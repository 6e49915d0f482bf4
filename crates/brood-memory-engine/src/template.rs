//! The pages that a process started with, as far as a checkpoint holds them.

use std::sync::Arc;

use brood_deltacr::PageStore;
use brood_deltacr::address_space::PageTable;
use brood_pages::{Page, PageNumber};
use rustix::io::Errno;

/// One process' pages in a template or checkpoint. Cheap to clone; holds the pages.
#[derive(Clone, Debug)]
pub struct TemplatePages {
    table: PageTable,
    store: Arc<PageStore>,
}

impl TemplatePages {
    /// The pages of `table`, whose content lies in `store`.
    #[must_use]
    pub fn new(table: PageTable, store: Arc<PageStore>) -> Self {
        Self { table, store }
    }

    /// Copies a page's content out; `false` if the template has none there.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn copy(&self, page: PageNumber, into: &mut Page) -> Result<bool, Errno> {
        let Some(slot) = self.table.slot(page.address()) else { return Ok(false) };
        *into = self.store.read(slot)?;
        Ok(true)
    }
}
