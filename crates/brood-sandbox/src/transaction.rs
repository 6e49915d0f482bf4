//! Checkpoint, rollback and fork: files and processes as one.
//!
//! A sandbox's `turn` lock orders them: tool calls start while holding it shared, a checkpoint or
//! rollback holds it alone, so no call is ever half started when the tree is stopped.
//!
//! What makes a checkpoint one transaction: the tasks stand still from before the first half is
//! taken until after the second; a failure of either leaves the sandbox on its old files, going
//! on as if nothing had been.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brood_deltacr::descriptors::OpenFileKind;
use brood_deltacr::{
    ProcessImage, ProcessTreeImage, RestoreTarget, RestoredTree, RollbackRequest, SandboxRoot, SignalAction,
    StoppedTree, Tree,
};
use brood_deltafs::{Frozen, LayerStack, OverlayMount, Upper};
use brood_init_protocol::Kind;
use brood_memory_engine::guardian::Guardian;
use brood_memory_engine::{Machinery, SandboxMemory};
use rustix::process::{Pid, Signal};

use crate::cgroup::CallCgroup;
use crate::checkpoint::{Checkpoint, CheckpointInfo, FrozenState, ProcessRecord};
use crate::endpoints::{self, Endpoints};
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::now_ms;
use crate::ids::CheckpointId;
use crate::limits;
use crate::memory;
use crate::model::CreateRequest;
use crate::process::{KillCause, Process, lock};
use crate::sandbox::{Disk, Sandbox};
use crate::shared_stack::SharedStack;
use crate::storage;

/// Mounts below the root that are not part of its files.
const CARRIED: [&str; 3] = ["/proc", "/sys", "/dev/pts"];

/// Layers above the template's at which a checkpoint waits for the squasher: half of what is
/// mounted at most, and more than it ever falls behind when anything happens between checkpoints.
const DEPTH_FORCED: usize = 64;

/// Tells a process that it is in a fork: ignored by all that do not ask for it, and known to be sent
/// without reason sometimes.
const FORK_SIGNAL: Signal = Signal::URG;
/// The handler `SIG_IGN` (signal(7)); the one below it is the default.
const HANDLER_IGNORE: u64 = 1;

/// What the engine keeps for captures and restores, started when first needed.
#[derive(Debug)]
pub(crate) struct Capturing {
    pub(crate) pages: Arc<brood_deltacr::PageStore>,
    pub(crate) seed: brood_deltacr::Seed,
    pub(crate) swapper: brood_deltafs::RootSwapper,
    /// None where pages can't be supplied on touch.
    pub(crate) memory: Option<Machinery>,
    /// Survives this process.
    pub(crate) guardian: Option<Arc<Guardian>>,
}

impl Capturing {
    pub(crate) fn start(guardian: Option<&[OsString]>) -> Result<Self> {
        let mut seed = brood_deltacr::Seed::new().map_err(capture_error)?;
        let guardian = guardian.map(memory::start_guardian).transpose()?;
        let memory = memory::start(&mut seed, guardian.as_ref());
        let swapper = brood_deltafs::RootSwapper::start()
            .map_err(|error| EngineError::system("cannot start the thread that exchanges roots", error))?;
        Ok(Self { pages: brood_deltacr::PageStore::new(), seed, swapper, memory, guardian })
    }
}

/// What a sandbox remembers between checkpoints.
#[derive(Debug)]
pub(crate) struct History {
    tree: Tree,
    /// What it was forked from.
    origin: Option<ProcessTreeImage>,
    /// Its squeezed memory, once it was squeezed.
    memory: Option<SandboxMemory>,
}

impl History {
    pub(crate) fn new(init: Pid) -> Result<Self> {
        Ok(Self { tree: Tree::new(init).map_err(capture_error)?, origin: None, memory: None })
    }

