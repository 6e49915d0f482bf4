//! Which work is next.
//!
//! A sandbox is *busy* (a tool call runs), or *idle* (its think gap). Work is offered for it at any time and done when
//!
//! - its policy allows it at the present pressure,
//! - it is idle and the gap is expected to last long enough to pay,
//!
//! most profitable first (bytes saved per microsecond), except that every fourth turn goes to the sandbox that has waited
//! longest: so with `n` sandboxes that have work nobody waits for more than `4 n` turns, however unprofitable. When a tool call
//! begins, the sandbox's work is called off: what is queued goes back to the caller, what is under way sees its lease cancelled
//! and ends after the page in flight.
//!
//! At critical pressure busy sandboxes are worked on as well, one turn in [`GENTLE_TURNS`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{GapEstimator, Hint, Level};
use crate::pool::CohortId;

/// Every so many turns the longest waiting sandbox is served instead of the most profitable.
const FAIR_TURNS: u64 = 4;

/// At critical pressure, one in so many turns may go to a busy sandbox.
const GENTLE_TURNS: u64 = 16;

/// A sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(pub u64);

/// When a sandbox may be squeezed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In every gap that pays.
    #[default]
    Always,
    /// Only while memory is short.
    Pressure,
    /// Never.
    Never,
}

/// Some pages of a sandbox to squeeze together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The caller's name for it.
    pub tag: u64,
    /// Bytes that it should save.
    pub saves_bytes: u64,
    /// What it should take, encoding, reclaim and later restoring included.
    pub costs: Duration,
}

impl Job {
    fn profit(&self) -> f64 {
        self.saves_bytes as f64 / self.costs.as_secs_f64().max(1e-9)
    }
}

/// A job under way. Dropping it without [`Scheduler::finished`] would keep its worker slot taken for ever.
#[derive(Clone, Debug)]
#[must_use]
pub struct Lease {
    /// Whose pages.
    pub sandbox: SandboxId,
    /// What to do.
    pub job: Job,
    number: u64,
    cancelled: Arc<AtomicBool>,
}

impl Lease {
    /// To be asked between two pages: whether to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// What the scheduler is told once.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Jobs under way at once.
    pub workers: usize,
    /// A gap is worth using if it probably lasts this many times what the job costs.
    pub gap_factor: f64,
    /// "Probably": the quantile of the expected remaining gap that is looked at.
    pub gap_quantile: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { workers: 1, gap_factor: 3.0, gap_quantile: 0.25 }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Jobs handed out.
    pub started: u64,
    /// Jobs that were under way when their sandbox became busy.
    pub cancelled: u64,
    /// Queued jobs that a tool call sent back.
    pub called_off: u64,
    /// Gaps that ended before the work done in them had paid: they were estimated too long.
    pub gaps_overestimated: u64,
    /// Gaps that would have paid and were not used: estimated too short.
    pub gaps_underestimated: u64,
}

#[derive(Debug)]
struct Sandbox {
    cohort: CohortId,
    policy: Policy,
    state: State,
    queue: VecDeque<Job>,
    /// The turn at which it was served last, or had its first work.
    served_at: u64,
    /// Cost of the work done in this gap.
    worked: Duration,
    under_way: Vec<(u64, Arc<AtomicBool>)>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Busy,
    Idle { since: Duration, position: usize, hint: Option<Hint> },
}

/// The scheduler of a host.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    level: Level,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    gaps: HashMap<CohortId, GapEstimator>,
    under_way: usize,
    turn: u64,
    next_lease: u64,
    counters: Counters,
}

