//! The seed: an almost empty process of the engine from which all restored processes descend.
//!
//! It has no memory but the engine area and the kernel's own mappings, no descriptors but one
//! end of a pipe, and no user-space threads or registrations. Forking it costs little and leaks
//! nothing of the engine into a sandbox. It waits in a read of that pipe, untraced, and ends by
//! itself when the engine does.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brood_kernel::injection::{self, Batch, CODE_BYTES, EngineArea};
use brood_kernel::ptrace::{self, Options, Stop};
use brood_kernel::{clone, maps};
use brood_pager::Pager;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::engine_area::WANTED_ADDRESS;
use crate::error::{Error, Result, kernel};
use crate::puppet::Puppet;
use crate::signals;
use crate::watcher::Paging;

/// How the seed and all that descends from it are traced. They die with the engine until they
/// are let go.
pub(crate) const OPTIONS: Options = Options::SYSCALL_GOOD
    .union(Options::FORK)
    .union(Options::VFORK)
    .union(Options::CLONE)
    .union(Options::EXIT_KILL)
    .union(Options::SUSPEND_SECCOMP);
/// The seed's only descriptor: the engine's pipe.
const PIPE: u64 = 0;
/// First address that user space can't have.
const USER_SPACE_END: u64 = 0x7fff_ffff_f000;

/// One of the kernel's own mappings in the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecialMapping {
    pub(crate) name: Box<str>,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The seed process. Dropping it ends it.
#[derive(Debug)]
pub struct Seed {
    pid: Pid,
    area: EngineArea,
    specials: Vec<SpecialMapping>,
    /// Held by whoever works with the seed.
    turn: Mutex<()>,
    /// The seed reads from the other end and ends when this one is closed.
    _pipe: OwnedFd,
    /// Restored processes get their pages when they touch them.
    paging: Option<Paging>,
}

/// The seed while it is traced by this thread.
#[derive(Debug)]
pub(crate) struct SeedTurn<'seed> {
    seed: &'seed Seed,
    pub(crate) puppet: Puppet,
    _turn: MutexGuard<'seed, ()>,
}

impl Seed {
    /// Makes a seed by forking this process and emptying the child. Best done while the process
    /// is small.
    ///
    /// # Errors
    /// If the child can't be made or traced.
    pub fn new() -> Result<Self> {
        let own = rustix::process::getpid();
        let (reader, writer) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(kernel(own, "make a pipe"))?;
        let pid = clone::fork_paused().map_err(kernel(own, "make a copy"))?;
        let mut guard = KillGuard(Some(pid));
        ptrace::seize(pid, OPTIONS).map_err(kernel(pid, "seize the seed"))?;
        stop(pid)?;
        let mut buffer = Vec::new();
        let mappings = maps::read(pid, &mut buffer).map_err(kernel(pid, "read mappings"))?;
        let specials: Vec<SpecialMapping> = mappings
            .iter()
            .filter(|mapping| mapping.is_special() && &*mapping.name != "[vsyscall]")
            .map(|mapping| SpecialMapping { name: mapping.name.clone(), start: mapping.start, end: mapping.end })
            .collect();
        let vdso = specials.iter().find(|special| &*special.name == "[vdso]").map(|special| special.start);
        let instruction = vdso
            .zip(injection::syscall_instruction_in_vdso().ok())
            .map(|(start, offset)| start + offset)
            .ok_or(Error::DoesNotFit { reason: "there is no vdso".into() })?;
        let memory = brood_kernel::process_memory::open(pid).map_err(kernel(pid, "open the memory"))?;
        let area = injection::map_area(pid, &memory, instruction, WANTED_ADDRESS)?;
        let puppet = Puppet::new(pid, pid, area)?;
        empty(&puppet, &specials, reader.as_raw_fd())?;
        guard.0 = None;
        let seed = Self { pid, area, specials, turn: Mutex::new(()), _pipe: writer, paging: None };
        park(&puppet)?;
        Ok(seed)
    }

    /// Has the processes that descend from this seed get their pages from a pager when they touch
    /// them, instead of all pages before they run.
    ///
    /// # Errors
    /// If the host doesn't allow it: the kernel lacks something or `/dev/userfaultfd` can't be
    /// opened. The seed works as before then.
    pub fn page_with(&mut self, pager: Arc<Pager>) -> Result<()> {
        self.paging = Some(Paging::new(pager)?);
        Ok(())
    }

    pub(crate) fn paging(&self) -> Option<&Paging> {
        self.paging.as_ref()
    }

    pub(crate) fn specials(&self) -> &[SpecialMapping] {
        &self.specials
    }

    pub(crate) fn area(&self) -> EngineArea {
        self.area
    }

    /// Traces the seed from this thread until the result is dropped.
    pub(crate) fn take_turn(&self) -> Result<SeedTurn<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        ptrace::seize(self.pid, OPTIONS).map_err(kernel(self.pid, "seize the seed"))?;
        stop(self.pid)?;
        let puppet = Puppet::new(self.pid, self.pid, self.area)?;
        Ok(SeedTurn { seed: self, puppet, _turn: turn })
    }
}

impl Drop for SeedTurn<'_> {
    fn drop(&mut self) {
        if let Err(error) = park(&self.puppet) {
            tracing::error!(%error, pid = ?self.seed.pid, "the seed is lost");
        }
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        drop(KillGuard(Some(self.pid)));
    }
}

