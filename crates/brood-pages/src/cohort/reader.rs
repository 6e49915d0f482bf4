//! From entries to pages.

use crate::codec::frame::Frame;
use crate::codec::{Codec, DecodeError, Decoder, References, zstd_dictionary};
use crate::page::{EntryId, PAGE_SIZE, Page};
use crate::pool::{Pool, PoolError, Region};
use crate::reference::DictionarySet;

/// Turns entries back into pages, one thread's worth.
#[derive(Debug)]
pub struct Reader {
    decoder: Decoder,
    frame: Vec<u8>,
    reference_frame: Vec<u8>,
    reference_page: Box<Page>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader with fresh contexts.
    #[must_use]
    pub fn new() -> Self {
        Self {
            decoder: Decoder::new(),
            frame: Vec::new(),
            reference_frame: Vec::new(),
            reference_page: Box::new([0; PAGE_SIZE]),
        }
    }

    /// Decodes an entry into `page`. `template` is the template's page at the key that the page is wanted for.
    ///
    /// # Errors
    /// [`PoolError`]; `page` is then unspecified and must not be shown to anybody.
    pub fn page<R: Region>(
        &mut self,
        pool: &Pool<R>,
        dictionaries: &DictionarySet,
        entry: EntryId,
        template: Option<&Page>,
        page: &mut Page,
    ) -> Result<(), PoolError> {
        let frame = pool.read(entry, &mut self.frame)?;
        let mut references = References { template, entry: None, dictionary: dictionary_for(&frame, dictionaries)? };
        if let Some(reference) = frame.reference {
            let frame = pool.read(reference, &mut self.reference_frame)?;
            if frame.reference.is_some() {
                // One step deep; anything else was damaged.
                return Err(DecodeError::MissingReference(reference).into());
            }
            let references = References { dictionary: dictionary_for(&frame, dictionaries)?, ..references };
            self.decoder.decode(frame, references, &mut self.reference_page)?;
        }
        references.entry = frame.reference.map(|_| &*self.reference_page);
        Ok(self.decoder.decode(frame, references, page)?)
    }

    /// Decodes an entry that refers to nothing; whether it is one.
    pub(super) fn fresh<R: Region>(&mut self, pool: &Pool<R>, entry: EntryId, page: &mut Page) -> bool {
        let Ok(frame) = pool.read(entry, &mut self.frame) else { return false };
        self.decoder.decode(frame, References::default(), page).is_ok()
    }
}

fn dictionary_for<'d>(
    frame: &Frame<'_>,
    dictionaries: &'d DictionarySet,
) -> Result<Option<&'d zstd_dictionary::Dictionary>, DecodeError> {
    if frame.codec != Codec::ZstdDictionary {
        return Ok(None);
    }
    Ok(dictionaries.get(zstd_dictionary::version_of(frame.content)?))
}
