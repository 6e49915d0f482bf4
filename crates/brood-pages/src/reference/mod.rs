//! What pages are encoded against, and how it is found.
//!
//! - [`ReferenceTable`]: an elected sibling page for each page key.
//! - [`SimilarityIndex`]: pages that resemble each other wherever they lie.
//! - [`Dictionaries`]: Zstandard dictionaries trained on the cohort.
//!
//! References are one step deep: only entries that refer to no other entry are elected or indexed. (Such an entry may be a
//! difference to the *template's* page, which is at hand undecoded, if the two share their page key. That makes election
//! free: the first sibling's entry serves as it is.)

mod dictionaries;
mod elected;
mod similarity;

pub use dictionaries::{Dictionaries, DictionarySet, TrainedDictionary, Training};
pub use elected::ReferenceTable;
pub use similarity::{Features, SimilarityIndex};