    /// Tree and squeezed memory, which is made if there is none yet.
    pub(crate) fn memory(
        &mut self,
        make: impl FnOnce(Option<&ProcessTreeImage>) -> SandboxMemory,
    ) -> (&mut Tree, &SandboxMemory) {
        let Self { tree, origin, memory } = self;
        (tree, memory.get_or_insert_with(|| make(origin.as_ref())))
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Tree and squeezed memory, if it was ever squeezed.
    pub(crate) fn existing_memory(&mut self) -> Option<(&Tree, &SandboxMemory)> {
        Some((&self.tree, self.memory.as_ref()?))
    }
}

pub(crate) fn capture_error(error: brood_deltacr::Error) -> EngineError {
    let refused = matches!(error, brood_deltacr::Error::Refused(_));
    let kind = if refused { ErrorKind::Unsupported } else { ErrorKind::Internal };
    let message = if refused { "the processes cannot be captured" } else { "capture or restore failed" };
    EngineError::caused_by(kind, message, error)
}

/// A checkpoint's files, ready to be swapped in.
struct NewFiles {
    stack: LayerStack,
    lineage: Arc<SharedStack>,
    upper: Upper,
    mount: OverlayMount,
}

impl Sandbox {
    /// Freezes files and processes as one immutable state. The sandbox stands still for about a
    /// millisecond; calls in flight go on after it.
    ///
    /// # Errors
    /// `Unsupported` when a process holds something that cannot be captured, named in the message;
    /// nothing has changed then. `Conflict` for a name that is taken.
    pub fn checkpoint(self: &Arc<Self>, name: Option<String>, with_processes: bool) -> Result<CheckpointInfo> {
        self.checkpoint_as(name, with_processes, false)
    }

    /// As [`checkpoint`](Self::checkpoint), perhaps one that goes by itself.
    pub(crate) fn checkpoint_as(
        self: &Arc<Self>,
        name: Option<String>,
        with_processes: bool,
        automatic: bool,
    ) -> Result<CheckpointInfo> {
        let _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        self.ensure_running()?;
        self.core.checkpoints.ensure_room(&self.request.template, name.as_deref())?;
        let (state, cost) = self.freeze(with_processes)?;
        let info = CheckpointInfo {
            id: CheckpointId::random(),
            name,
            parent: None,
            sandbox: self.id().clone(),
            template: self.request.template.clone(),
            created_ms: now_ms(),
            with_processes,
            processes: state.processes.as_ref().map_or(0, |image| image.processes.len()),
            layers: state.stack.current().depth(),
            copied_pages: cost.copied_pages,
            standstill_us: cost.standstill_us,
            automatic,
        };
        let (template, request) = (Arc::clone(&self.template), self.fork_request());
        let checkpoint = Checkpoint { info, template, request, state: Arc::clone(&state) };
        let info = self.core.checkpoints.insert(checkpoint, &self.at);
        self.core.shorten_soon(&state.stack, &self.template);
        self.core.prepare_pages_soon(cost.copied_pages);
        Ok(info)
    }

    /// As [`checkpoint`](Self::checkpoint), for a state that has no place in the tree.
    pub(crate) fn freeze_aside(self: &Arc<Self>) -> Result<Arc<FrozenState>> {
        let _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        self.ensure_running()?;
        self.freeze(true).map(|(state, _)| state)
    }

    /// Freezes the sandbox, and does something with the state before any call can begin.
    pub(crate) fn freeze_and<T>(self: &Arc<Self>, then: impl FnOnce(&Arc<FrozenState>) -> Result<T>) -> Result<T> {
        let _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        self.ensure_running()?;
        then(&self.freeze(true)?.0)
    }

