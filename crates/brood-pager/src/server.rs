//! Answering one address space: applying what it reports, supplying pages.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use brood_kernel::fault_service::{Answer, Fault, PageBuffer, Report};
use brood_kernel::shared_pages::PAGE_BYTES;

use crate::owed::Owed;
use crate::pager::Shared;
use crate::source::{PageAddress, Supply};
use crate::space::{Adoption, Space, State, Waiting};
use crate::statistics::count;

const PAGE: u64 = PAGE_BYTES as u64;
/// Most pages put in place for one fault.
const WINDOW_PAGES: usize = 16;
/// Times that a fault is tried again at once while its address space is being changed; the task
/// that changes it may only need the processor.
const QUICK_RETRIES: usize = 16;

/// What is left to do for an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing.
    Idle,
    /// Faults that can't be answered yet.
    Unfinished,
    /// It is gone.
    Ended,
}

/// How one fault went.
enum Answered {
    Yes,
    Later,
    Ended,
}

/// The buffers of one serving thread.
#[derive(Debug)]
pub(crate) struct Server {
    shared: Arc<Shared>,
    buffer: Box<PageBuffer<WINDOW_PAGES>>,
    zeros: Box<PageBuffer<1>>,
    reports: Vec<Report>,
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, buffer: PageBuffer::new(), zeros: PageBuffer::new(), reports: Vec::new() }
    }

    /// Works off what a wake-up stands for, unless another thread is at it, which then does.
    pub(crate) fn drain(&mut self, space: &Arc<Space>) -> Outcome {
        let mut arrived = space.arrivals.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived != 1 {
            return Outcome::Idle;
        }
        loop {
            let outcome = self.serve(space);
            arrived = match space.arrivals.fetch_sub(arrived, Ordering::AcqRel) - arrived {
                0 => return outcome,
                more => more,
            };
        }
    }

    fn serve(&mut self, space: &Arc<Space>) -> Outcome {
        let mut state = space.state_urgently();
        let mut retries = 0;
        loop {
            if let Err(error) = space.userfaultfd.read_reports(&mut self.reports) {
                // A forked child's descriptor found no room: its parent waits until one does.
                tracing::error!(space = space.id.get(), %error, "what a process does to its memory can't be read");
                return Outcome::Unfinished;
            }
            let quiet = self.reports.is_empty();
            if quiet && state.waiting.is_empty() && state.doubtful.is_empty() {
                return Outcome::Idle;
            }
            self.apply(space, &mut state);
            if state.held {
                if quiet {
                    return Outcome::Idle;
                }
                continue;
            }
            if !self.settle_doubts(space, &mut state) || !self.answer_all(space, &mut state) {
                return Outcome::Ended;
            }
            let finished = state.waiting.is_empty() && state.doubtful.is_empty();
            if quiet && !finished {
                retries += 1;
                if retries > QUICK_RETRIES {
                    return Outcome::Unfinished;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Applies changes in the order reported; faults are answered after all of them.
    fn apply(&mut self, space: &Arc<Space>, state: &mut State) {
        let now = Instant::now();
        let observer = space.observer.as_ref();
        let range = |start: u64, end: u64| -> Range<PageAddress> { PageAddress::of(start)..PageAddress::of(end) };
        let mut changes = 0;
        for report in self.reports.drain(..) {
            changes += u64::from(!matches!(report, Report::Fault(_)));
            match report {
                Report::Fault(fault) => state.waiting.push(Waiting { fault, since: now }),
                Report::Forked(userfaultfd) => {
                    let id = self.shared.next_id();
                    let observer = observer.and_then(|observer| observer.forked(id));
                    let adoption = Adoption { keep_clean: space.keep_clean, observer };
                    let child = Space::new(id, space.lineage, userfaultfd, adoption, state.owed.clone());
                    self.shared.insert(Arc::new(child));
                }
                Report::Moved { from, to, bytes } => {
                    state.owed.relocate(from, to, bytes);
                    if let Some(observer) = observer {
                        observer.moved(range(from, from + bytes), PageAddress::of(to));
                    }
                }
                Report::Removed { start, end } => {
                    state.owed.give_up(start, end);
                    if let Some(observer) = observer {
                        observer.removed(range(start, end));
                    }
                }
                Report::Unmapped { start, end } => {
                    unmap(state, start, end);
                    if let Some(observer) = observer {
                        observer.unmapped(range(start, end));
                    }
                }
            }
        }
        count(&self.shared.counters.changes, changes);
    }

    /// Finds out about ranges that were removed or filled by a move, whichever came last: the
    /// kernel reports two threads' changes in any order. Returns false if the space has ended.
    fn settle_doubts(&mut self, space: &Space, state: &mut State) -> bool {
        for (start, end) in std::mem::take(&mut state.doubtful) {
            let Some(page) = state.owed.next(PageAddress::of(start), end) else {
                state.owed.cut(start, end);
                continue;
            };
            match self.supply(space, state, Fault { address: page.get(), write: false }) {
                (Answer::Unmapped, _) => state.owed.cut(start, end),
                (Answer::Later { .. }, _) => state.doubtful.push((start, end)),
                (Answer::Ended, _) => return false,
                (Answer::Done | Answer::Exists { .. }, _) => {}
            }
        }
        true
    }

    /// Answers what waits, as far as possible. Returns false if the space has ended.
    fn answer_all(&mut self, space: &Space, state: &mut State) -> bool {
        let mut ended = false;
        let mut waiting = std::mem::take(&mut state.waiting);
        waiting.retain(|waiting| match self.answer(space, state, waiting.fault) {
            Answered::Yes => {
                self.shared.counters.faults.record(waiting.since.elapsed());
                if let Some(observer) = &space.observer {
                    observer.touched(PageAddress::of(waiting.fault.address));
                }
                false
            }
            Answered::Later => true,
            Answered::Ended => {
                ended = true;
                false
            }
        });
        state.waiting = waiting;
        !ended
    }

    fn answer(&mut self, space: &Space, state: &mut State, fault: Fault) -> Answered {
        let (answer, counted) = self.supply(space, state, fault);
        match answer {
            Answer::Done => {
                count(counted.map_or(&self.shared.counters.zero_pages, |counter| counter(&self.shared)), 1);
                Answered::Yes
            }
            // Another fault of the same page was answered, or the page isn't mapped any more:
            // the task looks again.
            Answer::Exists { .. } | Answer::Unmapped => {
                if let Err(error) = space.userfaultfd.wake(fault.address, PAGE) {
                    tracing::error!(address = fault.address, %error, "a waiting task can't be woken");
                }
                Answered::Yes
            }
            Answer::Later { .. } => Answered::Later,
            Answer::Ended => Answered::Ended,
        }
    }

    /// Puts a page in place, with those beside it that the source wants there too.
    fn supply(&mut self, space: &Space, state: &mut State, fault: Fault) -> (Answer, Option<Counter>) {
        let page = PageAddress::of(fault.address);
        let Some(owed) = state.owed.lookup(page) else { return (self.zeros(space, fault), None) };
        let index = (page.get() / PAGE) as usize % WINDOW_PAGES;
        let Some(place) = self.buffer.page_mut(index) else { return (Answer::Later { done: 0 }, None) };
        match owed.source.supply(owed.origin, place) {
            Supply::Zero => (self.zeros(space, fault), None),
            Supply::Unknown => (self.fail(space, page), Some(|shared| &shared.counters.lost_pages)),
            Supply::Page => {
                let counter: Counter = |shared| &shared.counters.waited_pages;
                (self.copy_window(space, state, fault, &owed, index), Some(counter))
            }
        }
    }

    fn copy_window(&mut self, space: &Space, state: &mut State, fault: Fault, owed: &Owed, index: usize) -> Answer {
        let page = PageAddress::of(fault.address);
        let size = owed.source.together(owed.origin).clamp(1, WINDOW_PAGES).next_power_of_two();
        let window = index / size * size..(index / size + 1) * size;
        let address =
            |other: usize| page.get().wrapping_add((other as u64).wrapping_sub(index as u64).wrapping_mul(PAGE));
        let clean = space.keep_clean && owed.source.arrives_clean();
        let mut last = index + 1;
        while last < window.end && self.is_neighbour(state, owed, address(last), last) {
            last += 1;
        }
        let mut first = index;
        while first > window.start && self.is_neighbour(state, owed, address(first - 1), first - 1) {
            first -= 1;
        }
        let pages = last - first;
        if pages > 1 {
            let answer = self.copy(space, address(first), first, pages, clean);
            if answer == Answer::Done {
                state.owed.settle(address(first), address(last));
                count(&self.shared.counters.neighbour_pages, pages as u64 - 1);
                return answer;
            }
            if let Answer::Later { done } | Answer::Exists { done } = answer {
                state.owed.settle(address(first), address(first) + done);
            }
        }
        // What is about to be written is not protected first.
        let answer = self.copy(space, page.get(), index, 1, clean && !fault.write);
        if matches!(answer, Answer::Done | Answer::Exists { .. }) {
            state.owed.settle(page.get(), page.get() + PAGE);
        }
        answer
    }

    fn is_neighbour(&mut self, state: &State, beside: &Owed, address: u64, index: usize) -> bool {
        let Some(owed) = state.owed.lookup(PageAddress::of(address)) else { return false };
        if owed.source.arrives_clean() != beside.source.arrives_clean() {
            return false;
        }
        let page = self.buffer.page_mut(index);
        page.is_some_and(|page| owed.source.supply(owed.origin, page) == Supply::Page)
    }

    fn copy(&self, space: &Space, address: u64, first: usize, pages: usize, protect: bool) -> Answer {
        let copied = space.userfaultfd.supply(address, &self.buffer, first, pages, protect);
        copied.unwrap_or_else(|error| refused(space, address, error))
    }

    fn zeros(&self, space: &Space, fault: Fault) -> Answer {
        let supplied = if fault.write {
            space.userfaultfd.supply(fault.address, &self.zeros, 0, 1, false)
        } else {
            space.userfaultfd.supply_zeros(fault.address, PAGE)
        };
        supplied.unwrap_or_else(|error| refused(space, fault.address, error))
    }

    fn fail(&self, space: &Space, page: PageAddress) -> Answer {
        tracing::error!(space = space.id.get(), address = page.get(), "a page is lost; its toucher gets an error");
        if let Some(observer) = &space.observer {
            observer.lost(page);
        }
        let answer = space.userfaultfd.supply_failure(page.get(), PAGE);
        answer.unwrap_or_else(|error| refused(space, page.get(), error))
    }
}

type Counter = fn(&Shared) -> &std::sync::atomic::AtomicU64;

/// The kernel refused an answer that should be possible. The task waits: never zeros.
fn refused(space: &Space, address: u64, error: rustix::io::Errno) -> Answer {
    tracing::error!(space = space.id.get(), address, %error, "a page could not be put in place");
    Answer::Later { done: 0 }
}

/// Forgets a range that was removed. What was moved there is only forgotten once it is certain
/// that it isn't there any more.
fn unmap(state: &mut State, start: u64, end: u64) {
    for (first, range) in state.owed.pieces(start, end) {
        if range.moved {
            state.doubtful.push((first, range.end));
        } else {
            state.owed.cut(first, range.end);
        }
    }
}
