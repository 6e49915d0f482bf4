//! An address space whose pages are owed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brood_kernel::fault_service::Fault;
use brood_kernel::userfaultfd::Userfaultfd;

use crate::fill;
use crate::owed::OwedMap;
use crate::pager::Shared;
use crate::source::{Observer, PageAddress, PageSource};

/// A number that tells address spaces of a pager apart for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub(crate) u64);

impl SpaceId {
    /// The number itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// How an address space is served.
#[derive(Debug, Clone, Default)]
pub struct Adoption {
    /// Pages arrive write-protected, so that the asynchronous tracking of writes takes them for
    /// unwritten. All owed ranges must be watched for writes too.
    pub keep_clean: bool,
    /// Who wants to know what happens.
    pub observer: Option<Arc<dyn Observer>>,
}

/// What is known of an address space.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) owed: OwedMap,
    /// Faults that could not be answered yet.
    pub(crate) waiting: Vec<Waiting>,
    /// Removed ranges of which it isn't certain that they weren't filled by a move since.
    pub(crate) doubtful: Vec<(u64, u64)>,
    /// Nothing is supplied at present: what is owed is being changed.
    pub(crate) held: bool,
}

/// A fault and when it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) fault: Fault,
    pub(crate) since: Instant,
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) id: SpaceId,
    /// The adopted ancestor from which this one was forked, or itself.
    pub(crate) lineage: SpaceId,
    pub(crate) userfaultfd: Userfaultfd,
    pub(crate) keep_clean: bool,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Whether a [`PagedSpace`] stands for it.
    pub(crate) claimed: AtomicBool,
    /// Wake-ups that nobody has worked off yet.
    pub(crate) arrivals: AtomicU32,
    /// Threads that want the state because a task waits.
    pub(crate) wanted: AtomicU32,
    state: Mutex<State>,
}

impl Space {
    pub(crate) fn new(
        id: SpaceId,
        lineage: SpaceId,
        userfaultfd: Userfaultfd,
        adoption: Adoption,
        owed: OwedMap,
    ) -> Self {
        let state = Mutex::new(State { owed, ..State::default() });
        let (claimed, arrivals, wanted) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let Adoption { keep_clean, observer } = adoption;
        Self { id, lineage, userfaultfd, keep_clean, observer, claimed, arrivals, wanted, state }
    }

    /// The state, once whoever reads reports has applied them: a task that went on after its
    /// report was read is never ahead of what is known here.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The maps are consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for answering a task that waits, before anybody who works ahead.
    pub(crate) fn state_urgently(&self) -> MutexGuard<'_, State> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let state = self.state();
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        state
    }

    pub(crate) fn is_alive(&self) -> bool {
        /// Above what mmap gives out by default, below every program.
        const FIRST_CANDIDATE: u64 = 1 << 16;
        let state = self.state();
        let is_free = |address: &u64| state.owed.lookup(PageAddress::of(*address)).is_none();
        let unused = (FIRST_CANDIDATE..).step_by(4096).find(is_free).unwrap_or(FIRST_CANDIDATE);
        self.userfaultfd.serves_the_living(unused)
    }
}

/// An address space in the care of a pager.
///
/// Dropping it never harms the process: as long as it lives, it is served. To let a process end
/// its dependence, [`fill`](Self::fill) everything.
#[derive(Debug)]
pub struct PagedSpace {
    pub(crate) space: Arc<Space>,
    pub(crate) shared: Arc<Shared>,
}

impl PagedSpace {
    pub(crate) fn claim(space: Arc<Space>, shared: Arc<Shared>) -> Option<Self> {
        (!space.claimed.swap(true, Ordering::AcqRel)).then_some(Self { space, shared })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.space.id
    }

    /// The userfaultfd, for registering ranges and tracking writes. An address space can't have
    /// a second one for the same mappings.
    #[must_use]
    pub fn userfaultfd(&self) -> &Userfaultfd {
        &self.space.userfaultfd
    }

    /// Notes that a source has the pages of a range, which it knows by the addresses from
    /// `origin` on.
    ///
    /// The range must be registered for missing pages, its pages be absent, and the process
    /// stand still.
    pub fn owe(&self, range: Range<PageAddress>, source: Arc<dyn PageSource>, origin: PageAddress) {
        self.space.state().owed.owe(range.start.get(), range.end.get(), source, origin.get());
    }

    /// Changes what is owed in one step. As for [`owe`](Self::owe), the process stands still.
    pub fn change(&self, change: impl FnOnce(&mut OwedMap)) {
        change(&mut self.space.state().owed);
    }

    /// Supplies nothing until the result is dropped, however many tasks wait: for changing both
    /// the content of pages and what is owed. Reports are still followed. The process stands
    /// still, and nobody touches absent pages of it meanwhile.
    #[must_use]
    pub fn hold(&self) -> HeldSpace<'_> {
        self.space.state().held = true;
        HeldSpace { space: self }
    }

    /// What is owed now. If the process stands still, this is exact.
    #[must_use]
    pub fn owed(&self) -> OwedMap {
        self.space.state().owed.clone()
    }

    /// Puts the owed pages of some ranges in place, in order, from a background thread. Tasks
    /// that wait for a page come first.
    pub fn fill(&self, ranges: Vec<Range<PageAddress>>) {
        self.shared.fill_queue.push(Arc::downgrade(&self.space), ranges);
    }

    /// As [`fill`](Self::fill), on this thread; returns the number of pages put in place. Pages
    /// that can't be had at present are left for when they are touched.
    pub fn fill_now(&self, ranges: &[Range<PageAddress>]) -> usize {
        fill::fill(&self.space, &self.shared.counters, ranges)
    }

    /// Takes over the address spaces of processes that were forked from this one, and from
    /// those, and that nobody has taken over yet. They are served whether they are or not.
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        self.shared.remove_ended();
        let found = self.shared.spaces_of(self.space.lineage);
        found.into_iter().filter_map(|space| Self::claim(space, Arc::clone(&self.shared))).collect()
    }

    /// Whether the address space still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.space.is_alive()
    }
}

/// A space to which nothing is supplied until this is dropped.
#[derive(Debug)]
pub struct HeldSpace<'space> {
    space: &'space PagedSpace,
}

impl Drop for HeldSpace<'_> {
    fn drop(&mut self) {
        let waits = {
            let mut state = self.space.space.state();
            state.held = false;
            !state.waiting.is_empty() || !state.doubtful.is_empty()
        };
        if waits {
            self.space.shared.serve_here(&self.space.space);
        }
    }
}

impl Drop for PagedSpace {
    fn drop(&mut self) {
        self.space.claimed.store(false, Ordering::Release);
        if !self.space.is_alive() {
            self.shared.remove(self.space.id);
        }
    }
}
