//! The state of one process beside its threads, memory and descriptors.

use brood_kernel::injection::{Batch, BatchResults, CallIndex, Output};
use brood_kernel::ptrace::SignalInformation;

use crate::address_space::AddressSpaceImage;
use crate::descriptors::DescriptorImage;
use crate::descriptors::terminal::ControllingTerminal;
use crate::error::NamespacePid;
use crate::signals::{self, ActionsQuery, SignalAction};
use crate::thread::ThreadImage;
use crate::timers::{PosixTimer, Timers, TimersQuery};
use crate::words::u64_at;

/// Kinds of resource limits.
const LIMITS: u64 = 16;
/// Bytes of a limit: soft and hard.
const LIMIT_BYTES: usize = 16;
/// Argument of personality(2) that only asks.
const ASK_PERSONALITY: u64 = 0xffff_ffff;

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or waits for something.
    Running,
    /// Job control stopped it with this signal.
    Stopped(i32),
    /// It has ended with this wait status and waits to be collected.
    Zombie(i32),
}

/// What a process is and has, apart from memory, threads and descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessAttributes {
    /// Actions on signals that aren't plain defaults.
    pub actions: Vec<SignalAction>,
    /// Its timers.
    pub timers: Timers,
    /// Soft and hard limits by number.
    pub limits: Vec<[u64; 2]>,
    /// Current end of the heap.
    pub heap_end: u64,
    /// Whether others of the same user may look into it (`PR_GET_DUMPABLE`).
    pub dumpable: u64,
    /// Signal that it gets when its parent ends.
    pub parent_death_signal: u64,
    /// Orphans below it become its children.
    pub child_subreaper: bool,
    /// No huge pages for it.
    pub no_huge_pages: bool,
    /// Execution domain and its flags.
    pub personality: u64,
}

/// One process of a tree.
#[derive(Debug, Clone)]
pub struct ProcessImage {
    /// As the sandbox sees it.
    pub pid: NamespacePid,
    /// Its parent; 1 for PID 1 of the sandbox.
    pub parent: NamespacePid,
    /// Its process group.
    pub group: NamespacePid,
    /// Its session.
    pub session: NamespacePid,
    /// Its name, for messages.
    pub name: Box<str>,
    /// Whether it runs.
    pub state: ProcessState,
    /// Its threads, the leader first; none for a zombie.
    pub threads: Vec<ThreadImage>,
    /// Its memory; none for a zombie.
    pub memory: Option<AddressSpaceImage>,
    /// Its descriptors, by number.
    pub descriptors: Vec<DescriptorImage>,
    /// Working directory, as a path inside the sandbox.
    pub working_directory: Box<str>,
    /// Root directory, as a path inside the sandbox: "/" unless it called chroot.
    pub root_directory: Box<str>,
    /// Bits of the file creation mask.
    pub umask: u32,
    /// How likely the kernel picks it when memory runs out, -1000 to 1000.
    pub out_of_memory_score: i32,
    /// Signals that wait for the whole process.
    pub pending: Vec<SignalInformation>,
    /// The terminal of the session that it leads.
    pub terminal: Option<ControllingTerminal>,
    /// The rest.
    pub attributes: ProcessAttributes,
}

/// Questions about a process in a batch that runs in its leader.
#[derive(Debug)]
pub(crate) struct ProcessQuery {
    actions: ActionsQuery,
    timers: TimersQuery,
    limits: Output,
    heap_end: CallIndex,
    dumpable: CallIndex,
    parent_death_signal: Output,
    child_subreaper: Output,
    no_huge_pages: CallIndex,
    personality: CallIndex,
}

