//! Giving up the memory of pages whose content is kept elsewhere.

use std::ops::Range;

use brood_kernel::injection::{Batch, CallIndex};
use rustix::process::Pid;

use crate::engine_area;
use crate::error::{Error, Result};
use crate::tree::{StoppedTree, Tree, list_descendants};

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

    /// Gives up the memory of ranges of a process: their pages are absent afterwards. Returns those that the kernel
    /// did not give up (locked memory, say), whose pages are as they were.
    ///
    /// # Errors
    /// If there is no such process, or code can't be run in it; some ranges may have been given up then.
    pub fn give_up_pages(&mut self, pid: Pid, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>> {
        self.prepare_areas()?;
        let gone = Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the process" };
        let process = self.processes.iter().find(|process| process.pid == pid && !process.is_zombie());
        let process = process.ok_or(gone)?;
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
}