impl Scheduler {
    /// A scheduler without sandboxes.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            level: Level::default(),
            sandboxes: BTreeMap::new(),
            gaps: HashMap::new(),
            under_way: 0,
            turn: 0,
            next_lease: 0,
            counters: Counters::default(),
        }
    }

    /// A sandbox exists; it is busy until it is said to be idle.
    pub fn add(&mut self, sandbox: SandboxId, cohort: CohortId, policy: Policy) {
        self.gaps.entry(cohort).or_default();
        let state = Sandbox {
            cohort,
            policy,
            state: State::Busy,
            queue: VecDeque::new(),
            served_at: self.turn,
            worked: Duration::ZERO,
            under_way: Vec::new(),
        };
        self.sandboxes.insert(sandbox, state);
    }

    /// A sandbox is gone: its queued work is dropped, work under way is cancelled.
    pub fn remove(&mut self, sandbox: SandboxId) {
        if let Some(state) = self.sandboxes.remove(&sandbox) {
            state.under_way.iter().for_each(|(_, cancelled)| cancelled.store(true, Ordering::Release));
        }
    }

    /// Drops what was learnt about a cohort that is gone.
    pub fn forget_cohort(&mut self, cohort: CohortId) {
        self.gaps.remove(&cohort);
    }

    /// The pressure changed.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// A tool call ended, the `position`-th gap begins.
    pub fn idle(&mut self, now: Duration, sandbox: SandboxId, position: usize, hint: Option<Hint>) {
        if let Some(state) = self.sandboxes.get_mut(&sandbox) {
            state.state = State::Idle { since: now, position, hint };
            state.worked = Duration::ZERO;
            // Waiting counts from when it can be served.
            state.served_at = self.turn;
        }
    }

    /// A tool call begins: everything for the sandbox is called off. Returns what was queued, for the caller to offer again
    /// when it has looked what was written meanwhile.
    pub fn busy(&mut self, now: Duration, sandbox: SandboxId) -> Vec<Job> {
        let Some(state) = self.sandboxes.get_mut(&sandbox) else { return Vec::new() };
        state.under_way.iter().for_each(|(_, cancelled)| cancelled.store(true, Ordering::Release));
        self.counters.cancelled += state.under_way.len() as u64;
        if let State::Idle { since, position, .. } = state.state {
            let gap = now.saturating_sub(since);
            let needed = |work: Duration| work.mul_f64(self.settings.gap_factor);
            if gap < needed(state.worked) {
                self.counters.gaps_overestimated += 1;
            } else if state.queue.front().is_some_and(|job| state.worked.is_zero() && gap > needed(job.costs)) {
                self.counters.gaps_underestimated += 1;
            }
            self.gaps.entry(state.cohort).or_default().observed(position, gap);
        }
        state.state = State::Busy;
        self.counters.called_off += state.queue.len() as u64;
        state.queue.drain(..).collect()
    }

    /// There is something to squeeze.
    pub fn offer(&mut self, sandbox: SandboxId, job: Job) {
        if let Some(state) = self.sandboxes.get_mut(&sandbox) {
            if state.queue.is_empty() {
                state.served_at = self.turn;
            }
            let at = state.queue.partition_point(|other| other.profit() >= job.profit());
            state.queue.insert(at, job);
        }
    }

    /// The next work, if a worker is free and there is some that pays now.
    pub fn next(&mut self, now: Duration) -> Option<Lease> {
        if self.under_way >= self.settings.workers {
            return None;
        }
        let sandbox = self.choose(now)?;
        self.turn += 1;
        let number = self.next_lease;
        self.next_lease += 1;
        let state = self.sandboxes.get_mut(&sandbox)?;
        let job = state.queue.pop_front()?;
        let cancelled = Arc::new(AtomicBool::new(false));
        state.served_at = self.turn;
        state.worked += job.costs;
        state.under_way.push((number, Arc::clone(&cancelled)));
        self.under_way += 1;
        self.counters.started += 1;
        Some(Lease { sandbox, job, number, cancelled })
    }

    fn choose(&self, now: Duration) -> Option<SandboxId> {
        let gentle = self.level == Level::Critical && self.turn % GENTLE_TURNS == GENTLE_TURNS - 1;
        let ready = self.sandboxes.iter().filter(|(_, state)| self.pays(now, state, gentle));
        if self.turn % FAIR_TURNS == FAIR_TURNS - 1 {
            return ready.min_by_key(|(id, state)| (state.served_at, **id)).map(|(id, _)| *id);
        }
        let profit = |state: &Sandbox| state.queue.front().map_or(0.0, Job::profit);
        ready.max_by(|a, b| profit(a.1).total_cmp(&profit(b.1)).then(b.0.cmp(a.0))).map(|(id, _)| *id)
    }

    /// Whether the sandbox's best job may be done now.
    fn pays(&self, now: Duration, state: &Sandbox, gentle: bool) -> bool {
        let Some(job) = state.queue.front() else { return false };
        let allowed = match state.policy {
            Policy::Always => true,
            Policy::Pressure => self.level >= Level::Short,
            Policy::Never => false,
        };
        match state.state {
            _ if !allowed => false,
            State::Busy => gentle,
            State::Idle { since, position, hint } => {
                let elapsed = now.saturating_sub(since);
                let gaps = self.gaps.get(&state.cohort);
                let left = gaps.map(|gaps| gaps.remaining(position, elapsed, self.settings.gap_quantile, hint));
                // When memory is critical, even a gap that may be too short is used.
                self.level == Level::Critical
                    || left.is_some_and(|left| left >= job.costs.mul_f64(self.settings.gap_factor))
            }
        }
    }

    /// A job ended, whole or cancelled.
    pub fn finished(&mut self, lease: Lease) {
        self.under_way -= 1;
        if let Some(state) = self.sandboxes.get_mut(&lease.sandbox) {
            state.under_way.retain(|(number, _)| *number != lease.number);
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Jobs that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.sandboxes.values().map(|state| state.queue.len()).sum()
    }
}

#[cfg(test)]
mod tests;
