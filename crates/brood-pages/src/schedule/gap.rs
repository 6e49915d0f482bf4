//! How long a think gap will last, learnt for each cohort and position.

use std::time::Duration;

/// Positions (the n-th gap of a rollout) with estimates of their own; later ones share the cohort's.
const POSITIONS: usize = 64;

/// Buckets of a histogram: a quarter of a doubling each, from [`SHORTEST`] up to 18 minutes.
const BUCKETS: usize = 80;

/// Gaps below this are never worth anything.
const SHORTEST: Duration = Duration::from_millis(1);

/// Observations without which a position's own histogram says nothing.
const MIN_OBSERVATIONS: u32 = 6;

/// When a histogram has seen so many gaps, all its counts are halved: habits of long ago fade.
const HALVE_AT: u32 = 512;

/// What is expected before anything was seen: the shorter quarter of the gaps that were recorded of coding agents lies about here.
const PRIOR: Duration = Duration::from_millis(2500);

/// What somebody who knows says about the gap that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It will last about so long.
    Expect(Duration),
}

/// The gaps of one cohort.
#[derive(Clone, Debug, Default)]
pub struct GapEstimator {
    positions: Vec<Histogram>,
    all: Histogram,
}

impl GapEstimator {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns that the gap at this position lasted so long.
    pub fn observed(&mut self, position: usize, gap: Duration) {
        self.all.add(gap);
        if position < POSITIONS {
            if self.positions.len() <= position {
                self.positions.resize(position + 1, Histogram::default());
            }
            self.positions[position].add(gap);
        }
    }

    /// How much longer a gap that has lasted `elapsed` will last at least, with a probability of one minus `quantile`
    /// (0 to 1). Of past gaps only those that lasted as long count; if none did, it is as likely to end as to double.
    #[must_use]
    pub fn remaining(&self, position: usize, elapsed: Duration, quantile: f64, hint: Option<Hint>) -> Duration {
        if let Some(Hint::Expect(gap)) = hint {
            return gap.saturating_sub(elapsed);
        }
        let own = self.positions.get(position).filter(|histogram| histogram.total >= MIN_OBSERVATIONS);
        let histogram = own.unwrap_or(&self.all);
        if histogram.total < MIN_OBSERVATIONS {
            return PRIOR.saturating_sub(elapsed);
        }
        match histogram.quantile_beyond(elapsed, quantile) {
            Some(gap) => gap.saturating_sub(elapsed),
            None => elapsed.mul_f64(quantile.clamp(0.0, 1.0)).min(elapsed),
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.positions.capacity() * size_of::<Histogram>()
    }
}

/// Counts by the logarithm of the gap.
#[derive(Clone, Copy, Debug)]
struct Histogram {
    counts: [u16; BUCKETS],
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Histogram {
    fn add(&mut self, gap: Duration) {
        self.counts[bucket(gap)] += 1;
        self.total += 1;
        if self.total >= HALVE_AT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
    }

    /// The quantile of the gaps in `elapsed`'s bucket and above; a gap counts as its bucket's lower bound.
    fn quantile_beyond(&self, elapsed: Duration, quantile: f64) -> Option<Duration> {
        let first = bucket(elapsed) + usize::from(elapsed > lower_bound(bucket(elapsed)));
        let beyond = self.counts.get(first..)?;
        let total: u32 = beyond.iter().map(|count| u32::from(*count)).sum();
        let mut left = (f64::from(total) * quantile.clamp(0.0, 1.0)) as u32;
        for (at, count) in beyond.iter().enumerate() {
            let count = u32::from(*count);
            if count > left {
                return Some(lower_bound(first + at));
            }
            left -= count;
        }
        (0..BUCKETS).rev().find(|at| *at >= first && self.counts[*at] != 0).map(lower_bound)
    }
}

fn bucket(gap: Duration) -> usize {
    let ratio = gap.as_secs_f64() / SHORTEST.as_secs_f64();
    if ratio <= 1.0 { 0 } else { ((ratio.log2() * 4.0 + 1e-9) as usize).min(BUCKETS - 1) }
}

fn lower_bound(bucket: usize) -> Duration {
    SHORTEST.mul_f64((bucket as f64 / 4.0).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mix;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn positions_are_learnt_apart_and_lend_to_each_other() {
        let mut gaps = GapEstimator::new();
        assert_eq!(gaps.remaining(0, NOW, 0.25, None), PRIOR);
        for i in 0..40 {
            gaps.observed(0, Duration::from_millis(200 + i));
            gaps.observed(1, Duration::from_secs(20) + Duration::from_millis(i * 50));
        }
        assert!(gaps.remaining(0, NOW, 0.25, None) < Duration::from_millis(250));
        assert!(gaps.remaining(1, NOW, 0.25, None) > Duration::from_secs(15));
        // A position without history: something between.
        let unknown = gaps.remaining(7, NOW, 0.75, None);
        assert!(unknown > Duration::from_secs(15), "{unknown:?}");
        // A gap that outlived the short ones is probably one of the long ones.
        assert!(gaps.remaining(7, Duration::from_secs(1), 0.25, None) > Duration::from_secs(14));
        let hint = Some(Hint::Expect(Duration::from_secs(3)));
        assert_eq!(gaps.remaining(0, Duration::from_secs(1), 0.25, hint), Duration::from_secs(2));
    }

    #[test]
    fn old_habits_fade() {
        let mut gaps = GapEstimator::new();
        (0..2000).for_each(|_| gaps.observed(0, Duration::from_secs(30)));
        (0..1500).for_each(|_| gaps.observed(0, Duration::from_millis(100)));
        assert!(gaps.remaining(0, NOW, 0.5, None) < Duration::from_millis(200));
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_a_sorted_list_within_a_bucket(
            millis in proptest::collection::vec(1u64..600_000, 20..300), quantile in 0.05f64..0.95
        ) {
            let mut gaps = GapEstimator::new();
            millis.iter().for_each(|ms| gaps.observed(70, Duration::from_millis(*ms)));
            let mut sorted = millis.clone();
            sorted.sort_unstable();
            let exact = sorted[((sorted.len() as f64 * quantile) as usize).min(sorted.len() - 1)] as f64 / 1e3;
            let estimate = gaps.remaining(70, NOW, quantile, None).as_secs_f64();
            prop_assert!(estimate <= exact * 1.001 && estimate >= exact / 1.2, "{} for {}", estimate, exact);
        }

        #[test]
        fn any_question_has_an_answer(seed: u64, elapsed in 0u64..u64::MAX / 2_000_000, quantile in -1.0f64..2.0) {
            let mut gaps = GapEstimator::new();
            (0..mix(seed, 0) % 50).for_each(|i| {
                gaps.observed(mix(seed, i) as usize % 100, Duration::from_micros(mix(seed, i + 1) % (1 << 40)));
            });
            let left = gaps.remaining(seed as usize % 100, Duration::from_millis(elapsed), quantile, None);
            let longest = lower_bound(BUCKETS).max(Duration::from_millis(elapsed));
            prop_assert!(left <= longest, "{:?}", left);
        }
    }
}
