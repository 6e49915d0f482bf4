//! The pages that the n-th tool call of a cohort touches.

use std::collections::HashMap;

use crate::page::PageKey;

/// Tool calls that have a set of their own; later ones share one.
const MAX_SETS: usize = 64;

/// Pages that all sets of a cohort remember together: some 200 KB.
const MAX_PAGES: usize = 8192;

/// Scores below this are forgotten.
const MIN_SCORE: u8 = 16;

/// The sets of one cohort, and one of pages that any call tends to touch.
#[derive(Clone, Debug, Default)]
pub struct HotSets {
    by_call: Vec<HotSet>,
    any_call: HotSet,
}

/// Pages and how surely they are touched.
#[derive(Clone, Debug, Default)]
struct HotSet {
    scores: HashMap<PageKey, u8>,
}

impl HotSet {
    /// Learns from one call: touched pages come half the way to certainty nearer, the others fade by a quarter.
    fn learn(&mut self, touched: &[PageKey]) {
        for score in self.scores.values_mut() {
            *score -= *score / 4;
        }
        for key in touched {
            let score = self.scores.entry(*key).or_default();
            // Three quarters of it are what is left after fading.
            let before = score.saturating_add(*score / 3);
            *score = before.saturating_add((255 - before).div_ceil(2));
        }
        self.scores.retain(|_, score| *score >= MIN_SCORE);
    }

    /// Forgets the coldest pages beyond `limit`.
    fn shrink(&mut self, limit: usize) {
        if self.scores.len() > limit {
            let mut scores: Vec<u8> = self.scores.values().copied().collect();
            let (_, cut, _) = scores.select_nth_unstable_by(limit, |a, b| b.cmp(a));
            let cut = *cut;
            self.scores.retain(|_, score| *score > cut);
            self.scores.shrink_to_fit();
        }
    }
}

impl HotSets {
    /// No sets yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns which pages the tool call of this number touched.
    pub fn learn(&mut self, call: usize, touched: &[PageKey]) {
        let call = call.min(MAX_SETS - 1);
        if self.by_call.len() <= call {
            self.by_call.resize_with(call + 1, HotSet::default);
        }
        self.by_call[call].learn(touched);
        self.any_call.learn(touched);
        self.any_call.shrink(MAX_PAGES / 8);
        self.by_call[call].shrink(MAX_PAGES / 8);
        self.bound();
    }

    /// Keeps all sets together within the limit by forgetting the coldest half of the largest.
    fn bound(&mut self) {
        while self.len() > MAX_PAGES {
            let Some(largest) = self.by_call.iter_mut().max_by_key(|set| set.scores.len()) else { return };
            largest.shrink(largest.scores.len() / 2);
        }
    }

    /// Calls `predict` with the pages that the tool call of this number will probably touch. If siblings have not come so
    /// far, those that any call tends to touch.
    pub fn predict(&self, call: usize, mut predict: impl FnMut(PageKey, u8)) {
        let own = self.by_call.get(call.min(MAX_SETS - 1)).filter(|set| !set.scores.is_empty());
        let set = own.unwrap_or(&self.any_call);
        let mut pages: Vec<(PageKey, u8)> = set.scores.iter().map(|(key, score)| (*key, *score)).collect();
        pages.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        pages.into_iter().for_each(|(key, score)| predict(key, score));
    }

    /// Pages that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.any_call.scores.len() + self.by_call.iter().map(|set| set.scores.len()).sum::<usize>()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let sets = self.by_call.iter().chain([&self.any_call]);
        let tables = sets.map(|set| set.scores.capacity() * (size_of::<(PageKey, u8)>() + 1)).sum::<usize>();
        tables + self.by_call.capacity() * size_of::<HotSet>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageNumber;
    use proptest::prelude::*;

    fn keys(range: std::ops::Range<u64>) -> Vec<PageKey> {
        range.map(|page| PageKey { page: PageNumber(page), ..Default::default() }).collect()
    }

    fn predicted(sets: &HotSets, call: usize, at_least: u8) -> usize {
        let mut count = 0;
        sets.predict(call, |_, confidence| count += usize::from(confidence >= at_least));
        count
    }

    #[test]
    fn recurring_pages_are_expected_and_others_forgotten() {
        let mut sets = HotSets::new();
        for sibling in 0..6 {
            sets.learn(0, &[keys(0..100), keys(1000 * (sibling + 1)..1000 * (sibling + 1) + 50)].concat());
            sets.learn(1, &keys(200..260));
        }
        assert_eq!(predicted(&sets, 0, 200), 100);
        assert_eq!(predicted(&sets, 1, 200), 60);
        // A call that no sibling has made yet: what is common to all.
        sets.learn(2, &keys(0..10));
        assert!(predicted(&sets, 9, 64) >= 60);
        (0..20).for_each(|_| sets.learn(0, &[]));
        assert_eq!(predicted(&sets, 0, 1), predicted(&sets, 99, 1), "the set is empty again");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn memory_is_bounded(calls in proptest::collection::vec((0usize..200, any::<u32>(), 0u64..3000), 0..60)) {
            let mut sets = HotSets::new();
            for (call, first, count) in calls {
                sets.learn(call, &keys(u64::from(first)..u64::from(first) + count));
                prop_assert!(sets.len() <= MAX_PAGES);
                prop_assert!(sets.memory_bytes() < 1 << 20);
            }
        }
    }
}
