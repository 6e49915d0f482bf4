//! Putting pages in place ahead of their being touched, without delaying those that are waited
//! for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use brood_kernel::fault_service::{Answer, PageBuffer};
use brood_kernel::shared_pages::PAGE_BYTES;

use crate::source::{PageAddress, Supply};
use crate::space::{Space, State};
use crate::statistics::{Counters, count};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages copied by one call: large enough that the call's own cost is small, small enough that a
/// task that waits for the same address space is not delayed by more than some 10 us.
const BATCH_PAGES: usize = 8;
/// Times that a copy is put off because the address space is being changed before its page is
/// left alone: it is supplied when it is touched.
const DELAYS_MAX: usize = 1000;

/// Pause between looks at a space to which nothing is supplied for the moment (a rollback, which
/// takes about a millisecond).
const HOLD_PAUSE: Duration = Duration::from_micros(200);

type Job = (Weak<Space>, Vec<Range<PageAddress>>);

/// What background threads are to fill.
#[derive(Debug, Default)]
pub(crate) struct FillQueue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    queue: VecDeque<Job>,
    closed: bool,
}

impl FillQueue {
    pub(crate) fn push(&self, space: Weak<Space>, ranges: Vec<Range<PageAddress>>) {
        self.lock().queue.push_back((space, ranges));
        self.changed.notify_one();
    }

    /// Ends the threads once each is done with the job in hand.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The life of a filling thread.
    pub(crate) fn work(&self, counters: &Counters) {
        while let Some((space, ranges)) = self.next() {
            if let Some(space) = space.upgrade() {
                fill(&space, counters, &ranges);
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if jobs.closed {
                return None;
            }
            match jobs.queue.pop_front() {
                Some(job) => return Some(job),
                None => jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills ranges; returns the number of pages put in place.
pub(crate) fn fill(space: &Space, counters: &Counters, ranges: &[Range<PageAddress>]) -> usize {
    let mut buffer = PageBuffer::<BATCH_PAGES>::new();
    let mut total = 0;
    for range in ranges {
        let (mut at, mut delays) = (range.start, 0);
        loop {
            if space.wanted.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
                continue;
            }
            let mut state = space.state();
            if state.held {
                drop(state);
                std::thread::park_timeout(HOLD_PAUSE);
                continue;
            }
            match fill_batch(space, &mut state, &mut buffer, at, range.end.get()) {
                Step::Filled { pages, next } => {
                    total += pages;
                    count(&counters.ahead_pages, pages as u64);
                    (at, delays) = (next, 0);
                }
                Step::Later if delays < DELAYS_MAX => {
                    delays += 1;
                    drop(state);
                    std::thread::yield_now();
                }
                Step::Later | Step::Finished => break,
                Step::Ended => return total,
            }
        }
    }
    total
}

enum Step {
    Filled { pages: usize, next: PageAddress },
    Later,
    Finished,
    Ended,
}

/// Fills the next pages in a row. The state stays locked from looking up to putting in place:
/// what the process changes in between is not applied before.
fn fill_batch(
    space: &Space,
    state: &mut State,
    buffer: &mut PageBuffer<BATCH_PAGES>,
    from: PageAddress,
    end: u64,
) -> Step {
    let Some(first) = state.owed.next(from, end) else { return Step::Finished };
    let (mut pages, mut clean) = (0, None);
    while pages < BATCH_PAGES {
        let address = PageAddress::of(first.get() + pages as u64 * PAGE);
        let owed = if address.get() < end { state.owed.lookup(address) } else { None };
        let (Some(owed), Some(page)) = (owed, buffer.page_mut(pages)) else { break };
        let is_clean = space.keep_clean && owed.source.arrives_clean();
        if *clean.get_or_insert(is_clean) != is_clean || owed.source.supply(owed.origin, page) != Supply::Page {
            break;
        }
        pages += 1;
    }
    let after = |pages: u64| PageAddress::of(first.get() + pages * PAGE);
    if pages == 0 {
        // Lost: whoever touches it is told.
        return Step::Filled { pages: 0, next: after(1) };
    }
    match space.userfaultfd.supply(first.get(), buffer, 0, pages, clean.unwrap_or(false)) {
        Ok(Answer::Done) => {
            state.owed.settle(first.get(), after(pages as u64).get());
            Step::Filled { pages, next: after(pages as u64) }
        }
        Ok(Answer::Later { done: 0 }) => Step::Later,
        Ok(Answer::Later { done } | Answer::Exists { done }) if done > 0 => {
            state.owed.settle(first.get(), first.get() + done);
            Step::Filled { pages: (done / PAGE) as usize, next: after(done / PAGE) }
        }
        Ok(Answer::Exists { .. } | Answer::Later { .. }) => {
            state.owed.settle(first.get(), after(1).get());
            Step::Filled { pages: 0, next: after(1) }
        }
        Ok(Answer::Unmapped) => Step::Filled { pages: 0, next: after(pages as u64) },
        Ok(Answer::Ended) => Step::Ended,
        Err(error) => {
            tracing::warn!(address = first.get(), %error, "pages could not be put in place ahead");
            Step::Filled { pages: 0, next: after(pages as u64) }
        }
    }
}
