//! Bounded logs that any number of readers follow: the engine's events, a sandbox's log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

struct State<T> {
    records: VecDeque<(u64, T)>,
    next: u64,
    /// What the records weigh together.
    bytes: usize,
    wakers: Vec<Waker>,
}

/// A log of the newest records. Clones are the same log.
pub struct Follow<T> {
    state: Arc<Mutex<State<T>>>,
    kept: usize,
    bytes_kept: usize,
    weigh: fn(&T) -> usize,
}

impl<T> Clone for Follow<T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), ..*self }
    }
}

impl<T> std::fmt::Debug for Follow<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl<T: Clone> Follow<T> {
    /// A log of at most so many records, of which none is large.
    pub(crate) fn new(kept: usize) -> Self {
        Self::weighed(kept, usize::MAX, |_record| 0)
    }

    /// A log of at most so many records that together weigh at most so many bytes.
    pub(crate) fn weighed(kept: usize, bytes_kept: usize, weigh: fn(&T) -> usize) -> Self {
        let state = State { records: VecDeque::new(), next: 1, bytes: 0, wakers: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)), kept, bytes_kept, weigh }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what `make` makes of the next sequence number.
    pub(crate) fn push(&self, make: impl FnOnce(u64) -> T) {
        let mut state = self.state();
        let sequence = state.next;
        state.next += 1;
        let record = make(sequence);
        state.bytes += (self.weigh)(&record);
        state.records.push_back((sequence, record));
        while state.records.len() > self.kept || state.bytes > self.bytes_kept {
            let Some((_, oldest)) = state.records.pop_front() else { break };
            state.bytes -= (self.weigh)(&oldest);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The sequence number of the next record.
    pub fn next_sequence(&self) -> u64 {
        self.state().next
    }

    /// All records kept from `sequence` on, with the number to ask for next.
    pub fn since(&self, sequence: u64) -> (Vec<T>, u64) {
        let state = self.state();
        let from = state.records.partition_point(|(number, _)| *number < sequence);
        (state.records.range(from..).map(|(_, record)| record.clone()).collect(), state.next)
    }

    /// As [`since`](Self::since), ready once there is at least one.
    pub fn poll_since(&self, context: &mut Context<'_>, sequence: u64) -> Poll<(Vec<T>, u64)> {
        let found = self.since(sequence);
        if !found.0.is_empty() {
            return Poll::Ready(found);
        }
        let mut state = self.state();
        if state.next > found.1 {
            drop(state);
            return Poll::Ready(self.since(sequence));
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_numbers_tell_of_gaps() {
        let log = Follow::new(3);
        for _ in 0..5 {
            log.push(|sequence| sequence);
        }
        assert_eq!(log.since(0), (vec![3, 4, 5], 6));
        assert_eq!(log.since(5), (vec![5], 6));
        assert_eq!(log.since(6), (vec![], 6));
    }

    #[test]
    fn large_records_push_more_of_the_others_out() {
        let log = Follow::weighed(100, 10, |text: &String| text.len());
        for text in ["aaaa", "bbbb", "cc", "ddddddd"] {
            log.push(|_sequence| text.to_owned());
        }
        assert_eq!(log.since(0).0, ["cc", "ddddddd"]);
        log.push(|_sequence| "x".repeat(11));
        assert!(log.since(0).0.is_empty(), "a record beyond the bound is not kept");
    }
}
