//! What squeezing and bringing back did.

use std::time::Duration;

use brood_pages::codec::Codec;

/// What one squeeze of a sandbox did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqueezeReport {
    /// Processes looked at.
    pub processes: usize,
    /// Private pages that were present and could be squeezed.
    pub private_pages: usize,
    /// Private pages left alone: of files, locked, part of huge pages.
    pub left_alone_pages: usize,
    /// Pages whose memory was given up, all together.
    pub given_up_pages: usize,
    /// Of these, pages that were the template's or zeros again and are kept nowhere.
    pub dropped_pages: usize,
    /// Pages that were written while they were encoded, and stay.
    pub changed_pages: usize,
    /// Given-up pages by codec, in the order of [`Codec::ALL`].
    pub pages_by_codec: [usize; Codec::ALL.len()],
    /// Bytes of the frames that were stored for them.
    pub frame_bytes: u64,
    /// Time for copying and encoding, while the tasks run.
    pub encoding: Duration,
    /// Time that the tasks stood still, all together.
    pub standstill: Duration,
    /// The longest time in a row that they did.
    pub standstill_longest: Duration,
    /// It was called off before all pages were done.
    pub cancelled: bool,
}

impl SqueezeReport {
    /// Adds what was done for another sandbox.
    pub fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.private_pages += other.private_pages;
        self.left_alone_pages += other.left_alone_pages;
        self.given_up_pages += other.given_up_pages;
        self.dropped_pages += other.dropped_pages;
        self.changed_pages += other.changed_pages;
        for (mine, theirs) in self.pages_by_codec.iter_mut().zip(other.pages_by_codec) {
            *mine += theirs;
        }
        self.frame_bytes += other.frame_bytes;
        self.encoding += other.encoding;
        self.standstill += other.standstill;
        self.standstill_longest = self.standstill_longest.max(other.standstill_longest);
        self.cancelled |= other.cancelled;
    }
}

/// What bringing pages back did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Pages put in place.
    pub pages: usize,
    /// Time that it took.
    pub elapsed: Duration,
}
