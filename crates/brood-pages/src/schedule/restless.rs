//! Pages that are written again and again.

use crate::page::PageKey;

/// Counters; one byte each. Pages share them by hash, which at worst leaves a quiet page unsqueezed for a while.
const COUNTERS: usize = 1 << 12;

/// Scans in which a page must have been written, of the last few, to be left alone.
const RESTLESS_AT: u8 = 4;

/// Counts cannot grow beyond this, so that a page which comes to rest is noticed after as many scans.
const MAX_COUNT: u8 = 6;

/// The write habits of one sandbox while it should be idle: what a background process keeps writing would be restored
/// at once, so it is not squeezed.
#[derive(Clone, Debug)]
pub struct RestlessPages {
    counts: Box<[u8; COUNTERS]>,
    written: Box<[u64; COUNTERS / 64]>,
}

impl Default for RestlessPages {
    fn default() -> Self {
        Self { counts: Box::new([0; COUNTERS]), written: Box::new([0; COUNTERS / 64]) }
    }
}

impl RestlessPages {
    /// Hears that the scan under way found this page written.
    pub fn written(&mut self, key: PageKey) {
        let at = place(key);
        self.written[at / 64] |= 1 << (at % 64);
    }

    /// The scan is over: written pages count up, the others down.
    pub fn scan_ended(&mut self) {
        for (at, count) in self.counts.iter_mut().enumerate() {
            let written = self.written[at / 64] >> (at % 64) & 1 == 1;
            *count = if written { (*count + 1).min(MAX_COUNT) } else { count.saturating_sub(1) };
        }
        self.written.fill(0);
    }

    /// Whether the page should be left alone.
    #[must_use]
    pub fn is_restless(&self, key: PageKey) -> bool {
        self.counts[place(key)] >= RESTLESS_AT
    }
}

fn place(key: PageKey) -> usize {
    let mixed = (key.page.0 ^ u64::from(key.lineage.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 44) as usize % COUNTERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageNumber;

    #[test]
    fn a_page_becomes_restless_and_comes_to_rest() {
        let key = |page| PageKey { page: PageNumber(page), ..Default::default() };
        let mut pages = RestlessPages::default();
        for scan in 0..20 {
            assert_eq!(pages.is_restless(key(1)), scan >= 4, "scan {scan}");
            pages.written(key(1));
            pages.written(key(1));
            pages.scan_ended();
        }
        assert!(!pages.is_restless(key(2)));
        (0..3).for_each(|_| pages.scan_ended());
        assert!(!pages.is_restless(key(1)));
    }
}
