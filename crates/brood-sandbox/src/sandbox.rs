//! A live sandbox.
//!
//! ```text
//! Creating ──► Running ──► Killing ──► Dead
//!     └───────────────────────────────────┘  (when it cannot be set up)
//! ```
//!
//! Lock order: `state`, `starting`, `processes`, `calls`; a process's own locks after these. None
//! is held while PID 1 is waited for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use brood_deltafs::{LayerStack, OverlayMount, Space, Upper};
use brood_init_protocol::{Exited, Kind, Signal};
use rustix::event::epoll::EventFlags;

use crate::cgroup::{CallCgroup, SandboxCgroup};
use crate::connection::Connection;
use crate::control::Message;
use crate::engine::Core;
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::{Follow, now_ms};
use crate::files::Files;
use crate::ids::{CheckpointId, SandboxId};
use crate::isolation::{self, Init};
use crate::limits;
use crate::model::{
    CreateRequest, EventObject, ExitReason, ExitReport, LogRecord, ProcessRequest, SandboxInfo, SandboxState,
    SandboxStats,
};
use crate::output::{SubscribeFrom, Subscription};
use crate::process::{KillCause, Process, ProcessEnd, Streams, lock};
use crate::reactor::{Source, TimerId, Token};
use crate::spawn;
use crate::storage;
use crate::template::Template;
use crate::transaction::History;
use crate::users::Identity;

/// What a sandbox's files are made of.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) stack: LayerStack,
    pub(crate) upper: Upper,
    pub(crate) space: Option<Space>,
    pub(crate) mount: OverlayMount,
}

/// A live sandbox. Dropping it does not end it; [`kill`](Self::kill) does.
#[derive(Debug)]
pub struct Sandbox {
    id: SandboxId,
    pub(crate) template: Arc<Template>,
    pub(crate) request: CreateRequest,
    pub(crate) host_name: String,
    created_ms: u64,
    pub(crate) core: Arc<Core>,
    state: Mutex<SandboxState>,
    pub(crate) init: Init,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) connection: Connection,
    pub(crate) disk: RwLock<Option<Disk>>,
    /// Tool calls start holding it shared; a checkpoint or rollback holds it alone.
    pub(crate) turn: RwLock<()>,
    history: Mutex<Option<History>>,
    /// The checkpoint that it was forked from, put back to or frozen as last.
    pub(crate) at: Mutex<Option<CheckpointId>>,
    token: OnceLock<Token>,
    starting: Mutex<HashMap<u64, Starting>>,
    processes: Mutex<Processes>,
    calls: Mutex<Calls>,
    out_of_memory_seen: AtomicU64,
    expiry: Mutex<Option<(u64, TimerId)>>,
    log: Follow<LogRecord>,
}

/// A tool call that PID 1 has been asked for.
#[derive(Debug)]
struct Starting {
    process: Arc<Process>,
    /// None for a terminal: its descriptor comes with the answer.
    pipes: Option<Streams>,
}

#[derive(Debug, Default)]
struct Processes {
    live: HashMap<u32, Arc<Process>>,
    /// The newest last.
    ended: VecDeque<Arc<Process>>,
}

/// Control groups of tool calls. They are used again, since making one costs more than a spawn.
#[derive(Debug, Default)]
struct Calls {
    free: Vec<Arc<CallCgroup>>,
    /// Their call has ended, but something that it started lives on.
    lingering: Vec<Arc<CallCgroup>>,
    next: u32,
}

/// What [`Sandbox::start`] is made from.
pub(crate) struct Parts {
    pub(crate) id: SandboxId,
    pub(crate) template: Arc<Template>,
    pub(crate) request: CreateRequest,
    pub(crate) host_name: String,
    pub(crate) init: Init,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) disk: Disk,
    pub(crate) connection: Connection,
}

