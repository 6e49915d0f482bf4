//! Pages at a steady distance.

use crate::page::{PageKey, PageNumber};

/// Streams that are followed at once: a program that walks more arrays than this in turns gets no predictions for the rest.
const STREAMS: usize = 8;

/// A fault belongs to a stream if it is at most so many pages from the stream's last one.
const REACH_PAGES: u64 = 64;

/// Pages that are predicted ahead at most.
const MAX_AHEAD: u64 = 16;

/// Follows the faults of one sandbox.
#[derive(Clone, Debug, Default)]
pub struct Strides {
    streams: [Option<Stream>; STREAMS],
    clock: u32,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: PageKey,
    /// Pages from one fault to the next.
    step: i64,
    /// How often the step was the same in a row.
    steady: u32,
    /// When it was used last.
    used: u32,
}

impl Strides {
    /// Hears of a fault; calls `predict` with the pages that should follow and the confidence in them, nearest first.
    pub fn faulted(&mut self, key: PageKey, mut predict: impl FnMut(PageKey, u8)) {
        self.clock = self.clock.wrapping_add(1);
        let near = |stream: &Stream| {
            stream.last.lineage == key.lineage && stream.last.page.0.abs_diff(key.page.0) <= reach(stream)
        };
        let Some(at) = self.streams.iter().position(|stream| stream.as_ref().is_some_and(near)) else {
            let stalest = (0..STREAMS).min_by_key(|at| self.streams[*at].map_or(0, |stream| stream.used));
            let fresh = Stream { last: key, step: 0, steady: 0, used: self.clock };
            self.streams[stalest.unwrap_or(0)] = Some(fresh);
            return;
        };
        let Some(stream) = &mut self.streams[at] else { return };
        stream.used = self.clock;
        let step = key.page.0.wrapping_sub(stream.last.page.0) as i64;
        // Pages that were prefetched don't fault: the next fault is a multiple of the step away.
        let same = stream.step != 0 && step != 0 && step % stream.step == 0 && step / stream.step > 0;
        if same {
            stream.steady = stream.steady.saturating_add(1);
        } else {
            (stream.step, stream.steady) = (step, 0);
        }
        stream.last = key;
        if stream.steady == 0 {
            return;
        }
        let confidence = 255 - 255 / (stream.steady as u64 + 1).min(255) as u8;
        for ahead in 1..=(1 << stream.steady.min(4)).min(MAX_AHEAD) {
            if let Some(page) = key.page.0.checked_add_signed(stream.step * ahead as i64) {
                predict(PageKey { page: PageNumber(page), ..key }, confidence);
            }
        }
    }
}

/// How far from its last fault a stream's next one may be.
fn reach(stream: &Stream) -> u64 {
    REACH_PAGES.max(stream.step.unsigned_abs().saturating_mul(MAX_AHEAD + 1).min(1 << 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(page: u64) -> PageKey {
        PageKey { page: PageNumber(page), ..Default::default() }
    }

    fn faults_left(pages: impl Iterator<Item = u64>) -> usize {
        let mut strides = Strides::default();
        let mut there = std::collections::HashSet::new();
        let mut faults = 0;
        for page in pages {
            if there.insert(page) {
                faults += 1;
                strides.faulted(key(page), |key, _| {
                    there.insert(key.page.0);
                });
            }
        }
        faults
    }

    #[test]
    fn walks_hardly_fault() {
        assert!(faults_left(1000..2000) < 80);
        assert!(faults_left((1000..2000).rev()) < 80);
        assert!(faults_left((0..1000).map(|i| i * 7)) < 80);
        let interleaved = (0..500).flat_map(|i| [1000 + i, 50_000 + 2 * i]);
        assert!(faults_left(interleaved) < 120);
    }

    #[test]
    fn random_faults_predict_nothing() {
        let mut strides = Strides::default();
        let mut predicted = 0;
        for i in 0..1000 {
            strides.faulted(key(crate::testing::mix(1, i) % (1 << 30)), |_, _| predicted += 1);
        }
        assert!(predicted < 20, "{predicted}");
    }

    proptest! {
        #[test]
        fn any_faults_are_survived(pages in proptest::collection::vec(any::<u64>(), 0..200)) {
            let mut strides = Strides::default();
            for page in pages {
                let mut count = 0;
                strides.faulted(key(page), |_, _| count += 1);
                prop_assert!(count <= MAX_AHEAD);
            }
        }
    }
}
