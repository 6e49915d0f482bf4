//! Tool calls of a sandbox: started, found, remembered.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use brood_init_protocol::Kind;

use super::Sandbox;
use crate::cgroup::CallCgroup;
use crate::error::{EngineError, ErrorKind, Result};
use crate::limits;
use crate::model::{ExitReason, ProcessRequest};
use crate::output::{SubscribeFrom, Subscription};
use crate::process::{KillCause, Process, ProcessEnd, Streams, lock};
use crate::spawn;

/// A tool call that PID 1 has been asked for.
#[derive(Debug)]
pub(super) struct Starting {
    pub(super) process: Arc<Process>,
    /// None for a terminal: its descriptor comes with the answer.
    pub(super) pipes: Option<Streams>,
}

#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) live: HashMap<u32, Arc<Process>>,
    /// The newest last.
    pub(super) ended: VecDeque<Arc<Process>>,
    /// Older ones whose streams something that they started still holds.
    pub(super) outlived: Vec<Arc<Process>>,
}

/// Control groups of tool calls. They are used again, since making one costs more than a spawn.
#[derive(Debug, Default)]
pub(super) struct Calls {
    free: Vec<Arc<CallCgroup>>,
    /// Their call has ended, but something that it started lives on.
    lingering: Vec<Arc<CallCgroup>>,
    next: u32,
}

impl Sandbox {
    /// Starts a tool call or background process.
    ///
    /// # Errors
    /// `CommandNotFound`, `NotExecutable`, `Invalid` for a user or directory that does not exist,
    /// `Exhausted` at a limit, `NotFound` when the sandbox is gone.
    pub fn spawn(self: &Arc<Self>, request: ProcessRequest) -> Result<Arc<Process>> {
        self.spawn_read_by(request, |_process| ()).map(|(process, ())| process)
    }

