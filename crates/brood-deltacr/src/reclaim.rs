//! Giving up the memory of pages whose content is kept elsewhere.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use brood_kernel::fault_service::USERFAULTFD_IOC_NEW;
use brood_kernel::injection::{Batch, CallIndex};
use brood_kernel::ptrace;
use brood_kernel::userfaultfd::{Features, Userfaultfd, Watch};
use rustix::process::Pid;

use crate::descriptors::table::duplicate;
use crate::engine_area;
use crate::error::{Error, Result, kernel};
use crate::proc_files;
use crate::puppet::Puppet;
use crate::tree::{StoppedProcess, StoppedTree, Tree, list_descendants};

/// What has to be followed for absent pages to stay those of their process, and the tracking of writes.
const FOLLOWED: Features = Features::EVENT_FORK
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP)
    .union(Features::POISON)
    .union(Features::WRITE_PROTECT_ASYNC)
    .union(Features::WRITE_PROTECT_UNPOPULATED);
const PAGE_BYTES: u64 = 4096;
/// Most pages of arguments and of environment that stay; more is not shown by any tool.
const TEXT_PAGES_MAX: usize = 32;
/// Bytes of a mapping that is made to see who notices.
const PROBE_BYTES: u64 = 4096;
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

    /// Makes a userfaultfd for a process that can follow all that happens to its memory and also serves touches from
    /// inside system calls. `device` is `/dev/userfaultfd`.
    ///
    /// The tree's own tracking of the process' writes ends: an address space has one userfaultfd for each mapping.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it.
    pub fn make_userfaultfd(&mut self, pid: Pid, device: BorrowedFd<'_>) -> Result<Userfaultfd> {
        self.prepare_areas()?;
        let process = self.alive(pid)?;
        let (Some(area), Some(leader)) = (process.area, process.threads.first()) else {
            return Err(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the threads" });
        };
        let puppet = Puppet::new(pid, leader.tid, area)?;
        let [device] = puppet.give(&[device])?[..] else {
            return Err(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the descriptors" });
        };
        let flags = u64::from((libc::O_CLOEXEC | libc::O_NONBLOCK).unsigned_abs());
        let mut batch = puppet.batch();
        let device = u64::from(device.unsigned_abs());
        let made = batch.attempt(libc::SYS_ioctl, &[device, USERFAULTFD_IOC_NEW.into(), flags]);
        batch.call(libc::SYS_close, &[device]);
        let number = puppet.run(&batch)?.result(made).map_err(kernel(pid, "watch the memory"))?;
        let descriptor = duplicate(pid, i32::try_from(number).unwrap_or(-1));
        let mut batch = puppet.batch();
        batch.call(libc::SYS_close, &[number]);
        puppet.run(&batch)?;
        let descriptor = descriptor.map_err(kernel(pid, "take over a userfaultfd"))?;
        let made = Userfaultfd::start(descriptor, FOLLOWED).map_err(kernel(pid, "watch the memory"))?;
        if let Some(member) = self.tree.members.get_mut(&pid) {
            (member.watcher, member.base) = (None, None);
        }
        Ok(made)
    }

    /// Whether a userfaultfd serves this process' memory, rather than that of another.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it.
    pub fn is_served_by(&mut self, pid: Pid, userfaultfd: &Userfaultfd) -> Result<bool> {
        self.prepare_areas()?;
        let process = self.alive(pid)?;
        let (Some(area), Some(leader)) = (process.area, process.threads.first()) else { return Ok(false) };
        // Only in the memory that it serves does a mapping come and go for it.
        let probe = area.end();
        let mut batch = Batch::new(area);
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let made = batch.attempt(libc::SYS_mmap, &[probe, PROBE_BYTES, libc::PROT_NONE as u64, flags, u64::MAX, 0]);
        if engine_area::run(process, leader, &batch)?.result(made).is_err() {
            return Ok(false);
        }
        let with = userfaultfd.register(probe, PROBE_BYTES, Watch::MISSING).is_ok();
        let mut batch = Batch::new(area);
        batch.call(libc::SYS_munmap, &[probe, PROBE_BYTES]);
        engine_area::run(process, leader, &batch)?;
        let without = userfaultfd.register(probe, PROBE_BYTES, Watch::MISSING).is_ok();
        Ok(with && !without)
    }

    fn alive(&self, pid: Pid) -> Result<&StoppedProcess> {
        let found = self.processes.iter().find(|process| process.pid == pid && !process.is_zombie());
        found.ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the process" })
    }
}