/// Kills and reaps a child unless it is disarmed.
struct KillGuard(Option<Pid>);

impl Drop for KillGuard {
    fn drop(&mut self) {
        if let Some(pid) = self.0
            && rustix::process::kill_process(pid, Signal::KILL).is_ok()
        {
            while ptrace::wait(pid, true).is_ok_and(|stop| !stop.is_none_or(Stop::is_end)) {}
        }
    }
}

fn stop(pid: Pid) -> Result<()> {
    ptrace::interrupt(pid).map_err(kernel(pid, "stop the seed"))?;
    loop {
        let stop = ptrace::wait(pid, true).map_err(kernel(pid, "wait for the seed"))?;
        match stop {
            Some(stop) if stop.is_interrupt() => return Ok(()),
            Some(Stop::Exited(_) | Stop::Killed(_)) | None => {
                return Err(kernel(pid, "wait for the seed")(Errno::SRCH));
            }
            Some(_) => ptrace::resume(pid, 0).map_err(kernel(pid, "resume the seed"))?,
        }
    }
}

/// Takes everything from a fresh copy of the engine that it doesn't need.
fn empty(puppet: &Puppet, specials: &[SpecialMapping], pipe: i32) -> Result<()> {
    let mut batch = puppet.batch();
    batch.call(libc::SYS_dup2, &[u64::from(pipe.unsigned_abs()), PIPE]);
    batch.call(libc::SYS_close_range, &[PIPE + 1, u64::from(u32::MAX), 0]);
    let rseq = ptrace::rseq_configuration(puppet.tid).map_err(kernel(puppet.pid, "read restartable sequences"))?;
    if rseq.address != 0 {
        const UNREGISTER: u64 = 1;
        let arguments = [rseq.address, u64::from(rseq.length_bytes), UNREGISTER, u64::from(rseq.signature)];
        batch.call(libc::SYS_rseq, &arguments);
    }
    batch.call(libc::SYS_set_robust_list, &[0, 24]);
    batch.call(libc::SYS_set_tid_address, &[0]);
    batch.attempt(libc::SYS_setsid, &[]);
    let root = batch.text(b"/");
    batch.call(libc::SYS_chdir, &[root]);
    let name = batch.text(b"brood-seed");
    batch.call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
    signals::restore_actions(&mut batch, &[]);
    let limit = batch.output(16);
    batch.call(libc::SYS_prlimit64, &[0, u64::from(libc::RLIMIT_NOFILE), 0, limit.address]);
    let results = puppet.run(&batch)?;
    let hard = results.output(limit)[8..16].to_vec();

    let mut batch = puppet.batch();
    let raised = batch.data(&[hard.clone(), hard].concat());
    batch.call(libc::SYS_prlimit64, &[0, u64::from(libc::RLIMIT_NOFILE), raised, 0]);
    let mut kept: Vec<(u64, u64)> = specials.iter().map(|special| (special.start, special.end)).collect();
    kept.push((puppet.area.start, puppet.area.end()));
    kept.sort_unstable();
    let mut start = 0;
    for (next, end) in kept.into_iter().chain([(USER_SPACE_END, USER_SPACE_END)]) {
        if next > start {
            batch.call(libc::SYS_munmap, &[start, next - start]);
        }
        start = end;
    }
    puppet.run(&batch)?;
    Ok(())
}

/// Lets the seed wait for the end of the engine, untraced.
fn park(puppet: &Puppet) -> Result<()> {
    let mut batch = Batch::new(puppet.area);
    let byte = batch.output(1);
    batch.attempt(libc::SYS_read, &[PIPE, byte.address, 1]);
    batch.call(libc::SYS_exit_group, &[0]);
    debug_assert!(puppet.area.start + CODE_BYTES < puppet.area.end());
    Ok(batch.start_and_detach(puppet.tid, &puppet.memory, &puppet.registers()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_keeps_nothing_of_the_engine_and_can_be_used_again() {
        let seed = Seed::new().unwrap();
        let mut buffer = Vec::new();
        let mappings = maps::read(seed.pid, &mut buffer).unwrap();
        let foreign: Vec<_> = mappings
            .iter()
            .filter(|mapping| {
                !mapping.is_special() && (mapping.end <= seed.area.start || mapping.start >= seed.area.end())
            })
            .collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        let descriptors = crate::proc_files::numbered_entries(seed.pid, "fd").unwrap();
        assert_eq!(descriptors, [0]);
        for _ in 0..3 {
            let turn = seed.take_turn().unwrap();
            let mut batch = turn.puppet.batch();
            let pid = batch.call(libc::SYS_getpid, &[]);
            let results = turn.puppet.run(&batch).unwrap();
            assert_eq!(results.result(pid).unwrap(), u64::from(seed.pid.as_raw_nonzero().get().unsigned_abs()));
        }
        let pid = seed.pid;
        drop(seed);
        assert_eq!(rustix::process::test_kill_process(pid), Err(Errno::SRCH));
    }

    #[test]
    fn a_seed_ends_when_the_engine_closes_its_pipe() {
        let mut seed = Seed::new().unwrap();
        let (_reader, other) = rustix::pipe::pipe().unwrap();
        drop(std::mem::replace(&mut seed._pipe, other));
        assert_eq!(ptrace::wait(seed.pid, true).unwrap(), Some(Stop::Exited(0)));
    }
}
