//! Rolling a living tree back to an image in place.
//!
//! Processes that exist in both are kept: pages that differ are written back, descriptors and
//! attributes corrected, registers set. Processes that the image doesn't have are killed. If a
//! process of the image is missing, or is not the one that it was (another parent or session,
//! privileges given up, stopped by job control since), the whole tree is made anew: its
//! processes end and the image is restored into the same namespaces.

use std::time::{Duration, Instant};

use brood_kernel::ptrace;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::births::end;
use crate::capture::ProcessTreeImage;
use crate::descriptors::table::FileSurvey;
use crate::descriptors::{DescriptorImage, Externals};
use crate::error::{Error, NamespacePid, Result, kernel};
use crate::process::ProcessState;
use crate::puppet::Puppet;
use crate::reset;
use crate::restore::{self, OpenDescriptors, RestoreTarget, RestoredTree, Supplies};
use crate::seed::Seed;
use crate::tree::{StoppedProcess, StoppedTree, Tree};

/// `__WALL`: wait for children whatever signal they send.
const WAIT_ALL: u64 = 0x4000_0000;
/// How long PID 1 may take to collect processes that were ended.
const COLLECTION_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between looks at whether it has.
const COLLECTION_PAUSE: Duration = Duration::from_micros(100);

/// How a rollback is done.
#[derive(Debug, Clone, Copy)]
pub struct RollbackRequest<'a> {
    /// The sandbox's namespaces and root directory.
    pub target: RestoreTarget<'a>,
    /// Makes processes, should the tree have to be made anew.
    pub seed: &'a Seed,
    /// What lies outside.
    pub externals: &'a dyn Externals,
    /// The files below the root were exchanged: open files and working directories must be
    /// opened again even where nothing else changed.
    pub files_exchanged: bool,
}

/// What a rollback did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RollbackStatistics {
    /// Processes that were kept.
    pub kept: usize,
    /// Processes that were killed.
    pub killed: usize,
    /// Whether the tree was made anew.
    pub made_anew: bool,
    /// Pages written or dropped in kept processes.
    pub pages: usize,
}

/// A tree that was rolled back and still stands.
#[derive(Debug)]
pub enum RolledBack<'tree> {
    /// Its processes were kept; they go on when it is resumed or dropped.
    InPlace(StoppedTree<'tree>),
    /// It was made anew.
    Anew(Box<RestoredTree>, &'tree mut Tree),
}

impl RolledBack<'_> {
    /// Lets the tree go on from where the image was taken.
    ///
    /// # Errors
    /// If the tree was made anew and a task can't be let go.
    pub fn run(self) -> Result<()> {
        match self {
            Self::InPlace(stopped) => {
                let _standstill = stopped.resume();
            }
            Self::Anew(restored, tree) => *tree = restored.run()?,
        }
        Ok(())
    }
}

