//! A histogram of durations that any number of threads add to without waiting.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each doubling: values are told apart to an eighth.
const STEPS: usize = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = 64 * STEPS;

/// Counts of durations, in buckets that are an eighth of a doubling wide.
#[derive(Debug)]
pub struct LatencyHistogram {
    counts: Box<[AtomicU64]>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl LatencyHistogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(bucket(nanoseconds)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The duration that a share (0 to 1) of all stayed below, up to the width of a bucket; zero
    /// if there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let total = self.count();
        let wanted = (total as f64 * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count.load(Ordering::Relaxed);
            if seen >= wanted.max(1) {
                return Duration::from_nanos(upper_end(index));
            }
        }
        Duration::ZERO
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let exponent = value.ilog2();
    let step = (value >> (exponent - STEP_BITS)) as usize & (STEPS - 1);
    (exponent - STEP_BITS + 1) as usize * STEPS + step
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let exponent = (bucket / STEPS - 1) as u32;
    let next = (STEPS + bucket % STEPS + 1) as u64;
    (next << exponent).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_ends() {
        for value in (0..5000).chain([1 << 40, (1 << 40) + 12345]) {
            let end = upper_end(bucket(value));
            assert!(end >= value && end - value <= value / 8, "{value} in a bucket up to {end}");
            assert!(bucket(end + 1) == bucket(value) + 1, "{value}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        assert_eq!(histogram.count(), 1000);
        for share in [0.5, 0.95, 0.99] {
            let (found, exact) = (histogram.quantile(share).as_secs_f64(), share / 1000.0);
            assert!(found >= exact && found < exact * 1.13, "{share}: {found}");
        }
    }
}
