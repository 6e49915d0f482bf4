//! Giving up the memory of pages whose content is kept elsewhere.

use std::collections::BTreeSet;
use std::ops::Range;

use brood_kernel::injection::{Batch, CallIndex};
use brood_kernel::maps::Protection;
use brood_kernel::ptrace;
use brood_pager::{Adoption, PagedSpace};
use rustix::process::Pid;

use crate::births_of_paged;
use crate::engine_area;
use crate::error::{Error, Result, kernel};
use crate::proc_files;
use crate::puppet::Puppet;
use crate::tree::{StoppedProcess, StoppedTree, Tree, list_descendants};
use crate::watcher::{Paging, Watcher};

const PAGE_BYTES: u64 = 4096;
/// Most pages of arguments and of environment that stay; more is not shown by any tool.
const TEXT_PAGES_MAX: usize = 32;
/// Mappings made by one batch.
const MAPPINGS_PER_BATCH: usize = 256;
/// Room that one call without data takes in a batch.
const CALL_ROOM: usize = 96;

/// A process, told from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// As the host sees it.
    pub pid: Pid,
    /// When it started, in ticks since the host did.
    pub start_time: u64,
}

impl Tree {
    /// The processes of the tree at this moment, parents before their children. They run on.
    ///
    /// # Errors
    /// If PID 1 is gone.
    pub fn running(&self) -> Result<Vec<Pid>> {
        list_descendants(self.init())
    }
}

impl Tree {
    /// The address spaces of processes that are in the care of a pager, as far as the tree knows.
    pub fn spaces(&self) -> impl Iterator<Item = (Pid, &PagedSpace)> {
        let spaces = self.members.iter().map(|(pid, member)| (*pid, member.watcher.as_ref().and_then(Watcher::space)));
        spaces.filter_map(|(pid, space)| Some((pid, space?)))
    }

    /// That of one process.
    #[must_use]
    pub fn space(&self, pid: Pid) -> Option<&PagedSpace> {
        self.members.get(&pid)?.watcher.as_ref()?.space()
    }
}

impl StoppedTree<'_> {
    /// The processes, zombies left out, with their numbers inside the sandbox.
    pub fn identities(&self) -> impl Iterator<Item = (ProcessIdentity, i32)> {
        let alive = self.processes.iter().filter(|process| !process.is_zombie());
        alive.map(|process| {
            let identity = ProcessIdentity { pid: process.pid, start_time: process.start_time };
            (identity, process.inside.0)
        })
    }

    /// Pages of a process that have to stay: those that its threads stand on (stack, code, thread area), which they touch
    /// first when they go on, and arguments and environment, which `/proc` reads without waiting for anybody.
    ///
    /// # Errors
    /// If there is no such process, or it can't be looked at.
    pub fn essential_pages(&self, pid: Pid) -> Result<BTreeSet<u64>> {
        let process = self.alive(pid)?;
        let page = |address: u64| address & !(PAGE_BYTES - 1);
        let mut pages = BTreeSet::new();
        for thread in &process.threads {
            let rseq =
                ptrace::rseq_configuration(thread.tid).map_err(kernel(thread.tid, "read restartable sequences"))?;
            let registers = &thread.registers;
            pages.extend([registers.rsp, registers.rip, registers.fs_base, rseq.address].map(page));
        }
        let stat = proc_files::stat(pid, &mut Vec::new())?;
        for (start, end) in [stat.arguments, stat.environment] {
            pages.extend((page(start)..end).step_by(PAGE_BYTES as usize).take(TEXT_PAGES_MAX));
        }
        Ok(pages)
    }

    /// Gives up the memory of ranges of a process: their pages are absent afterwards. Returns those that the kernel
    /// did not give up (locked memory, say), whose pages are as they were.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it; some ranges may have been given up then.
    pub fn give_up_pages(&mut self, pid: Pid, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>> {
        self.prepare_areas()?;
        let process = self.alive(pid)?;
        let (Some(area), Some(leader)) = (process.area, process.threads.first()) else {
            return Ok(ranges.to_vec());
        };
        let mut kept = Vec::new();
        let mut rest = ranges.iter().peekable();
        while rest.peek().is_some() {
            let mut batch = Batch::new(area);
            let mut calls: Vec<(CallIndex, &Range<u64>)> = Vec::new();
            while batch.free_bytes() >= CALL_ROOM
                && let Some(range) = rest.next()
            {
                let arguments = [range.start, range.end - range.start, libc::MADV_DONTNEED as u64];
                calls.push((batch.attempt(libc::SYS_madvise, &arguments), range));
            }
            let results = engine_area::run(process, leader, &batch)?;
            let failed = calls.into_iter().filter(|(call, _)| results.result(*call).is_err());
            kept.extend(failed.map(|(_, range)| range.clone()));
        }
        Ok(kept)
    }

    /// The address space of a process in the care of the pager, which it is put into if it isn't yet. The tree's tracking
    /// of its writes then starts anew: the next capture copies all its pages.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it.
    pub fn paged(&mut self, pid: Pid, paging: &Paging) -> Result<&PagedSpace> {
        self.prepare_areas()?;
        births_of_paged::find(self)?;
        let process = self.alive(pid)?;
        let (area, start_time) = (process.area, process.start_time);
        let (Some(area), Some(leader)) = (area, process.threads.first().map(|thread| thread.tid)) else {
            return Err(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the threads" });
        };
        let member = self.tree.members.entry(pid).or_default();
        member.start_time = start_time;
        let is_paged = member.watcher.as_ref().is_some_and(|watcher| watcher.space().is_some() && watcher.is_alive());
        if !is_paged {
            // The old one first: a mapping has one at most.
            (member.watcher, member.base) = (None, None);
            let puppet = Puppet::new(pid, leader, area)?;
            let [device] = puppet.give(&[paging.device()])?[..] else {
                return Err(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the descriptors" });
            };
            let made = paging.watcher(&puppet, device, Adoption { keep_clean: true, observer: None });
            let mut batch = puppet.batch();
            batch.call(libc::SYS_close, &[u64::from(device.unsigned_abs())]);
            puppet.run(&batch)?;
            member.watcher = Some(made?);
        }
        let space = member.watcher.as_ref().and_then(Watcher::space);
        space.ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the watcher" })
    }

    /// Puts anonymous memory in the place of private mappings, whose content is gone then.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it.
    pub fn make_anonymous(&mut self, pid: Pid, mappings: &[(Range<u64>, Protection)]) -> Result<()> {
        self.prepare_areas()?;
        let process = self.alive(pid)?;
        let (Some(area), Some(leader)) = (process.area, process.threads.first()) else {
            return Err(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the threads" });
        };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
        for mappings in mappings.chunks(MAPPINGS_PER_BATCH) {
            let mut batch = Batch::new(area);
            for (range, protection) in mappings {
                let length = range.end - range.start;
                batch.call(libc::SYS_mmap, &[range.start, length, protection.bits().into(), flags, u64::MAX, 0]);
            }
            engine_area::run(process, leader, &batch)?;
        }
        Ok(())
    }

    fn alive(&self, pid: Pid) -> Result<&StoppedProcess> {
        let found = self.processes.iter().find(|process| process.pid == pid && !process.is_zombie());
        found.ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the process" })
    }
}
