//! All predictors together.

use super::{Governor, HotSets, Prediction, Source, Sources, Strides, Successors};
use crate::page::PageKey;

/// Pages whose successors a cohort remembers: 96 KiB.
const SHARED_PLACES: usize = 4096;

/// Pages whose successors a sandbox remembers for itself: 12 KiB.
const OWN_PLACES: usize = 512;

/// Predictions that one fault may trigger: restoring more would take longer than the faults it saves.
const MAX_FOR_A_FAULT: usize = 16;

/// Predictions at the start of a tool call: 8 MiB, some two milliseconds of decoding.
const MAX_FOR_A_CALL: usize = 2048;

/// What a cohort has learnt.
#[derive(Clone, Debug)]
pub struct CohortPatterns {
    successors: Successors,
    hot_sets: HotSets,
    /// Decides over all predictions for the cohort's sandboxes.
    pub governor: Governor,
}

impl Default for CohortPatterns {
    fn default() -> Self {
        Self {
            successors: Successors::with_capacity(SHARED_PLACES),
            hot_sets: HotSets::new(),
            governor: Governor::default(),
        }
    }
}

impl CohortPatterns {
    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.successors.memory_bytes() + self.hot_sets.memory_bytes()
    }
}

/// What a sandbox has learnt, and its tool call at present.
#[derive(Clone, Debug)]
pub struct SandboxPatterns {
    successors: Successors,
    strides: Strides,
    last_fault: Option<PageKey>,
    call: usize,
    touched: Vec<PageKey>,
}

impl Default for SandboxPatterns {
    fn default() -> Self {
        Self {
            successors: Successors::with_capacity(OWN_PLACES),
            strides: Strides::default(),
            last_fault: None,
            call: 0,
            touched: Vec::new(),
        }
    }
}

impl SandboxPatterns {
    /// A sandbox that was forked when its line had made `calls` tool calls.
    #[must_use]
    pub fn forked_at(calls: usize) -> Self {
        Self { call: calls, ..Self::default() }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.successors.memory_bytes() + self.touched.capacity() * size_of::<PageKey>()
    }
}

/// Which predictors are on.
#[derive(Clone, Copy, Debug)]
pub struct Prefetcher {
    /// Predictors that may speak. All learn, so that switching one on again finds it ready.
    pub sources: Sources,
}

impl Prefetcher {
    /// A tool call begins: appends the pages to restore at once, surest first.
    pub fn call_started(
        &self,
        cohort: &mut CohortPatterns,
        sandbox: &mut SandboxPatterns,
        predictions: &mut Vec<Prediction>,
    ) {
        sandbox.touched.clear();
        sandbox.last_fault = None;
        cohort.governor.relax();
        if self.sources.contains(Source::HotSet) {
            let (governor, start) = (&cohort.governor, predictions.len());
            cohort.hot_sets.predict(sandbox.call, |key, confidence| {
                let prediction = Prediction { key, source: Source::HotSet, confidence };
                if governor.admits(&prediction) && predictions.len() - start < MAX_FOR_A_CALL {
                    predictions.push(prediction);
                }
            });
        }
    }

    /// A page was missed: learns, and appends the pages to restore with it.
    pub fn faulted(
        &self,
        cohort: &mut CohortPatterns,
        sandbox: &mut SandboxPatterns,
        key: PageKey,
        predictions: &mut Vec<Prediction>,
    ) {
        if let Some(last) = sandbox.last_fault.replace(key) {
            sandbox.successors.followed(last, key);
            cohort.successors.followed(last, key);
        }
        if sandbox.touched.len() < MAX_FOR_A_CALL {
            sandbox.touched.push(key);
        }
        let start = predictions.len();
        let mut offer = |source, key, confidence| {
            let prediction = Prediction { key, source, confidence };
            let room = predictions.len() - start < MAX_FOR_A_FAULT;
            let new = predictions[start..].iter().all(|other| other.key != key);
            if self.sources.contains(source) && room && new && cohort.governor.admits(&prediction) {
                predictions.push(prediction);
            }
        };
        sandbox.strides.faulted(key, |key, confidence| offer(Source::Stride, key, confidence));
        sandbox.successors.predict(key, |key, confidence| offer(Source::OwnSuccessor, key, confidence));
        cohort.successors.predict(key, |key, confidence| offer(Source::SharedSuccessor, key, confidence));
    }

    /// A prefetched page turned out to be used: it belongs to the call's hot set although it never faulted.
    pub fn used(&self, cohort: &mut CohortPatterns, sandbox: &mut SandboxPatterns, prediction: &Prediction) {
        cohort.governor.feedback(prediction.source, 1, 0);
        if sandbox.touched.len() < MAX_FOR_A_CALL {
            sandbox.touched.push(prediction.key);
        }
    }

