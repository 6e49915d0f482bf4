//! Which pooled pages will be wanted next.
//!
//! Four predictors, each of which can be switched off ([`Sources`]):
//!
//! - [`Strides`]: pages at a steady distance, as when an array is walked.
//! - [`Successors`] of a sandbox: the page that followed this one last time.
//! - [`Successors`] of the cohort: the page that followed this one in siblings.
//! - [`HotSets`]: the pages that the n-th tool call of siblings touched.
//!
//! [`Prefetcher`] asks them all. Every table is bounded and forgets. What was prefetched and not used comes back as feedback
//! and raises the confidence that a predictor must have ([`Governor`]): prefetching that misses stops by itself.

mod governor;
mod hot_set;
mod prefetcher;
mod stride;
mod successors;

pub use governor::Governor;
pub use hot_set::HotSets;
pub use prefetcher::{CohortPatterns, Prefetcher, SandboxPatterns};
pub use stride::Strides;
pub use successors::Successors;

use crate::page::PageKey;

/// Who predicted a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    /// A steady distance between faults.
    Stride = 0,
    /// What followed in this sandbox before.
    OwnSuccessor = 1,
    /// What followed in siblings.
    SharedSuccessor = 2,
    /// What siblings touched in the same tool call.
    HotSet = 3,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stride, Self::OwnSuccessor, Self::SharedSuccessor, Self::HotSet];
}

/// Which predictors may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources(u8);

impl Sources {
    /// All of them.
    pub const ALL: Self = Self(0b1111);
    /// No prefetching.
    pub const NONE: Self = Self(0);

    /// This set without `source`.
    #[must_use]
    pub const fn without(self, source: Source) -> Self {
        Self(self.0 & !(1 << source as u8))
    }

    /// Whether `source` may speak.
    #[must_use]
    pub const fn contains(self, source: Source) -> bool {
        self.0 & 1 << source as u8 != 0
    }
}

/// A page that should be restored before it is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The page.
    pub key: PageKey,
    /// Who says so; to be handed back with the feedback.
    pub source: Source,
    /// How sure it is, 0 to 255.
    pub confidence: u8,
}