impl Sandbox {
    /// Takes over a PID 1 that has entered its root.
    pub(crate) fn start(core: &Arc<Core>, parts: Parts) -> Result<Arc<Self>> {
        let Parts { id, template, request, host_name, init, cgroup, disk, connection } = parts;
        let timeout = request.timeout;
        let sandbox = Arc::new(Self {
            id,
            template,
            request,
            host_name,
            created_ms: now_ms(),
            core: Arc::clone(core),
            state: Mutex::new(SandboxState::Running),
            init,
            cgroup,
            connection,
            disk: RwLock::new(Some(disk)),
            turn: RwLock::default(),
            history: Mutex::default(),
            at: Mutex::default(),
            token: OnceLock::new(),
            starting: Mutex::default(),
            processes: Mutex::default(),
            calls: Mutex::default(),
            out_of_memory_seen: AtomicU64::new(0),
            expiry: Mutex::default(),
            log: Follow::weighed(limits::LOG_RECORDS_KEPT, limits::LOG_BYTES_KEPT, |record: &LogRecord| {
                record.text.len()
            }),
        });
        let listener = Arc::new(Listener { sandbox: Arc::downgrade(&sandbox) });
        let registered = core.reactor.register(sandbox.init.control.as_fd(), listener, EventFlags::IN);
        match registered {
            Ok(token) => {
                let _already = sandbox.token.set(token);
            }
            Err(error) => {
                if let Some(disk) = sandbox.take_down() {
                    storage::discard(&core.store, disk);
                }
                return Err(error);
            }
        }
        sandbox.set_timeout(timeout)?;
        Ok(sandbox)
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(crate) fn created_ms(&self) -> u64 {
        self.created_ms
    }

    /// How it stands.
    pub fn info(&self) -> SandboxInfo {
        let state = *lock(&self.state);
        let live = matches!(state, SandboxState::Running | SandboxState::Creating);
        SandboxInfo {
            id: self.id.clone(),
            template: self.request.template.clone(),
            state,
            created_ms: self.created_ms,
            expires_ms: lock(&self.expiry).map(|(when, _)| when),
            limits: self.request.limits.clone(),
            environment: self.request.environment.clone(),
            labels: self.request.labels.clone(),
            network: self.connection.request(),
            init_pid: live.then(|| self.init.pid.as_raw_nonzero().get()),
            processes: self.processes().iter().map(|process| process.info()).collect(),
            layers: self.with_disk(|disk| disk.stack.depth()).unwrap_or(0),
            checkpoint: lock(&self.at).clone(),
        }
    }

    /// What it uses now.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn stats(&self) -> Result<SandboxStats> {
        self.ensure_running()?;
        let disk_bytes = self.with_disk(|disk| match &disk.space {
            Some(space) => space.usage().map(|usage| usage.bytes).map_err(storage::store_error),
            None => storage::tree_bytes(&disk.upper.changes()),
        })??;
        Ok(SandboxStats {
            id: self.id.clone(),
            memory_bytes: self.cgroup.memory_bytes()?,
            memory_peak_bytes: self.cgroup.memory_peak_bytes()?,
            memory_limit_bytes: self.request.limits.memory_bytes,
            cpu_us: self.cgroup.cpu_us()?,
            pids: self.cgroup.pids()?,
            disk_bytes,
            out_of_memory_kills: self.cgroup.out_of_memory_kills()?,
        })
    }