    /// A prefetched page went back untouched.
    pub fn wasted(&self, cohort: &mut CohortPatterns, prediction: &Prediction) {
        cohort.governor.feedback(prediction.source, 0, 1);
    }

    /// A tool call ended, and the feedback for its predictions was given: siblings learn from it.
    pub fn call_ended(&self, cohort: &mut CohortPatterns, sandbox: &mut SandboxPatterns) {
        sandbox.touched.sort_unstable();
        sandbox.touched.dedup();
        cohort.hot_sets.learn(sandbox.call, &sandbox.touched);
        sandbox.call += 1;
        sandbox.successors.decay();
        if sandbox.call.is_multiple_of(16) {
            cohort.successors.decay();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageNumber;
    use crate::testing::mix;
    use std::collections::HashSet;

    /// Faults and wasted prefetches when siblings, one after the other, make calls that touch given pages.
    fn replay(sources: Sources, siblings: u64, noise: u64) -> (Vec<usize>, usize, usize) {
        let prefetcher = Prefetcher { sources };
        let mut cohort = CohortPatterns::default();
        let (mut wasted, mut prefetched, mut faults_of) = (0, 0, Vec::new());
        for sibling in 0..siblings {
            let mut sandbox = SandboxPatterns::default();
            let mut faults = 0;
            for call in 0..4 {
                let common = (0..150).map(|i| mix(call, i) % 100_000);
                let own = (0..noise).map(|i| mix(call + 77 * (sibling + 1), i) % 100_000);
                let touches: Vec<u64> = common.chain(own).collect();
                let mut pending = Vec::new();
                prefetcher.call_started(&mut cohort, &mut sandbox, &mut pending);
                let mut there: HashSet<u64> = pending.iter().map(|p| p.key.page.0).collect();
                for page in &touches {
                    if there.insert(*page) {
                        faults += 1;
                        let before = pending.len();
                        let key = PageKey { page: PageNumber(*page), ..Default::default() };
                        prefetcher.faulted(&mut cohort, &mut sandbox, key, &mut pending);
                        // What is there already is not restored again.
                        let mut at = 0;
                        pending.retain(|p| {
                            at += 1;
                            at <= before || there.insert(p.key.page.0)
                        });
                    }
                }
                let touched: HashSet<u64> = touches.into_iter().collect();
                for prediction in &pending {
                    prefetched += 1;
                    if touched.contains(&prediction.key.page.0) {
                        prefetcher.used(&mut cohort, &mut sandbox, prediction);
                    } else {
                        wasted += 1;
                        prefetcher.wasted(&mut cohort, prediction);
                    }
                }
                prefetcher.call_ended(&mut cohort, &mut sandbox);
            }
            faults_of.push(faults);
        }
        (faults_of, prefetched, wasted)
    }

    #[test]
    fn the_sixteenth_rollout_hardly_faults() {
        let (faults, prefetched, wasted) = replay(Sources::ALL, 16, 5);
        assert!(faults[0] > 590);
        assert!(faults[15] < 40, "{faults:?}");
        assert!(wasted * 100 < prefetched * 20, "{wasted} of {prefetched} wasted");
    }

    #[test]
    fn successors_help_without_hot_sets_and_nothing_helps_without_predictors() {
        let (faults, prefetched, wasted) = replay(Sources::ALL.without(Source::HotSet), 16, 5);
        assert!(faults[15] < 250, "{faults:?}");
        assert!(wasted * 100 < prefetched * 20, "{wasted} of {prefetched} wasted");
        let (faults, prefetched, _) = replay(Sources::NONE, 4, 5);
        assert_eq!(prefetched, 0);
        assert!(faults.iter().all(|faults| *faults > 590));
    }

    #[test]
    fn memory_is_bounded_whatever_faults() {
        let prefetcher = Prefetcher { sources: Sources::ALL };
        let (mut cohort, mut sandbox) = (CohortPatterns::default(), SandboxPatterns::default());
        for call in 0..100 {
            let mut predictions = Vec::new();
            prefetcher.call_started(&mut cohort, &mut sandbox, &mut predictions);
            assert!(predictions.len() <= MAX_FOR_A_CALL);
            for i in 0..3000 {
                predictions.clear();
                let key = PageKey { page: PageNumber(mix(call, i)), ..Default::default() };
                prefetcher.faulted(&mut cohort, &mut sandbox, key, &mut predictions);
                assert!(predictions.len() <= MAX_FOR_A_FAULT);
            }
            prefetcher.call_ended(&mut cohort, &mut sandbox);
        }
        assert!(cohort.memory_bytes() < 1 << 20, "{}", cohort.memory_bytes());
        assert!(sandbox.memory_bytes() < 1 << 17, "{}", sandbox.memory_bytes());
    }
}