impl ProcessQuery {
    pub(crate) fn ask(batch: &mut Batch, interesting_signals: u64, timers: Vec<PosixTimer>) -> Self {
        let actions = ActionsQuery::ask(batch, interesting_signals);
        let timers = TimersQuery::ask(batch, timers);
        let limits = batch.output(LIMITS as usize * LIMIT_BYTES);
        for resource in 0..LIMITS {
            let output = limits.address + resource * LIMIT_BYTES as u64;
            batch.call(libc::SYS_prlimit64, &[0, resource, 0, output]);
        }
        let parent_death_signal = batch.output(8);
        batch.call(libc::SYS_prctl, &[libc::PR_GET_PDEATHSIG as u64, parent_death_signal.address]);
        let child_subreaper = batch.output(8);
        batch.call(libc::SYS_prctl, &[libc::PR_GET_CHILD_SUBREAPER as u64, child_subreaper.address]);
        Self {
            actions,
            timers,
            limits,
            heap_end: batch.call(libc::SYS_brk, &[0]),
            dumpable: batch.call(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as u64]),
            parent_death_signal,
            child_subreaper,
            no_huge_pages: batch.call(libc::SYS_prctl, &[libc::PR_GET_THP_DISABLE as u64]),
            personality: batch.call(libc::SYS_personality, &[ASK_PERSONALITY]),
        }
    }

    pub(crate) fn read(&self, results: &BatchResults) -> ProcessAttributes {
        let value = |call: CallIndex| results.result(call).unwrap_or(0);
        let word = |output: Output| u64_at(results.output(output), 0);
        let limits = results.output(self.limits);
        ProcessAttributes {
            actions: self.actions.read(results),
            timers: self.timers.read(results),
            limits: limits.chunks_exact(LIMIT_BYTES).map(|limit| [u64_at(limit, 0), u64_at(limit, 8)]).collect(),
            heap_end: value(self.heap_end),
            dumpable: value(self.dumpable),
            parent_death_signal: word(self.parent_death_signal),
            child_subreaper: word(self.child_subreaper) != 0,
            no_huge_pages: value(self.no_huge_pages) != 0,
            personality: value(self.personality),
        }
    }
}

/// Restores what a process has beside memory and descriptors, in a batch that runs in its
/// leader while it still has all capabilities of its user namespace.
pub(crate) fn restore_attributes(batch: &mut Batch, image: &ProcessImage) {
    let attributes = &image.attributes;
    let prctl = |option: libc::c_int| option as u64;
    signals::restore_actions(batch, &attributes.actions);
    batch.call(libc::SYS_umask, &[u64::from(image.umask)]);
    batch.call(libc::SYS_personality, &[attributes.personality]);
    if attributes.child_subreaper {
        batch.call(libc::SYS_prctl, &[prctl(libc::PR_SET_CHILD_SUBREAPER), 1]);
    }
    if attributes.no_huge_pages {
        batch.call(libc::SYS_prctl, &[prctl(libc::PR_SET_THP_DISABLE), 1]);
    }
}

/// Puts back what a living process may have changed, signal actions and timers left aside.
pub(crate) fn reset_attributes(batch: &mut Batch, image: &ProcessImage) {
    let attributes = &image.attributes;
    let prctl = |option: libc::c_int| option as u64;
    batch.call(libc::SYS_personality, &[attributes.personality]);
    batch.call(libc::SYS_prctl, &[prctl(libc::PR_SET_CHILD_SUBREAPER), u64::from(attributes.child_subreaper)]);
    batch.call(libc::SYS_prctl, &[prctl(libc::PR_SET_THP_DISABLE), u64::from(attributes.no_huge_pages)]);
    restore_limits(batch, image);
}

/// Restores limits. A hard limit above the engine's own can't be given, as everywhere in
/// containers; then the engine's stays.
pub(crate) fn restore_limits(batch: &mut Batch, image: &ProcessImage) {
    for (resource, limit) in (0..).zip(&image.attributes.limits) {
        let limit = batch.data(&crate::words::bytes_of_u64(limit));
        batch.attempt(libc::SYS_prlimit64, &[0, resource, limit, 0]);
    }
}

/// Restores what a change of credentials would undo, after it.
pub(crate) fn restore_after_credentials(batch: &mut Batch, attributes: &ProcessAttributes) {
    batch.call(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, attributes.parent_death_signal]);
    // 2 means "root only" and can't be set; it is what the kernel falls back to by itself.
    let dumpable = u64::from(attributes.dumpable == 1);
    batch.call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, dumpable]);
}
