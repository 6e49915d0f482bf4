//! What the pager counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::latency::LatencyHistogram;

/// What a pager has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagerStatistics {
    /// Faults that tasks waited for.
    pub faults: u64,
    /// Pages supplied to tasks that waited.
    pub waited_pages: u64,
    /// Pages supplied beside those, because they lie next to them.
    pub neighbour_pages: u64,
    /// Pages supplied ahead of being touched.
    pub ahead_pages: u64,
    /// Pages of zeros supplied.
    pub zero_pages: u64,
    /// Pages whose content was lost.
    pub lost_pages: u64,
    /// Changes of address spaces that were followed, forks among them.
    pub changes: u64,
    /// Address spaces served at present.
    pub spaces: u64,
    /// From reading a fault to letting its task go on: median.
    pub fault_p50: Duration,
    /// The same, 95th percentile.
    pub fault_p95: Duration,
    /// The same, 99th percentile.
    pub fault_p99: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) waited_pages: AtomicU64,
    pub(crate) neighbour_pages: AtomicU64,
    pub(crate) ahead_pages: AtomicU64,
    pub(crate) zero_pages: AtomicU64,
    pub(crate) lost_pages: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) faults: LatencyHistogram,
}

impl Counters {
    pub(crate) fn read(&self, spaces: usize) -> PagerStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PagerStatistics {
            faults: self.faults.count(),
            waited_pages: get(&self.waited_pages),
            neighbour_pages: get(&self.neighbour_pages),
            ahead_pages: get(&self.ahead_pages),
            zero_pages: get(&self.zero_pages),
            lost_pages: get(&self.lost_pages),
            changes: get(&self.changes),
            spaces: spaces as u64,
            fault_p50: self.faults.quantile(0.5),
            fault_p95: self.faults.quantile(0.95),
            fault_p99: self.faults.quantile(0.99),
        }
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
