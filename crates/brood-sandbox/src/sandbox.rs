//! A live sandbox.
//!
//! ```text
//! Creating ──► Running ──► Killing ──► Dead
//!     └───────────────────────────────────┘  (when it cannot be set up)
//! ```
//!
//! Lock order: `state`, `starting`, `processes`, `calls`; a process's own locks after these. None
//! is held while PID 1 is waited for.

mod calls;
mod messages;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use brood_deltafs::{LayerStack, OverlayMount, Space, Upper};
use brood_init_protocol::{Kind, Signal};
use rustix::event::epoll::EventFlags;

use self::calls::{Calls, Processes, Starting};
use self::messages::Listener;
use crate::cgroup::SandboxCgroup;
use crate::connection::Connection;
use crate::engine::Core;
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::{Follow, now_ms};
use crate::files::Files;
use crate::ids::{CheckpointId, SandboxId};
use crate::isolation::{self, Init};
use crate::limits;
use crate::model::{
    CreateRequest, EventObject, ExitReason, LogRecord, SandboxInfo, SandboxState, SandboxStats, TemplateInfo,
};
use crate::process::{KillCause, ProcessEnd, lock};
use crate::reactor::{TimerId, Token};
use crate::shared_stack::SharedStack;
use crate::storage;
use crate::template::Template;
use crate::transaction::History;
use crate::users::Identity;

/// What a sandbox's files are made of.
#[derive(Debug)]
pub(crate) struct Disk {
    /// What is mounted.
    pub(crate) stack: LayerStack,
    /// The frozen files that it started from, of which `stack` is or was the shape.
    pub(crate) lineage: Arc<SharedStack>,
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
    created_ms: AtomicU64,
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
    /// One is to be taken after a call, and has not been yet.
    pub(crate) checkpoint_due: AtomicBool,
    token: OnceLock<Token>,
    starting: Mutex<HashMap<u64, Starting>>,
    processes: Mutex<Processes>,
    calls: Mutex<Calls>,
    out_of_memory_seen: AtomicU64,
    expiry: Mutex<Option<(u64, TimerId)>>,
    log: Follow<LogRecord>,
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
            created_ms: AtomicU64::new(now_ms()),
            core: Arc::clone(core),
            state: Mutex::new(SandboxState::Running),
            init,
            cgroup,
            connection,
            disk: RwLock::new(Some(disk)),
            turn: RwLock::default(),
            history: Mutex::default(),
            at: Mutex::default(),
            checkpoint_due: AtomicBool::new(false),
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

    /// The template that it came from.
    pub fn template(&self) -> &TemplateInfo {
        &self.template.info
    }

    pub(crate) fn created_ms(&self) -> u64 {
        self.created_ms.load(Ordering::Relaxed)
    }

    /// It was made ahead of time, and is somebody's from now on.
    pub(crate) fn begins_now(&self) {
        self.created_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// How it stands.
    pub fn info(&self) -> SandboxInfo {
        let state = *lock(&self.state);
        let live = matches!(state, SandboxState::Running | SandboxState::Creating);
        SandboxInfo {
            id: self.id.clone(),
            template: self.request.template.clone(),
            state,
            created_ms: self.created_ms(),
            expires_ms: lock(&self.expiry).map(|(when, _)| when),
            limits: self.request.limits.clone(),
            environment: self.request.environment.clone(),
            labels: self.request.labels.clone(),
            network: self.connection.request(),
            address: self.connection.address(),
            published: self.connection.published(),
            groups: self.connection.groups(),
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

    /// What is remembered between checkpoints; made when it is first asked for.
    pub(crate) fn history(&self) -> Result<HistoryGuard<'_>> {
        let mut history = lock(&self.history);
        if history.is_none() {
            *history = Some(History::new(self.init.pid)?);
        }
        Ok(HistoryGuard(history))
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
        let ended = self.all_processes();
        for process in live.iter().chain(&ended) {
            process.close();
            lock(&process.cgroup).take();
        }
        *lock(&self.calls) = Calls::default();
        self.cgroup.remove();
        let disk = self.disk.write().unwrap_or_else(PoisonError::into_inner).take();
        *lock(&self.state) = SandboxState::Dead;
        if self.core.forget(&self.id) {
            self.core.announce(EventObject::Sandbox, self.id.as_str(), "die", BTreeMap::new());
        }
        disk
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
