//! What squeezing a page of a cohort brings and costs, learnt from the pages that were squeezed.

use std::time::Duration;

use super::Job;
use crate::page::PAGE_SIZE;

/// Weight of one observed batch against all before, for a batch of [`FULL_BATCH_PAGES`].
const WEIGHT: f64 = 0.2;

/// A batch of so many pages has the full weight; smaller ones less.
const FULL_BATCH_PAGES: f64 = 256.0;

/// Before anything was seen: pages become a quarter, encoding, reclaim and restoring take some 25 µs together.
const PRIOR_SAVED_SHARE: f64 = 0.75;
const PRIOR_COST_MICROS: f64 = 25.0;

/// Moving averages for one cohort (or one lineage in it).
#[derive(Clone, Copy, Debug)]
pub struct YieldEstimator {
    saved_bytes_per_page: f64,
    micros_per_page: f64,
}

impl Default for YieldEstimator {
    fn default() -> Self {
        Self { saved_bytes_per_page: PRIOR_SAVED_SHARE * PAGE_SIZE as f64, micros_per_page: PRIOR_COST_MICROS }
    }
}

impl YieldEstimator {
    /// Learns from a batch: pages that were squeezed, the frame bytes that they took, and the time for all of it.
    pub fn observed(&mut self, pages: usize, frame_bytes: usize, took: Duration) {
        if pages == 0 {
            return;
        }
        let count = pages as f64;
        let weight = WEIGHT * (count / FULL_BATCH_PAGES).min(1.0);
        let saved = (PAGE_SIZE as f64 - frame_bytes as f64 / count).max(0.0);
        self.saved_bytes_per_page += weight * (saved - self.saved_bytes_per_page);
        self.micros_per_page += weight * (took.as_secs_f64() * 1e6 / count - self.micros_per_page);
    }

    /// A job for so many pages, as it will probably turn out.
    #[must_use]
    pub fn job(&self, tag: u64, pages: usize) -> Job {
        let saves_bytes = (self.saved_bytes_per_page * pages as f64) as u64;
        let costs = Duration::from_secs_f64((self.micros_per_page * pages as f64 / 1e6).max(0.0));
        Job { tag, saves_bytes, costs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_approach_what_is_observed() {
        let mut estimator = YieldEstimator::default();
        for _ in 0..50 {
            estimator.observed(1000, 64_000, Duration::from_millis(8));
            estimator.observed(0, 0, Duration::ZERO);
        }
        let job = estimator.job(3, 100);
        assert!((402_000..404_000).contains(&job.saves_bytes), "{job:?}");
        assert!((790..810).contains(&job.costs.as_micros()), "{job:?}");
    }
}