    /// As [`spawn`](Self::spawn), with a reader that was there before the first byte, so that none
    /// can be lost to it.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with_output(self: &Arc<Self>, request: ProcessRequest) -> Result<(Arc<Process>, Subscription)> {
        self.spawn_read_by(request, |process| process.subscribe(SubscribeFrom::Start))
    }

    fn spawn_read_by<R>(
        self: &Arc<Self>,
        request: ProcessRequest,
        read: impl FnOnce(&Process) -> R,
    ) -> Result<(Arc<Process>, R)> {
        let _shared = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        self.ensure_running()?;
        let prepared = self.with_disk(|disk| spawn::prepare(self, disk, &request))??;
        let cgroup = self.take_call_group()?;
        let process = Process::new(&request, Arc::clone(&cgroup), Arc::downgrade(self));
        let reader = read(&process);
        let started = self.start_process(&process, prepared, &cgroup, &request);
        if let Err(error) = started {
            self.give_back(cgroup);
            return Err(error);
        }
        if let Some(timeout) = request.timeout {
            self.arm_timeout(&process, timeout);
        }
        self.announce("exec_start", process.pid(), [("command", process.arguments.join(" "))]);
        Ok((process, reader))
    }

    fn start_process(
        &self,
        process: &Arc<Process>,
        prepared: spawn::Prepared,
        cgroup: &CallCgroup,
        request: &ProcessRequest,
    ) -> Result<()> {
        let number = self.init.control.reserve();
        let spawn::Prepared { body, pipes } = prepared;
        let (ours, theirs) = match pipes {
            Some((ours, theirs)) => (Some(ours), theirs.into()),
            None => (None, Vec::new()),
        };
        lock(&self.starting).insert(number, Starting { process: Arc::clone(process), pipes: ours });
        let passed: Vec<_> = std::iter::once(cgroup.as_fd()).chain(theirs.iter().map(OwnedFd::as_fd)).collect();
        let sent = self.init.control.send(number, Kind::Spawn, &body, &passed);
        drop(passed);
        drop(theirs);
        let answer = sent.and_then(|pending| pending.wait(limits::ENTER_TIMEOUT));
        // Whatever came of it: the reactor took it out when it saw the answer.
        lock(&self.starting).remove(&number);
        match answer? {
            Ok(_) => Ok(()),
            Err(failed) => Err(spawn::failure(&self.id, request, failed)),
        }
    }

    fn arm_timeout(self: &Arc<Self>, process: &Arc<Process>, timeout: Duration) {
        let weak = Arc::downgrade(process);
        let timer = self.core.reactor.at(Instant::now() + timeout, move || {
            if let Some(process) = weak.upgrade()
                && let Err(error) = process.kill_because(KillCause::TimedOut)
            {
                tracing::error!(error = %error.chain(), "a call whose time is up cannot be killed");
            }
        });
        *lock(&process.timer) = Some(timer);
        // It may have ended meanwhile.
        if process.info().exit.is_some() {
            self.core.reactor.cancel(timer);
        }
    }

    pub(crate) fn take_call_group(&self) -> Result<Arc<CallCgroup>> {
        let mut calls = lock(&self.calls);
        if let Some(free) = calls.free.pop() {
            return Ok(free);
        }
        let lingering = std::mem::take(&mut calls.lingering);
        let (busy, empty): (Vec<_>, Vec<_>) = lingering.into_iter().partition(|group| group.is_populated());
        let (fresh, spent): (Vec<_>, Vec<_>) = empty.into_iter().partition(|group| group.is_fresh());
        calls.lingering = busy;
        calls.free = fresh;
        let free = calls.free.pop();
        let number = calls.next;
        calls.next += u32::from(free.is_none());
        drop(calls);
        spent.iter().for_each(|group| group.remove());
        match free {
            Some(free) => Ok(free),
            None => self.cgroup.create_call(number).map(Arc::new),
        }
    }

    pub(super) fn give_back(&self, group: Arc<CallCgroup>) {
        let reusable = group.is_fresh() && !group.is_populated();
        let mut calls = lock(&self.calls);
        if reusable { calls.free.push(group) } else { calls.lingering.push(group) }
    }

    /// All live tool calls and background processes.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        let mut processes: Vec<_> = lock(&self.processes).live.values().cloned().collect();
        processes.sort_by_key(|process| process.pid());
        processes
    }

    /// The live ones, those that ended lately, and those whose streams live on.
    pub(crate) fn all_processes(&self) -> Vec<Arc<Process>> {
        let processes = lock(&self.processes);
        processes.live.values().chain(&processes.ended).chain(&processes.outlived).cloned().collect()
    }

    /// Keeps one that had ended before the state that it came with was frozen, for its streams.
    pub(crate) fn adopt_ended(&self, process: &Arc<Process>, pid: u32, streams: Streams) {
        process.started(pid, streams, &self.core.reactor, &self.log);
        self.remember(Arc::clone(process));
    }

    /// Follows a process that came with a checkpoint.
    pub(crate) fn adopt_process(&self, process: &Arc<Process>, pid: u32, streams: Streams) {
        process.started(pid, streams, &self.core.reactor, &self.log);
        lock(&self.processes).live.insert(pid, Arc::clone(process));
    }

    /// Follows a live process under another name.
    pub(crate) fn replace_process(&self, process: &Arc<Process>) {
        let before = lock(&self.processes).live.insert(process.pid(), Arc::clone(process));
        if let Some(before) = before {
            self.remember(before);
        }
    }

    /// Ends what a process's readers see, for one that was killed with the state that it belonged to.
    pub(crate) fn forget_process(&self, process: &Arc<Process>) {
        // PID 1 may have reported its end already.
        if lock(&self.processes).live.remove(&process.pid()).is_none() {
            return;
        }
        let end = ProcessEnd {
            reason: ExitReason::RolledBack,
            out_of_memory: false,
            cpu_us: 0,
            resident_peak_kib: 0,
            sandbox_memory_peak_bytes: 0,
        };
        let group = lock(&process.cgroup).take();
        if let Some(group) = group {
            self.give_back(group);
        }
        process.ended(end);
        process.close();
        self.remember(Arc::clone(process));
    }

    pub(super) fn remember(&self, process: Arc<Process>) {
        let mut processes = lock(&self.processes);
        processes.ended.push_back(process);
        if processes.ended.len() > limits::ENDED_PROCESSES_KEPT {
            processes.outlived.retain(|process| process.has_open_streams());
            let oldest = processes.ended.pop_front().filter(|process| process.has_open_streams());
            processes.outlived.extend(oldest);
        }
    }

    /// A live or recently ended process by its process id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn process(&self, pid: u32) -> Result<Arc<Process>> {
        let found = self.find_process(|process| process.pid() == pid);
        found.ok_or_else(|| self.no_process(&format!("process {pid}")))
    }

    /// A live or recently ended process by the caller's own name for it; the newest counts.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn process_by_tag(&self, tag: &str) -> Result<Arc<Process>> {
        let found = self.find_process(|process| process.tag() == Some(tag));
        found.ok_or_else(|| self.no_process(&format!("process with the tag {tag:?}")))
    }

    fn find_process(&self, wanted: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
        let processes = lock(&self.processes);
        let live = processes.live.values().find(|process| wanted(process));
        live.or_else(|| processes.ended.iter().rev().find(|process| wanted(process))).cloned()
    }

    pub(super) fn no_process(&self, what: &str) -> EngineError {
        let message = format!("no {what} in sandbox {}: `brood inspect {}` lists them", self.id, self.id);
        EngineError::new(ErrorKind::NotFound, message)
    }
}