    /// Freezes the sandbox and lets it go on from the frozen state. `turn` is held.
    fn freeze(self: &Arc<Self>, with_processes: bool) -> Result<(Arc<FrozenState>, Cost)> {
        let capturing = self.core.capturing()?;
        let mut history = self.history()?;
        self.bound_depth()?;
        let (old_stack, frozen) = self.with_disk(|disk| {
            let stack = disk.lineage.current();
            let frozen = self.core.store.freeze(&disk.upper, &stack).map_err(storage::store_error);
            (stack, frozen)
        })?;
        let frozen = frozen?;
        let taken = self.take(&mut history.tree, &capturing, &frozen, with_processes);
        // Not just dropped: it may have been exchanged for a shorter one meanwhile.
        self.core.store.release(old_stack).map_err(storage::store_error)?;
        let (mount, taken) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.core.store.undo_freeze(frozen).map_err(storage::store_error)?;
                return Err(error);
            }
        };
        let (stack, upper) = self.core.store.commit_freeze(frozen).map_err(storage::store_error)?;
        let lineage = SharedStack::new(&self.core.store, stack.clone());
        self.replace_disk(NewFiles { stack, lineage: Arc::clone(&lineage), upper, mount });
        let state = FrozenState {
            stack: lineage,
            processes: taken.image,
            records: taken.records,
            connected: self.connection.is_attached(),
        };
        Ok((Arc::new(state), taken.cost))
    }

    /// Waits for a shorter stack where the background has fallen behind.
    fn bound_depth(&self) -> Result<()> {
        let lineage = self.with_disk(|disk| Arc::clone(&disk.lineage))?;
        if lineage.current().depth() < self.template.stack.depth() + DEPTH_FORCED {
            return Ok(());
        }
        lineage.shorten(&self.template.layers())
    }

    /// How forks are made. A port of the host is taken already, and so is a name in a group.
    fn fork_request(&self) -> CreateRequest {
        let network = self.connection.request();
        CreateRequest { network, publish: Vec::new(), groups: Vec::new(), ..self.request.clone() }
    }

    /// The part of a checkpoint during which the tasks stand still.
    fn take(
        &self,
        tree: &mut Tree,
        capturing: &Capturing,
        frozen: &Frozen,
        with_processes: bool,
    ) -> Result<(OverlayMount, Taken)> {
        let endpoints = self.endpoints();
        let mut stopped = tree.stop().map_err(capture_error)?;
        let mut steps = Steps::begin();
        let (image, records, copied_pages) = if with_processes {
            let (image, statistics) = stopped.capture(&capturing.pages, &endpoints).map_err(capture_error)?;
            let records = self.records(&image);
            tracing::debug!(?statistics, "captured");
            (Some(image), records, statistics.copied_pages)
        } else {
            (None, Vec::new(), 0)
        };
        steps.end("capture");
        // A file that is open for writing must keep its inode number: it is copied up beforehand, with
        // what was written to it up to now.
        let written = image.as_ref().map(written_files).unwrap_or_default();
        frozen.upper().carry(frozen.stack(), &written).map_err(storage::store_error)?;
        steps.end("carry");
        let mount = OverlayMount::mount(frozen.stack(), frozen.upper()).map_err(storage::store_error)?;
        let root = sandbox_root(&mount)?;
        steps.end("mount");
        self.exchange_root(capturing, &mount)?;
        steps.end("exchange");
        if let Err(error) = stopped.repoint_files(&root, &endpoints) {
            // Some tasks are on the new files, some on the old ones: no state to go on in.
            drop(stopped);
            self.end_soon("its files could not be exchanged");
            return Err(capture_error(error));
        }
        steps.end("repoint");
        let standstill = stopped.resume();
        tracing::debug!(sandbox = %self.id(), ?standstill, ?steps, "frozen");
        let standstill_us = u64::try_from(standstill.as_micros()).unwrap_or(u64::MAX);
        Ok((mount, Taken { image, records, cost: Cost { copied_pages, standstill_us } }))
    }

    /// Puts the sandbox back to a checkpoint of its template's tree. Calls in flight end with
    /// `RolledBack`.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for a checkpoint of another template or one of files alone; the
    /// sandbox is as before then. A failure later ends the sandbox: it is never half rolled back.
    pub fn rollback(self: &Arc<Self>, checkpoint: &str) -> Result<CheckpointInfo> {
        let checkpoint = self.core.checkpoints.find(checkpoint)?;
        if checkpoint.info.template != self.request.template {
            let message = format!("checkpoint {} belongs to template {}", checkpoint.info.id, checkpoint.info.template);
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        let Some(image) = &checkpoint.state.processes else {
            let message = format!(
                "checkpoint {} holds files alone: `brood fork {}` makes a sandbox from it",
                checkpoint.info.id, checkpoint.info.id
            );
            return Err(EngineError::new(ErrorKind::Invalid, message));
        };
        let _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        self.ensure_running()?;
        let capturing = self.core.capturing()?;
        let mut history = self.history()?;
        let lineage = Arc::clone(&checkpoint.state.stack);
        let stack = lineage.current();
        let upper = self.core.store.new_upper(&stack).map_err(storage::store_error)?;
        let mount = match OverlayMount::mount(&stack, &upper).map_err(storage::store_error) {
            Ok(mount) => mount,
            Err(error) => {
                self.core.store.discard(upper).map_err(storage::store_error)?;
                return Err(error);
            }
        };
        // Its files may be of a time when it was on the network, or was not.
        let connected = self.connection.is_attached();
        let told = if connected == checkpoint.state.connected {
            Ok(())
        } else {
            storage::write_resolver(&mount, &self.core.network.resolver(connected), self.core.id_base)
        };
        let stopped = match told.and_then(|()| history.tree.stop().map_err(capture_error)) {
            Ok(stopped) => stopped,
            Err(error) => {
                drop(mount);
                self.core.store.discard(upper).map_err(storage::store_error)?;
                return Err(error);
            }
        };
        let new = NewFiles { stack, lineage, upper, mount };
        let rolled_back = self.roll_back_stopped(stopped, &checkpoint.state, image, &capturing, &new.mount);
        // Also after a failure: then the new files go with the sandbox.
        self.replace_disk(new);
        if let Err(error) = rolled_back {
            self.end_soon("a rollback failed");
            return Err(error);
        }
        self.core.checkpoints.move_to(&checkpoint, &self.at);
        Ok(checkpoint.info.clone())
    }

    fn roll_back_stopped(
        self: &Arc<Self>,
        stopped: StoppedTree<'_>,
        state: &FrozenState,
        image: &ProcessTreeImage,
        capturing: &Capturing,
        mount: &OverlayMount,
    ) -> Result<()> {
        let live = self.processes();
        let mut endpoints = self.endpoints();
        let streams = endpoints.supply(&state.records, self.init.pid, self.core.id_base)?;
        let root = sandbox_root(mount)?;
        self.exchange_root(capturing, mount)?;
        let groups = Groups::new(self);
        let place = |pid: Pid| groups.place(pid);
        let target = RestoreTarget { init: self.init.pid, root: &root, place: &place };
        let request = RollbackRequest { target, seed: &capturing.seed, externals: &endpoints, files_exchanged: true };
        // Before anything is killed: PID 1 reports an end at once.
        let stays = |process: &Process| {
            let info = process.info();
            state.records.iter().any(|record| record.info.pid == info.pid && record.info.started_ms == info.started_ms)
        };
        live.iter().filter(|process| !stays(process)).for_each(|process| process.mark(KillCause::RolledBack));
        let (rolled_back, statistics) = stopped.roll_back(image, &request).map_err(capture_error)?;
        if let brood_deltacr::RolledBack::Anew(restored, _) = &rolled_back {
            self.take_over_all(&live);
            self.register(&state.records, streams, restored, &groups)?;
        } else {
            live.iter().filter(|process| stays(process) && !process.is_background()).for_each(|process| {
                self.replace_process(&process.succeed());
            });
        }
        // Before anything runs: the other sides know nothing of the state that is gone on with.
        self.connection.reset_outside()?;
        rolled_back.run().map_err(capture_error)?;
        tracing::debug!(sandbox = %self.id(), ?statistics, "rolled back");
        Ok(())
    }

    /// Restores a state's processes into this new sandbox.
    pub(crate) fn restore(self: &Arc<Self>, state: &FrozenState) -> Result<()> {
        self.restore_when(state, || true).map(|_| ())
    }

    /// Restores a state's processes, and lets them go once `may_run` has returned true; else they
    /// are gone again. Whether they run. The thread waits meanwhile: only the one that made stopped
    /// processes can let them go.
    pub(crate) fn restore_when(self: &Arc<Self>, state: &FrozenState, may_run: impl FnOnce() -> bool) -> Result<bool> {
        let Some(image) = &state.processes else { return Ok(may_run()) };
        let _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        let capturing = self.core.capturing()?;
        let mut endpoints = Endpoints::default();
        let streams = endpoints.supply(&state.records, self.init.pid, self.core.id_base)?;
        let root = self.with_disk(|disk| sandbox_root(&disk.mount))??;
        let groups = Groups::new(self);
        let place = |pid: Pid| groups.place(pid);
        let target = RestoreTarget { init: self.init.pid, root: &root, place: &place };
        self.guard(&capturing);
        let restored = image.restore(&capturing.seed, &target, &endpoints).map_err(capture_error)?;
        drop(endpoints);
        self.register(&state.records, streams, &restored, &groups)?;
        tell_of_the_fork(image, &restored);
        if !may_run() {
            return Ok(false);
        }
        let tree = restored.run().map_err(capture_error)?;
        let mut history = self.history()?;
        *history = History { tree, origin: Some(image.clone()), memory: None };
        Ok(true)
    }

    /// Makes the restored tool calls known to PID 1 and to ourselves, before they run.
    fn register(
        self: &Arc<Self>,
        records: &[ProcessRecord],
        mut streams: HashMap<u32, crate::process::Streams>,
        restored: &RestoredTree,
        groups: &Groups<'_>,
    ) -> Result<()> {
        let pids = restored.pids();
        for record in records {
            let inside = record.info.pid;
            let Some(streams) = streams.remove(&inside) else { continue };
            if let Some(report) = record.info.exit {
                let process = Process::restored(&record.info, None, Arc::downgrade(self));
                process.was_over(report);
                self.adopt_ended(&process, inside, streams);
                continue;
            }
            let outside = pids.iter().find(|(namespace, _)| u32::try_from(namespace.0) == Ok(inside));
            let group = outside.and_then(|(_, pid)| groups.group_of(*pid));
            let process = Process::restored(&record.info, group, Arc::downgrade(self));
            self.adopt_process(&process, inside, streams);
        }
        let live = records.iter().filter(|record| record.info.exit.is_none());
        let body: Vec<u8> = live.flat_map(|record| record.info.pid.to_le_bytes()).collect();
        let pending = self.init.control.send(self.init.control.reserve(), Kind::Track, &body, &[])?;
        match pending.wait(limits::ENTER_TIMEOUT)? {
            Ok(_) => Ok(()),
            Err(failed) => {
                let message = format!("PID 1 cannot watch the restored processes ({:?})", failed.step);
                Err(EngineError::new(ErrorKind::Exhausted, message))
            }
        }
    }

    fn exchange_root(&self, capturing: &Capturing, mount: &OverlayMount) -> Result<()> {
        let path = format!("/proc/{}/ns/mnt", self.init.pid.as_raw_nonzero());
        let namespace = File::open(&path).map_err(|error| EngineError::system(format!("cannot open {path}"), error))?;
        let mut carried: Vec<PathBuf> = CARRIED.iter().map(PathBuf::from).collect();
        if std::fs::exists("/dev/mqueue").unwrap_or(false) {
            carried.push(PathBuf::from("/dev/mqueue"));
        }
        let swapped = capturing.swapper.swap(namespace.as_fd(), mount, &carried);
        swapped.map_err(|error| {
            let in_between = matches!(error, brood_deltafs::SwapError::Undo { .. });
            if in_between {
                self.end_soon("its root was left between two file systems");
            }
            EngineError::caused_by(ErrorKind::Internal, "the root of the sandbox cannot be exchanged", error)
        })
    }

    fn replace_disk(&self, new: NewFiles) {
        let NewFiles { stack, lineage, upper, mount } = new;
        let mut disk = self.disk.write().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = disk.take() else { return };
        let space = old.space.clone();
        *disk = Some(Disk { stack, lineage, upper, space, mount });
        drop(disk);
        storage::discard_replaced(&self.core.store, old);
    }

    /// Every end of ours, whether or not its process still lives: children may hold it.
    fn endpoints(&self) -> Endpoints {
        let mut endpoints = Endpoints::default();
        for process in self.all_processes() {
            process.add_endpoints(&mut endpoints);
        }
        endpoints
    }

    /// The processes that live, and those that have ended and whose streams the image needs.
    fn records(&self, image: &ProcessTreeImage) -> Vec<ProcessRecord> {
        let held: HashSet<u64> = image
            .open_files
            .files
            .iter()
            .filter_map(|file| match &file.kind {
                OpenFileKind::External(external) => Some(endpoints::process_of(external.key)),
                _ => None,
            })
            .collect();
        let mut records: Vec<_> = self
            .all_processes()
            .iter()
            .map(|process| ProcessRecord { info: process.info(), has_input: process.has_input() })
            .filter(|record| record.info.exit.is_none() || held.contains(&record.info.pid.into()))
            .collect();
        // Where an id was used again, the live one's streams count.
        records.sort_by_key(|record| (record.info.pid, record.info.exit.is_some()));
        records.dedup_by_key(|record| record.info.pid);
        records
    }

    /// Ends what all readers see: none of the processes is left.
    fn take_over_all(&self, live: &[Arc<Process>]) {
        for process in live {
            process.mark(KillCause::RolledBack);
            self.forget_process(process);
        }
    }

    fn end_soon(&self, reason: &'static str) {
        let id = self.id().clone();
        let core = Arc::clone(&self.core);
        self.core.janitor.run(move || {
            if let Some(sandbox) = core.find(&id) {
                sandbox.end_because(reason);
            }
        });
    }
}

