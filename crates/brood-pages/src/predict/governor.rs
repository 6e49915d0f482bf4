//! How sure a predictor must be, learnt from what its predictions were good for.

use super::{Prediction, Source};

/// Prefetched pages that may go unused. The engine's goal is below 20 %; steering starts earlier.
const TARGET_WASTE_PERCENT: u32 = 15;

/// Confidence that every predictor needs at first.
const START_THRESHOLD: u8 = 64;

/// By how much the threshold rises after a batch with too much waste, and falls after a good one. Rising is faster: waste costs
/// memory and processor time at once, caution costs a few faults.
const RISE: u8 = 24;
const FALL: u8 = 8;

/// Feedback that makes a batch.
const BATCH: u32 = 32;

/// One threshold for each source.
#[derive(Clone, Debug)]
pub struct Governor {
    sources: [Threshold; Source::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Threshold {
    confidence: u8,
    used: u32,
    wasted: u32,
    total_used: u64,
    total_wasted: u64,
}

impl Default for Governor {
    fn default() -> Self {
        let start = Threshold { confidence: START_THRESHOLD, used: 0, wasted: 0, total_used: 0, total_wasted: 0 };
        Self { sources: [start; Source::ALL.len()] }
    }
}

impl Governor {
    /// Whether the prediction is worth acting on.
    #[must_use]
    pub fn admits(&self, prediction: &Prediction) -> bool {
        prediction.confidence >= self.threshold(prediction.source)
    }

    /// The confidence that a source must have at present.
    #[must_use]
    pub fn threshold(&self, source: Source) -> u8 {
        self.sources[source as usize].confidence
    }

    /// Hears what became of pages that a source had restored: how many were touched and how many went back untouched.
    pub fn feedback(&mut self, source: Source, used: u32, wasted: u32) {
        let state = &mut self.sources[source as usize];
        state.used = state.used.saturating_add(used);
        state.wasted = state.wasted.saturating_add(wasted);
        state.total_used += u64::from(used);
        state.total_wasted += u64::from(wasted);
        let total = u64::from(state.used) + u64::from(state.wasted);
        if total < u64::from(BATCH) {
            return;
        }
        if u64::from(state.wasted) * 100 > total * u64::from(TARGET_WASTE_PERCENT) {
            state.confidence = state.confidence.saturating_add(RISE);
        } else {
            state.confidence = state.confidence.saturating_sub(FALL).max(START_THRESHOLD / 2);
        }
        (state.used, state.wasted) = (0, 0);
    }

    /// To be called once a tool call: a source that was silenced gets another chance by and by, since without predictions there
    /// is no feedback.
    pub fn relax(&mut self) {
        for state in &mut self.sources {
            if state.confidence > START_THRESHOLD {
                state.confidence -= 1;
            }
        }
    }

    /// Pages of a source that were used and wasted so far.
    #[must_use]
    pub fn totals(&self, source: Source) -> (u64, u64) {
        let state = &self.sources[source as usize];
        (state.total_used, state.total_wasted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageKey;

    #[test]
    fn waste_silences_a_source_and_time_brings_it_back() {
        let mut governor = Governor::default();
        let sure = Prediction { key: PageKey::default(), source: Source::HotSet, confidence: 200 };
        assert!(governor.admits(&sure));
        for _ in 0..10 {
            governor.feedback(Source::HotSet, 16, 16);
        }
        assert!(!governor.admits(&sure));
        assert!(governor.admits(&Prediction { source: Source::Stride, ..sure }), "others are not blamed");
        (0..60).for_each(|_| governor.relax());
        assert!(governor.admits(&sure));
    }

    #[test]
    fn success_never_makes_it_reckless() {
        let mut governor = Governor::default();
        (0..1000).for_each(|_| governor.feedback(Source::Stride, 1000, 0));
        assert_eq!(governor.threshold(Source::Stride), START_THRESHOLD / 2);
        assert_eq!(governor.totals(Source::Stride), (1_000_000, 0));
    }
}