    /// Sets the time after which it is killed, counted from now; none is never.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn set_timeout(self: &Arc<Self>, timeout: Option<Duration>) -> Result<()> {
        self.ensure_running()?;
        let timer = timeout.map(|timeout| {
            let weak = Arc::downgrade(self);
            let core = Arc::clone(&self.core);
            let timer = self.core.reactor.at(Instant::now() + timeout, move || {
                let Some(sandbox) = weak.upgrade() else { return };
                core.janitor.run(move || sandbox.end_because("its time was up"));
            });
            (now_ms() + u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX / 2), timer)
        });
        let before = std::mem::replace(&mut *lock(&self.expiry), timer);
        if let Some((_, timer)) = before {
            self.core.reactor.cancel(timer);
        }
        Ok(())
    }

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

    fn give_back(&self, group: Arc<CallCgroup>) {
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

    /// The live ones and those that ended lately.
    pub(crate) fn all_processes(&self) -> Vec<Arc<Process>> {
        let processes = lock(&self.processes);
        processes.live.values().chain(&processes.ended).cloned().collect()
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

    fn remember(&self, process: Arc<Process>) {
        let mut processes = lock(&self.processes);
        processes.ended.push_back(process);
        if processes.ended.len() > limits::ENDED_PROCESSES_KEPT {
            processes.ended.pop_front();
        }
    }

    /// What is remembered between checkpoints; made when it is first asked for.
    pub(crate) fn history(&self) -> Result<HistoryGuard<'_>> {
        let mut history = lock(&self.history);
        if history.is_none() {
            *history = Some(History::new(self.init.pid)?);
        }
        Ok(HistoryGuard(history))
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

    fn no_process(&self, what: &str) -> EngineError {
        let message = format!("no {what} in sandbox {}: `brood inspect {}` lists them", self.id, self.id);
        EngineError::new(ErrorKind::NotFound, message)
    }

    /// What its background processes printed, and what the engine did to it.
    pub fn logs(&self) -> Follow<LogRecord> {
        self.log.clone()
    }

    /// Its files.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn files(&self) -> Result<Files> {
        self.with_disk(|disk| storage::root_of(disk).map(|root| Files::new(self.id.clone(), root, self.core.id_base)))?
    }

    pub(crate) fn with_disk<T>(&self, use_it: impl FnOnce(&Disk) -> T) -> Result<T> {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
        disk.as_ref().map(use_it).ok_or_else(|| self.gone())
    }

    /// A user of the sandbox as the host numbers it.
    pub(crate) fn host_ids(&self, identity: &Identity) -> (u32, u32) {
        (self.core.id_base + identity.uid, self.core.id_base + identity.gid)
    }

    pub(crate) fn signal(&self, pid: u32, signal: u8, group: bool) -> Result<()> {
        let body = Signal { pid, signal: u32::from(signal), group }.encode();
        let pending = self.init.control.send(self.init.control.reserve(), Kind::Signal, &body, &[])?;
        match pending.wait(limits::ENTER_TIMEOUT)? {
            Ok(_) => Ok(()),
            Err(_) => Err(self.no_process(&format!("live process {pid}"))),
        }
    }

    pub(crate) fn gone(&self) -> EngineError {
        let message = format!("sandbox {} is gone: `brood ps` lists the live ones", self.id);
        EngineError::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn ensure_running(&self) -> Result<()> {
        if *lock(&self.state) == SandboxState::Running { Ok(()) } else { Err(self.gone()) }
    }

    /// Ends it and everything in it; returns when nothing of it is left.
    ///
    /// # Errors
    /// `NotFound` when it is gone already, or somebody else is killing it.
    pub fn kill(&self) -> Result<()> {
        self.begin_end()?;
        if let Some(disk) = self.take_down() {
            storage::discard(&self.core.store, disk);
        }
        Ok(())
    }

    /// As [`kill`](Self::kill), but what it wrote is kept.
    pub(crate) fn kill_keeping_disk(&self) -> Result<Disk> {
        self.begin_end()?;
        self.take_down().ok_or_else(|| self.gone())
    }

    pub(crate) fn end_because(&self, reason: &str) {
        if self.kill().is_ok() {
            tracing::info!(sandbox = %self.id, reason, "sandbox ended");
        }
    }

    fn begin_end(&self) -> Result<()> {
        let mut state = lock(&self.state);
        if *state != SandboxState::Running {
            return Err(self.gone());
        }
        *state = SandboxState::Killing;
        Ok(())
    }

    /// Ends everything but the files, which the caller gets.
    fn take_down(&self) -> Option<Disk> {
        if let Some((_, timer)) = lock(&self.expiry).take() {
            self.core.reactor.cancel(timer);
        }
        for process in self.processes() {
            process.mark(KillCause::SandboxKilled);
        }
        isolation::end(&self.init.descriptor);
        self.connection.end();
        if let Some(token) = self.token.get() {
            self.core.reactor.deregister(self.init.control.as_fd(), *token);
        }
        self.init.control.abandon();
        let live: Vec<_> = lock(&self.processes).live.drain().map(|(_, process)| process).collect();
        for process in &live {
            let end = ProcessEnd {
                reason: ExitReason::SandboxKilled,
                out_of_memory: false,
                cpu_us: 0,
                resident_peak_kib: 0,
                sandbox_memory_peak_bytes: self.cgroup.memory_peak_bytes().unwrap_or(0),
            };
            process.ended(end);
        }
        let ended: Vec<_> = lock(&self.processes).ended.iter().cloned().collect();
        for process in live.iter().chain(&ended) {
            process.close();
            lock(&process.cgroup).take();
        }
        *lock(&self.calls) = Calls::default();
        self.cgroup.remove();
        let disk = self.disk.write().unwrap_or_else(PoisonError::into_inner).take();
        *lock(&self.state) = SandboxState::Dead;
        self.core.forget(&self.id);
        self.core.announce(EventObject::Sandbox, self.id.as_str(), "die", BTreeMap::new());
        disk
    }

    fn announce<const N: usize>(&self, action: &str, pid: u32, attributes: [(&str, String); N]) {
        let mut attributes: BTreeMap<String, String> =
            attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        attributes.insert("pid".to_owned(), pid.to_string());
        self.core.announce(EventObject::Process, self.id.as_str(), action, attributes);
    }

    /// One message of PID 1, on the reactor's thread.
    fn received(&self, mut message: Message) {
        match message.header.kind {
            Kind::Spawned => {
                self.process_started(&mut message);
                self.init.control.deliver(message);
            }
            Kind::Exited => {
                if let Some(exited) = Exited::decode(&message.body) {
                    self.process_ended(exited);
                }
            }
            _ => self.init.control.deliver(message),
        }
    }

    fn process_started(&self, message: &mut Message) {
        let Some(starting) = lock(&self.starting).remove(&message.header.request) else { return };
        let Some(pid) = message.body.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)) else { return };
        let streams = match starting.pipes {
            Some(pipes) => pipes,
            None => match message.descriptors.pop().map(spawn::nonblocking) {
                Some(Ok(master)) => Streams::Terminal { master },
                _ => return,
            },
        };
        let process = starting.process;
        lock(&self.processes).live.insert(pid, Arc::clone(&process));
        process.started(pid, streams, &self.core.reactor, &self.log);
    }

    fn process_ended(&self, exited: Exited) {
        let Some(process) = lock(&self.processes).live.remove(&exited.pid) else { return };
        let reason = reason_of(exited.wait_status);
        let was_killed = matches!(reason, ExitReason::Signaled(9) | ExitReason::Exited(137));
        let end = ProcessEnd {
            reason,
            out_of_memory: was_killed && self.is_out_of_memory_news(),
            cpu_us: exited.cpu_us,
            resident_peak_kib: exited.resident_peak_kib,
            sandbox_memory_peak_bytes: self.cgroup.memory_peak_bytes().unwrap_or(0),
        };
        if let Some(timer) = lock(&process.timer).take() {
            self.core.reactor.cancel(timer);
        }
        // Before anybody can react to the end: the next call finds the group free.
        let group = lock(&process.cgroup).take();
        if let Some(group) = group {
            self.give_back(group);
        }
        self.remember(Arc::clone(&process));
        let report = process.ended(end);
        self.announce_end(&process, &report);
    }

    fn announce_end(&self, process: &Process, report: &ExitReport) {
        let attributes = [
            ("exit_code", report.shell_code().to_string()),
            ("reason", format!("{:?}", report.reason)),
            ("duration_us", report.duration_us.to_string()),
        ];
        self.announce("exec_die", process.pid(), attributes);
    }

    /// Whether the kernel has killed something for want of memory since this was last asked.
    fn is_out_of_memory_news(&self) -> bool {
        let now = self.cgroup.out_of_memory_kills().unwrap_or(0);
        now > self.out_of_memory_seen.swap(now, Ordering::AcqRel)
    }

    /// PID 1 is gone without having been told to go.
    fn lost(self: &Arc<Self>) {
        if let Some(token) = self.token.get() {
            self.core.reactor.deregister(self.init.control.as_fd(), *token);
        }
        self.init.control.abandon();
        let sandbox = Arc::clone(self);
        self.core.janitor.run(move || sandbox.end_because("its PID 1 ended"));
    }
}