/// Sends the signal that asks for fresh seeds to the processes that wait for it. They are stopped
/// still, and find it before they do anything else.
fn tell_of_the_fork(image: &ProcessTreeImage, restored: &RestoredTree) {
    let pids = restored.pids();
    for process in image.processes.iter().filter(|process| catches(process, FORK_SIGNAL)) {
        let found = pids.iter().find(|(inside, _)| *inside == process.pid);
        // One that is gone needs no seed.
        let _unused = found.map(|(_, pid)| rustix::process::kill_process(*pid, FORK_SIGNAL));
    }
}

/// Whether a process has a handler for a signal.
fn catches(process: &ProcessImage, signal: Signal) -> bool {
    let is_meant = |action: &SignalAction| action.signal == signal.as_raw() && action.handler > HANDLER_IGNORE;
    process.attributes.actions.iter().any(is_meant)
}

/// Files that some process has open for writing, by their paths inside.
fn written_files(image: &ProcessTreeImage) -> Vec<PathBuf> {
    let writes = |flags: u32| flags & rustix::fs::OFlags::ACCMODE.bits() != rustix::fs::OFlags::RDONLY.bits();
    let files = image.open_files.files.iter().filter(|file| writes(file.flags));
    let paths = files.filter_map(|file| match &file.kind {
        OpenFileKind::Path(path) => Some(PathBuf::from(&*path.path)),
        _ => None,
    });
    paths.collect()
}