impl<'tree> StoppedTree<'tree> {
    /// Puts the tree back to an image of it. On an error in the middle the tree is in neither
    /// state and must be ended.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn roll_back(
        mut self,
        image: &ProcessTreeImage,
        request: &RollbackRequest<'_>,
    ) -> Result<(RolledBack<'tree>, RollbackStatistics)> {
        self.prepare_areas()?;
        if let Some(reason) = self.cannot_stay(image) {
            tracing::debug!(reason, "the tree is made anew");
            let killed = self.processes.len();
            let (restored, tree) = self.make_anew(image, request)?;
            let statistics = RollbackStatistics { killed, made_anew: true, ..RollbackStatistics::default() };
            return Ok((RolledBack::Anew(Box::new(restored), tree), statistics));
        }
        let killed = self.end_extra(image)?;
        let pages = self.reset_all(image, request)?;
        let kept = self.processes.len();
        let statistics = RollbackStatistics { kept, killed, made_anew: false, pages };
        Ok((RolledBack::InPlace(self), statistics))
    }

    /// Why the processes of an image can't be kept, if they can't.
    fn cannot_stay(&self, image: &ProcessTreeImage) -> Option<&'static str> {
        for wanted in &image.processes {
            let Some(process) = self.processes.iter().find(|process| process.inside == wanted.pid) else {
                return Some("a process has ended");
            };
            let parent = self.parent_of(process);
            if parent != Some(wanted.parent) || process.status.session != wanted.session.0 {
                return Some("a process has another parent or session");
            }
            if process.is_zombie() || matches!(wanted.state, ProcessState::Zombie(_)) {
                if process.is_zombie() && matches!(wanted.state, ProcessState::Zombie(_)) {
                    continue;
                }
                return Some("a process has ended and waits, or not any more");
            }
            let state = process.threads.first()?.job_control_signal();
            if (state.is_some()) != matches!(wanted.state, ProcessState::Stopped(_)) {
                return Some("a process was stopped or continued by job control");
            }
            let member = self.tree.members.get(&process.pid);
            let is_known = member.is_some_and(|member| member.base.is_some() && member.watcher.is_some());
            if !is_known {
                return Some("a process was replaced or is not known yet");
            }
            if let Some(reason) = reset::cannot_stay(process, wanted) {
                return Some(reason);
            }
        }
        None
    }

    fn parent_of(&self, process: &StoppedProcess) -> Option<NamespacePid> {
        if process.status.parent == self.tree.init().as_raw_nonzero().get() {
            return Some(NamespacePid::INIT);
        }
        let found = self.processes.iter().find(|other| other.pid.as_raw_nonzero().get() == process.status.parent);
        found.map(|other| other.inside)
    }

    /// Kills processes that the image doesn't have and has their parents collect them.
    fn end_extra(&mut self, image: &ProcessTreeImage) -> Result<usize> {
        let is_wanted = |process: &StoppedProcess| image.processes.iter().any(|wanted| wanted.pid == process.inside);
        let (kept, extra): (Vec<_>, Vec<_>) = std::mem::take(&mut self.processes).into_iter().partition(is_wanted);
        self.processes = kept;
        for process in extra.iter().filter(|process| !process.is_zombie()) {
            end_all_threads(process)?;
        }
        let collectors: Vec<(Pid, NamespacePid)> = extra
            .iter()
            .filter_map(|process| {
                let number = process.status.parent;
                let parent = self.processes.iter().find(|other| other.pid.as_raw_nonzero().get() == number)?;
                Some((parent.pid, process.inside))
            })
            .collect();
        for (parent, child) in collectors {
            let process = self.processes.iter().find(|process| process.pid == parent);
            let Some(puppet) = process.map(puppet_of).transpose()? else { continue };
            let mut batch = puppet.batch();
            batch.attempt(libc::SYS_wait4, &[u64::from(child.0.unsigned_abs()), 0, WAIT_ALL, 0]);
            puppet.run(&batch)?;
        }
        for process in &extra {
            self.tree.members.remove(&process.pid);
        }
        Ok(extra.len())
    }

    /// Resets every process that was kept.
    fn reset_all(&mut self, image: &ProcessTreeImage, request: &RollbackRequest<'_>) -> Result<usize> {
        let (tables, files_differ) = self.compare_files(image, request)?;
        let mut supplies = Supplies::new(image, request.target.root, request.externals)?;
        if files_differ {
            supplies.keep(restore::external_files(image, &tables)?);
        }
        supplies.reset_memories(&self.processes)?;
        supplies.reset_terminals(&tables)?;
        let mut pages = 0;
        for process in self.processes.iter_mut().filter(|process| !process.is_zombie()) {
            let wanted = image.process(process.inside)?;
            let member = self.tree.members.entry(process.pid).or_default();
            let (changed, threads) = reset::reset(process, wanted, member, &mut supplies, files_differ)?;
            pages += changed;
            threads.into_iter().for_each(|tid| self.tasks.adopt(tid));
        }
        self.join_groups(image)?;
        Ok(pages)
    }

    /// The tree's descriptors now, and whether they (or the files) must be put back.
    fn compare_files(
        &self,
        image: &ProcessTreeImage,
        request: &RollbackRequest<'_>,
    ) -> Result<(OpenDescriptors, bool)> {
        let mut survey = FileSurvey::new(request.externals, &image.store);
        survey.tolerate();
        let mut tables: Vec<(Pid, NamespacePid, Vec<DescriptorImage>)> = Vec::new();
        for process in self.processes.iter().filter(|process| !process.is_zombie()) {
            tables.push((process.pid, process.inside, survey.add_process(process)?));
        }
        let files = survey.finish(&self.processes)?;
        let same_tables = tables
            .iter()
            .all(|(_, inside, table)| image.process(*inside).is_ok_and(|wanted| wanted.descriptors == *table));
        let same = same_tables
            && !request.files_exchanged
            && files.files == image.open_files.files
            && files.pipes == image.open_files.pipes;
        let mut open = OpenDescriptors::new();
        for (pid, _, table) in tables {
            for descriptor in table {
                open.insert((pid, descriptor.number), files.files[descriptor.file.0].clone());
            }
        }
        Ok((open, !same))
    }

    fn join_groups(&self, image: &ProcessTreeImage) -> Result<()> {
        for process in self.processes.iter().filter(|process| !process.is_zombie()) {
            let wanted = image.process(process.inside)?;
            if process.status.group != wanted.group.0 {
                let puppet = puppet_of(process)?;
                let mut batch = puppet.batch();
                batch.call(libc::SYS_setpgid, &[0, u64::from(wanted.group.0.unsigned_abs())]);
                puppet.run(&batch)?;
            }
        }
        for process in self.processes.iter().filter(|process| !process.is_zombie()) {
            if let Some(terminal) = image.process(process.inside)?.terminal {
                let puppet = puppet_of(process)?;
                let mut batch = puppet.batch();
                terminal.set_foreground(&mut batch);
                puppet.run(&batch)?;
            }
        }
        Ok(())
    }

    /// Ends all processes and restores the image in their place.
    fn make_anew(
        self,
        image: &ProcessTreeImage,
        request: &RollbackRequest<'_>,
    ) -> Result<(RestoredTree, &'tree mut Tree)> {
        // Ends that reach outside would be lost with the last process that has them.
        let (tables, _) = self.compare_files(image, request)?;
        let kept = restore::external_files(image, &tables)?;
        let pids: Vec<Pid> = self.processes.iter().map(|process| process.pid).collect();
        for process in self.processes.iter().filter(|process| !process.is_zombie()) {
            end_all_threads(process)?;
        }
        let tree = self.into_tree();
        let deadline = Instant::now() + COLLECTION_DEADLINE;
        for pid in pids {
            while rustix::process::test_kill_process(pid) != Err(Errno::SRCH) {
                if Instant::now() > deadline {
                    return Err(Error::Kernel {
                        pid: pid.as_raw_nonzero().get(),
                        action: "see the end",
                        source: Errno::TIMEDOUT,
                    });
                }
                std::thread::park_timeout(COLLECTION_PAUSE);
            }
        }
        let restored = image.restore_with(request.seed, &request.target, request.externals, kept)?;
        Ok((restored, tree))
    }
}

/// A puppet for the leader of a process.
pub(crate) fn puppet_of(process: &StoppedProcess) -> Result<Puppet> {
    let missing = || Error::Malformed { pid: process.pid.as_raw_nonzero().get(), what: "the threads" };
    let leader = process.threads.first().ok_or_else(missing)?;
    Puppet::new(process.pid, leader.tid, process.area.ok_or_else(missing)?)
}

/// Kills a process and collects all its traced threads.
fn end_all_threads(process: &StoppedProcess) -> Result<()> {
    end_threads_first(process)?;
    end(process.pid)
}

fn end_threads_first(process: &StoppedProcess) -> Result<()> {
    if process.threads.len() > 1 {
        match rustix::process::kill_process(process.pid, rustix::process::Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(kernel(process.pid, "end a process")(error)),
        }
        for thread in process.threads.iter().skip(1) {
            while ptrace::wait(thread.tid, true).is_ok_and(|stop| stop.is_some_and(|stop| !stop.is_end())) {}
        }
    }
    Ok(())
}