fn reason_of(wait_status: u32) -> ExitReason {
    // As in wait(2): the low seven bits name a signal, the next byte is the exit code.
    match wait_status & 0x7f {
        0 => ExitReason::Exited((wait_status >> 8 & 0xff) as u8),
        signal => ExitReason::Signaled(signal as u8),
    }
}

/// Access to a sandbox's history, which exists.
pub(crate) struct HistoryGuard<'s>(MutexGuard<'s, Option<History>>);

impl std::ops::Deref for HistoryGuard<'_> {
    type Target = History;
    fn deref(&self) -> &History {
        self.0.as_ref().expect("made before the guard")
    }
}

impl std::ops::DerefMut for HistoryGuard<'_> {
    fn deref_mut(&mut self) -> &mut History {
        self.0.as_mut().expect("made before the guard")
    }
}

/// Listens to a PID 1.
struct Listener {
    sandbox: Weak<Sandbox>,
}

impl Source for Listener {
    fn ready(&self, _: EventFlags) {
        let Some(sandbox) = self.sandbox.upgrade() else { return };
        loop {
            match sandbox.init.control.receive(false) {
                Ok(Some(message)) => sandbox.received(message),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(None) => return sandbox.lost(),
                Err(error) => {
                    tracing::error!(sandbox = %sandbox.id, %error, "PID 1 cannot be understood");
                    return sandbox.lost();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_are_read_as_the_kernel_writes_them() {
        assert_eq!(reason_of(0), ExitReason::Exited(0));
        assert_eq!(reason_of(7 << 8), ExitReason::Exited(7));
        assert_eq!(reason_of(9), ExitReason::Signaled(9));
        assert_eq!(reason_of(0x80 | 11), ExitReason::Signaled(11));
    }
}