/// What the parts of a standstill took, in order, for the log.
#[derive(Debug)]
struct Steps {
    last: Instant,
    took: Vec<(&'static str, Duration)>,
}

impl Steps {
    fn begin() -> Self {
        Self { last: Instant::now(), took: Vec::with_capacity(5) }
    }

    fn end(&mut self, step: &'static str) {
        let now = Instant::now();
        self.took.push((step, now - self.last));
        self.last = now;
    }
}

struct Taken {
    image: Option<ProcessTreeImage>,
    records: Vec<ProcessRecord>,
    cost: Cost,
}

/// What a freeze cost.
struct Cost {
    copied_pages: usize,
    standstill_us: u64,
}

/// Control groups for restored processes: one for each that is placed, with what it starts.
struct Groups<'s> {
    sandbox: &'s Sandbox,
    placed: Mutex<HashMap<Pid, Arc<CallCgroup>>>,
}

impl<'s> Groups<'s> {
    fn new(sandbox: &'s Sandbox) -> Self {
        Self { sandbox, placed: Mutex::default() }
    }

    fn place(&self, pid: Pid) -> std::io::Result<()> {
        let placed = || -> Result<Arc<CallCgroup>> {
            let group = self.sandbox.take_call_group()?;
            self.sandbox.cgroup.adopt(pid)?;
            group.adopt(pid)?;
            Ok(group)
        };
        let group = placed().map_err(|error| std::io::Error::other(error.chain()))?;
        lock(&self.placed).insert(pid, group);
        Ok(())
    }

    fn group_of(&self, pid: Pid) -> Option<Arc<CallCgroup>> {
        lock(&self.placed).get(&pid).cloned()
    }
}

fn sandbox_root(mount: &OverlayMount) -> Result<SandboxRoot> {
    let directory = mount.as_fd().try_clone_to_owned();
    let directory = directory.map_err(|error| EngineError::system("cannot use the sandbox's root", error))?;
    Ok(SandboxRoot::at(directory))
}
