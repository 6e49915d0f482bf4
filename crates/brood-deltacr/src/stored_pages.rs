//! Page tables made of contents that the caller has in hand.

use std::sync::Arc;

use brood_kernel::shared_pages::PAGE_BYTES;

use crate::address_space::{CHUNK_BYTES, PageTable};
use crate::error::{Result, store as store_failed};
use crate::page_store::{PageStore, Slot};

impl PageTable {
    /// Stores pages and returns the table that holds them. Pages come as address and content, in address order.
    ///
    /// # Errors
    /// If the store can't grow.
    pub fn of_contents(store: &Arc<PageStore>, pages: &[(u64, [u8; PAGE_BYTES])]) -> Result<Self> {
        let slots = store.allocate(pages.len()).map_err(store_failed("allocate pages"))?;
        let mut table = Self::default();
        let mut rest = &slots[..];
        for part in pages.chunk_by(|one, other| one.0 / CHUNK_BYTES == other.0 / CHUNK_BYTES) {
            let (own, behind) = rest.split_at(part.len());
            rest = behind;
            let mut new: Vec<(usize, Slot)> = Vec::with_capacity(part.len());
            for ((address, content), slot) in part.iter().zip(own) {
                let (segment, page) = store.locate(*slot).map_err(store_failed("find a page"))?;
                segment.write(page, content).map_err(store_failed("write a page"))?;
                new.push(((address % CHUNK_BYTES) as usize / PAGE_BYTES, *slot));
            }
            table.replace(store, part[0].0 / CHUNK_BYTES, 0, &new);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_at_their_addresses_and_freed_with_the_table() {
        let store = PageStore::new();
        let pages: Vec<_> = [3_u64, 63, 64, 700].map(|n| (n * 4096, [n as u8; PAGE_BYTES])).to_vec();
        let table = PageTable::of_contents(&store, &pages).unwrap();
        for (address, content) in &pages {
            assert_eq!(store.read(table.slot(*address).unwrap()).unwrap(), *content);
        }
        assert_eq!(table.slot(4096), None);
        drop(table);
        assert_eq!(store.usage().used, 0);
    }
}
