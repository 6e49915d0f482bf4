//! The engine: templates and sandboxes of one state directory.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use brood_deltafs::{LayerId, Store, SystemLayers};

use crate::build::Quiet;
use crate::catalog::Catalog;
use crate::cgroup::{CgroupRoot, SandboxCgroup};
use crate::checkpoint::{Checkpoint, CheckpointInfo, Checkpoints, FrozenState};
use crate::connection::{Connection, Owner};
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::{Follow, now_ms};
use crate::ids::{CheckpointId, SandboxId, TemplateName};
use crate::isolation::{self, ID_COUNT, Isolation};
use crate::janitor::Janitor;
use crate::limits;
use crate::model::{CreateRequest, Event, EventObject, GroupInfo, HistoryEntry, TemplateInfo};
pub use crate::network::NetworkSettings;
use crate::network::SandboxNetwork;
use crate::pause::PausedSandboxes;
use crate::reactor::Reactor;
use crate::ready_forks::ReadyForks;
use crate::sandbox::{Parts, Sandbox};
use crate::shared_stack::SharedStack;
use crate::storage;
use crate::template::Template;
use crate::transaction::Capturing;

/// The state directory of the daemon that a host usually has.
pub const STATE_DIRECTORY_DEFAULT: &str = "/var/lib/brood";

/// The engine's events, for whoever follows them.
pub type EventLog = Follow<Event>;

/// Where an engine keeps its things.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// What outlives the daemon: layers, templates. One file system that can hold overlay uppers.
    pub state_directory: PathBuf,
    /// What ends with it.
    pub run_directory: PathBuf,
    /// Host id of the root inside; the 65,535 ids above belong to sandboxes too.
    pub subuid_base: u32,
    /// What tells this daemon's control groups and network from another's on the same host: a hash
    /// of the state directory; none for the daemon of the default one.
    pub instance: Option<u32>,
    /// Program and arguments of the guardian, which calls [`run_guardian`](crate::memory::run_guardian) on its standard
    /// input. Without one, processes whose pages are owed see zeros for a moment when this process dies, before
    /// whoever cleans up after it ends them.
    pub guardian: Option<Vec<std::ffi::OsString>>,
    /// What holds for the network of all sandboxes.
    pub network: NetworkSettings,
}

impl EngineSettings {
    /// Defaults for everything but the two directories.
    pub fn new(state_directory: impl Into<PathBuf>, run_directory: impl Into<PathBuf>) -> Self {
        let state_directory = state_directory.into();
        let instance = (state_directory != Path::new(STATE_DIRECTORY_DEFAULT)).then(|| {
            let hash = blake3::hash(state_directory.as_os_str().as_encoded_bytes());
            u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("a hash has 32 bytes"))
        });
        Self {
            state_directory,
            run_directory: run_directory.into(),
            subuid_base: 100_000_000,
            instance,
            guardian: None,
            network: NetworkSettings::default(),
        }
    }

    fn cgroup_name(&self) -> String {
        self.instance.map_or_else(|| "brood".to_owned(), |instance| format!("brood-{instance:08x}"))
    }
}

/// What sandboxes need of the engine. They hold it, so it outlives them.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) janitor: Janitor,
    /// Takes the checkpoints that follow tool calls.
    pub(crate) checkpointer: Janitor,
    /// Keeps layer stacks shallow.
    squasher: Janitor,
    pub(crate) store: Store,
    pub(crate) network: SandboxNetwork,
    pub(crate) id_base: u32,
    pub(crate) checkpoints: Checkpoints,
    guardian: Option<Vec<std::ffi::OsString>>,
    capturing: Mutex<Option<Arc<Capturing>>>,
    events: EventLog,
    sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
}

impl Core {
    pub(crate) fn announce(&self, object: EventObject, id: &str, action: &str, attributes: BTreeMap<String, String>) {
        let (id, action) = (id.to_owned(), action.to_owned());
        self.events.push(|sequence| Event { sequence, time_ms: now_ms(), object, id, action, attributes });
    }

    /// What captures need, started when the first one asks.
    pub(crate) fn capturing(&self) -> Result<Arc<Capturing>> {
        let mut capturing = self.capturing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(capturing) = capturing.as_ref() {
            return Ok(Arc::clone(capturing));
        }
        let started = Arc::new(Capturing::start(self.guardian.as_deref())?);
        *capturing = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Takes a checkpoint out of the tree; sandboxes that are at it move to its parent.
    pub(crate) fn remove_checkpoint(&self, id: &CheckpointId, recursive: bool) -> Result<Vec<Arc<Checkpoint>>> {
        let sandboxes = self.all_sandboxes();
        self.checkpoints.remove(id, recursive, |gone, parent| {
            for sandbox in &sandboxes {
                let mut at = sandbox.at.lock().unwrap_or_else(PoisonError::into_inner);
                if at.as_ref().is_some_and(|at| gone.contains(at)) {
                    *at = parent.cloned();
                }
            }
        })
    }

    /// All live sandboxes, in no order.
    pub(crate) fn all_sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Makes a stack shallow in the background.
    pub(crate) fn shorten_soon(&self, stack: &Arc<SharedStack>, template: &Template) {
        let (stack, pinned) = (Arc::downgrade(stack), template.layers());
        self.squasher.run(move || {
            let Some(stack) = stack.upgrade() else { return };
            if let Err(error) = stack.shorten(&pinned) {
                tracing::error!(error = %error.chain(), "a layer stack stays deep");
            }
        });
    }

    /// Allocates memory for the next capture in the background: the kernel takes several times
    /// longer to allocate a page than to copy one. As much as the last one took is a good guess.
    pub(crate) fn prepare_pages_soon(self: &Arc<Self>, last: usize) {
        let core = Arc::downgrade(self);
        self.squasher.run(move || {
            let Some(capturing) = core.upgrade().and_then(|core| core.capturing().ok()) else { return };
            let pages = (last * 2).clamp(limits::PREPARED_PAGES_MIN, limits::PREPARED_PAGES_MAX);
            if let Err(error) = capturing.pages.prepare(pages) {
                tracing::warn!(%error, "no memory can be prepared: the next checkpoint takes longer");
            }
        });
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Takes a sandbox out of the table; whether it was there.
    pub(crate) fn forget(&self, id: &SandboxId) -> bool {
        let sandbox = self.sandboxes.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        sandbox.is_some()
    }

    /// Puts a sandbox in the table: from now on it can be found.
    pub(crate) fn publish(&self, sandbox: &Arc<Sandbox>) {
        let (id, template) = (sandbox.id().clone(), sandbox.request.template.to_string());
        self.sandboxes.write().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), Arc::clone(sandbox));
        let attributes = BTreeMap::from([("template".to_owned(), template)]);
        self.announce(EventObject::Sandbox, id.as_str(), "create", attributes);
    }
}

/// One per state directory. Dropping it leaves sandboxes running until the process ends;
/// [`shutdown`](Self::shutdown) ends them.
#[derive(Debug)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    pub(crate) settings: EngineSettings,
    pub(crate) catalog: Catalog,
    pub(crate) system: SystemLayers,
    templates: Mutex<HashMap<TemplateName, Arc<Template>>>,
    pub(crate) building: Mutex<HashMap<TemplateName, ()>>,
    pub(crate) paused: PausedSandboxes,
    pub(crate) ready: ReadyForks,
    cgroups: CgroupRoot,
    isolation: Isolation,
    stopped: AtomicBool,
}

impl Engine {
    /// Opens the state directory, which stays locked, and removes what a crash left.
    ///
    /// # Errors
    /// `Conflict` when another daemon has it open, `Unsupported` when the host lacks something.
    pub fn open(settings: EngineSettings) -> Result<Arc<Self>> {
        if settings.subuid_base < ID_COUNT || settings.subuid_base.checked_add(ID_COUNT).is_none() {
            let message = format!("subuid_base {} does not leave room for {ID_COUNT} ids", settings.subuid_base);
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        for directory in [&settings.state_directory, &settings.run_directory] {
            std::fs::create_dir_all(directory)
                .map_err(|error| EngineError::system(format!("cannot make {}", directory.display()), error))?;
        }
        let store = Store::open(&settings.state_directory.join("store"), settings.subuid_base);
        let store = store.map_err(storage::store_error)?;
        let catalog = Catalog::open(&settings.state_directory.join("catalog.sqlite"))?;
        let cgroups = CgroupRoot::open(&settings.cgroup_name())?;
        let leftovers = cgroups.remove_leftovers();
        if leftovers > 0 {
            tracing::warn!(leftovers, "sandboxes of a daemon that died were removed");
        }
        let system = SystemLayers::open(&store).map_err(storage::store_error)?;
        let retained = store.retain(&catalog.wanted_layers()?, &std::collections::HashSet::new());
        let retained = retained.map_err(storage::store_error)?;
        tracing::debug!(?retained, "state directory opened");
        let isolation = Isolation::prepare(settings.subuid_base)?;
        let core = Core {
            reactor: Reactor::start()?,
            janitor: Janitor::start("janitor")?,
            checkpointer: Janitor::start("checkpointer")?,
            squasher: Janitor::start("squasher")?,
            store,
            network: SandboxNetwork::new(settings.instance, settings.network),
            id_base: settings.subuid_base,
            checkpoints: Checkpoints::default(),
            guardian: settings.guardian.clone(),
            capturing: Mutex::default(),
            events: Follow::new(limits::EVENTS_KEPT),
            sandboxes: RwLock::default(),
        };
        let engine = Self {
            core: Arc::new(core),
            settings,
            catalog,
            system,
            templates: Mutex::default(),
            building: Mutex::default(),
            paused: PausedSandboxes::default(),
            ready: ReadyForks::default(),
            cgroups,
            isolation,
            stopped: AtomicBool::new(false),
        };
        engine.load_templates()?;
        let engine = Arc::new(engine);
        engine.ready.start(&engine)?;
        Ok(engine)
    }

    fn load_templates(&self) -> Result<()> {
        for info in self.catalog.templates()? {
            let name = info.name.clone();
            if let Err(error) = self.load_template(info) {
                tracing::error!(template = %name, error = %error.chain(), "a template cannot be used: build it again");
            }
        }
        Ok(())
    }

    fn load_template(&self, info: TemplateInfo) -> Result<()> {
        let ids: std::result::Result<Vec<LayerId>, _> = info.layers.iter().rev().map(|layer| layer.parse()).collect();
        let ids = ids.map_err(|error| EngineError::caused_by(ErrorKind::Internal, "a layer has a bad id", error))?;
        let stack = self.core.store.stack(&ids).map_err(storage::store_error)?;
        self.keep_template(Arc::new(Template::new(info, stack)));
        Ok(())
    }

    /// Makes a template usable, in place of an earlier one of its name.
    pub(crate) fn keep_template(&self, template: Arc<Template>) {
        let before = self.template_table().insert(template.info.name.clone(), template);
        self.release_template(before);
    }

    fn template_table(&self) -> MutexGuard<'_, HashMap<TemplateName, Arc<Template>>> {
        self.templates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the layers of a replaced or removed template back, unless sandboxes still hold it.
    fn release_template(&self, template: Option<Arc<Template>>) {
        if let Some(template) = &template {
            self.ready.discard(template);
        }
        let Some(template) = template.and_then(Arc::into_inner) else { return };
        drop(template.warm);
        if let Err(error) = self.core.store.release(template.stack) {
            tracing::error!(%error, "layers of a template stay until the next start");
        }
    }

    /// All templates, by name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn templates(&self) -> Result<Vec<TemplateInfo>> {
        let mut infos: Vec<_> = self.template_table().values().map(|template| template.describe()).collect();
        infos.sort_by(|left, right| left.name.cmp(&right.name));
        for info in &mut infos {
            info.sandboxes = self.sandboxes_of(&info.name);
        }
        Ok(infos)
    }

    fn sandboxes_of(&self, name: &TemplateName) -> usize {
        let live = self.sandboxes().iter().filter(|sandbox| sandbox.template.info.name == *name).count();
        live + self.paused.count_of(name)
    }

    /// One template.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn template(&self, name: &TemplateName) -> Result<TemplateInfo> {
        let mut info = self.find_template(name)?.describe();
        info.sandboxes = self.sandboxes_of(name);
        Ok(info)
    }

    pub(crate) fn find_template(&self, name: &TemplateName) -> Result<Arc<Template>> {
        self.template_table().get(name).cloned().ok_or_else(|| {
            let message = format!(
                "no template {name}: `brood template ls` lists what there is, `brood template build {name} --from SOURCE` makes it"
            );
            EngineError::new(ErrorKind::NotFound, message)
        })
    }

    /// How a template was made, newest first.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn template_history(&self, name: &TemplateName) -> Result<Vec<HistoryEntry>> {
        self.find_template(name)?;
        let mut history = self.catalog.history(name)?.unwrap_or_default();
        history.reverse();
        Ok(history)
    }

    /// Removes a template and the layers that nothing else uses.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` while sandboxes that came from it live.
    pub fn remove_template(&self, name: &TemplateName) -> Result<()> {
        self.find_template(name)?;
        let live = self.sandboxes_of(name);
        if live > 0 {
            let message = format!("template {name} has {live} live sandboxes: kill them first (`brood ps`)");
            return Err(EngineError::new(ErrorKind::Conflict, message));
        }
        self.catalog.remove_template(name)?;
        let removed = self.template_table().remove(name);
        self.release_template(removed);
        self.release_cached_layers()?;
        self.core.announce(EventObject::Template, name.as_str(), "remove", BTreeMap::new());
        Ok(())
    }

    fn release_cached_layers(&self) -> Result<()> {
        let used = self.template_table().values().flat_map(|template| template.stack.ids().cloned()).collect();
        for layer in self.catalog.forget_unused_layers(&used)? {
            let Ok(id) = layer.parse::<LayerId>() else { continue };
            // Gone already, or still below a live sandbox: then it goes with that.
            if let Ok(stack) = self.core.store.stack([&id]) {
                self.core.store.release(stack).map_err(storage::store_error)?;
            }
        }
        Ok(())
    }

    /// Makes a sandbox; it accepts tool calls when this returns. Those of a warm template start with
    /// its processes, which are started now if the daemon has not done so yet.
    ///
    /// # Errors
    /// `NotFound` for the template, `Invalid` for limits out of range, `Exhausted` when the host
    /// has no room. Nothing is left behind then.
    pub fn create(&self, request: CreateRequest) -> Result<Arc<Sandbox>> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(EngineError::new(ErrorKind::Conflict, "the daemon is shutting down"));
        }
        let template = self.find_template(&request.template)?;
        check(&request)?;
        match self.warm_state(&template, &Quiet)? {
            Some(state) => match self.ready.take(&template, &request)? {
                Some(sandbox) => {
                    self.core.publish(&sandbox);
                    Ok(sandbox)
                }
                None => self.create_from(SandboxId::random(), request, template, &state),
            },
            None => self.create_cold(request, template),
        }
    }

    /// Makes a sandbox of a template's files alone.
    pub(crate) fn create_cold(&self, request: CreateRequest, template: Arc<Template>) -> Result<Arc<Sandbox>> {
        let lineage = SharedStack::new(&self.core.store, template.stack.clone());
        let sandbox = self.make_on(SandboxId::random(), request, template, lineage, false)?;
        self.core.publish(&sandbox);
        Ok(sandbox)
    }

    /// Makes a sandbox of a frozen state, whose processes go on.
    pub(crate) fn create_from(
        &self,
        id: SandboxId,
        request: CreateRequest,
        template: Arc<Template>,
        state: &FrozenState,
    ) -> Result<Arc<Sandbox>> {
        let sandbox = self.make_on(id, request, template, Arc::clone(&state.stack), state.connected)?;
        self.core.publish(&sandbox);
        if let Err(error) = sandbox.restore(state) {
            // It may have ended by itself meanwhile.
            let _unused = sandbox.kill();
            return Err(error);
        }
        Ok(sandbox)
    }

    /// Makes a sandbox that nobody can find yet. With `connected` it is on the network even if it may reach nothing.
    pub(crate) fn make_on(
        &self,
        id: SandboxId,
        request: CreateRequest,
        template: Arc<Template>,
        lineage: Arc<SharedStack>,
        connected: bool,
    ) -> Result<Arc<Sandbox>> {
        let host_name = id.as_str()[..12].to_owned();
        let connected = connected || !request.groups.is_empty();
        let access = self.core.network.access(&request.network, connected)?;
        let disk = storage::make(&self.core.store, lineage, request.limits.disk_bytes)?;
        let resolver = self.core.network.resolver(access.is_some());
        let made = storage::write_identity(&disk, &host_name, &resolver, self.core.id_base)
            .and_then(|()| SandboxCgroup::create(&self.cgroups, &id, &request.limits, self.core.id_base));
        let cgroup = match made {
            Ok(cgroup) => cgroup,
            Err(error) => {
                storage::discard(&self.core.store, disk);
                return Err(error);
            }
        };
        let launched = self.isolation.launch(&cgroup, std::os::fd::AsFd::as_fd(&disk.mount), &host_name);
        let init = match launched {
            Ok(init) => init,
            Err(error) => {
                cgroup.remove();
                storage::discard(&self.core.store, disk);
                return Err(error);
            }
        };
        let owner = Owner { id: &id, host_name: &host_name, init: init.pid };
        let connection = match Connection::new(&self.core.network, &owner, &request, access) {
            Ok(connection) => connection,
            Err(error) => {
                isolation::end(&init.descriptor);
                cgroup.remove();
                storage::discard(&self.core.store, disk);
                return Err(error);
            }
        };
        let parts = Parts { id, template, request, host_name, init, cgroup, disk, connection };
        Sandbox::start(&self.core, parts)
    }

    /// Makes a sandbox from a checkpoint: its files, and its processes going on from where they
    /// were, independently of all others.
    ///
    /// # Errors
    /// `NotFound` for the checkpoint; as [`create`](Self::create).
    pub fn fork(&self, checkpoint: &str) -> Result<Arc<Sandbox>> {
        let checkpoint = self.core.checkpoints.find(checkpoint)?;
        let request = checkpoint.request.clone();
        let (id, template) = (SandboxId::random(), Arc::clone(&checkpoint.template));
        let sandbox = self.create_from(id, request, template, &checkpoint.state)?;
        self.core.checkpoints.move_to(&checkpoint, &sandbox.at);
        Ok(sandbox)
    }

    /// All checkpoints, oldest first.
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.core.checkpoints.list()
    }

    /// A checkpoint by id, by the beginning of one, or by name.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` when several match.
    pub fn checkpoint(&self, text: &str) -> Result<CheckpointInfo> {
        self.core.checkpoints.find(text).map(|checkpoint| checkpoint.info.clone())
    }

    /// Removes a checkpoint, and all below it if `recursive`; children of a removed one stay whole.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn remove_checkpoint(&self, text: &str, recursive: bool) -> Result<Vec<CheckpointInfo>> {
        let id = self.core.checkpoints.find(text)?.info.id.clone();
        let removed = self.core.remove_checkpoint(&id, recursive)?;
        Ok(removed.iter().map(|checkpoint| checkpoint.info.clone()).collect())
    }

    /// Paths that differ between two states, each a sandbox or a checkpoint, in order.
    ///
    /// # Errors
    /// `NotFound`, or when a layer cannot be read.
    pub fn diff(&self, old: &str, new: &str) -> Result<Vec<brood_deltafs::Change>> {
        let changes = brood_deltafs::Diff::new(self.file_tree(old)?, self.file_tree(new)?);
        changes.collect::<std::result::Result<_, _>>().map_err(storage::store_error)
    }

    fn file_tree(&self, text: &str) -> Result<brood_deltafs::FileTree> {
        if let Ok(id) = text.parse::<SandboxId>()
            && let Some(sandbox) = self.core.find(&id)
        {
            let tree = sandbox.with_disk(|disk| brood_deltafs::FileTree::live(&disk.stack, &disk.upper))?;
            return tree.map_err(storage::store_error);
        }
        let checkpoint = self.core.checkpoints.find(text)?;
        brood_deltafs::FileTree::of(&checkpoint.state.stack.current()).map_err(storage::store_error)
    }

    /// Makes a group: a private network whose members find each other by name. It lives as long as the daemon.
    ///
    /// # Errors
    /// `Invalid` for a name that is no host name, `Conflict` when there is one of that name.
    pub fn create_group(&self, name: &str) -> Result<GroupInfo> {
        self.core.network.create_group(name)
    }

    /// All groups, by name.
    pub fn groups(&self) -> Vec<GroupInfo> {
        self.core.network.groups()
    }

    /// Removes a group.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` while it has members.
    pub fn remove_group(&self, name: &str) -> Result<()> {
        self.core.network.remove_group(name)
    }

    /// A live sandbox.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn sandbox(&self, id: &SandboxId) -> Result<Arc<Sandbox>> {
        let sandboxes = self.core.sandboxes.read().unwrap_or_else(PoisonError::into_inner);
        sandboxes.get(id).cloned().ok_or_else(|| {
            EngineError::new(ErrorKind::NotFound, format!("no sandbox {id}: `brood ps` lists the live ones"))
        })
    }

    /// All live sandboxes, oldest first.
    pub fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        let sandboxes = self.core.sandboxes.read().unwrap_or_else(PoisonError::into_inner);
        let mut sandboxes: Vec<_> = sandboxes.values().cloned().collect();
        sandboxes.sort_by_key(|sandbox| sandbox.created_ms());
        sandboxes
    }

    /// Ends a sandbox, or gives a paused one up; returns when nothing of it is left.
    ///
    /// # Errors
    /// `NotFound`, also when somebody else is killing it.
    pub fn kill(&self, id: &SandboxId) -> Result<()> {
        if self.discard_paused(id) { Ok(()) } else { self.sandbox(id)?.kill() }
    }

    /// What happened and happens.
    pub fn events(&self) -> EventLog {
        self.core.events.clone()
    }

    /// Which way disk limits are kept on this host, or why not.
    pub fn disk_limits(&self) -> brood_deltafs::LimitSupport {
        self.core.store.limit_support()
    }

    /// Ends all sandboxes and the engine's threads, and removes its control groups.
    pub fn shutdown(&self) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ready.stop();
        self.core.checkpointer.stop();
        std::thread::scope(|scope| {
            for sandbox in self.sandboxes() {
                scope.spawn(move || sandbox.end_because("the daemon shuts down"));
            }
        });
        drop(self.core.checkpoints.clear());
        self.paused.clear();
        self.core.squasher.stop();
        self.template_table().values_mut().for_each(|template| {
            // What only memory holds ends with the engine.
            let cold = Template::new(template.info.clone(), template.stack.clone());
            *template = Arc::new(cold);
        });
        self.core.capturing.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.core.janitor.stop();
        self.core.reactor.stop();
        self.core.network.stop();
        self.cgroups.remove();
        self.core.store.wait_removed();
    }
}

fn check(request: &CreateRequest) -> Result<()> {
    let limits = &request.limits;
    let invalid = |message: String| Err(EngineError::new(ErrorKind::Invalid, message));
    if limits.memory_bytes < limits::MEMORY_BYTES_MIN {
        let least = limits::MEMORY_BYTES_MIN >> 20;
        return invalid(format!(
            "a memory limit of {} bytes is too small: {least} MiB is the least",
            limits.memory_bytes
        ));
    }
    if limits.pids < limits::PIDS_MIN {
        return invalid(format!("a limit of {} tasks is too small: {} is the least", limits.pids, limits::PIDS_MIN));
    }
    if limits.cpus.is_some_and(|cpus| !(0.01..=4096.0).contains(&cpus)) {
        return invalid(format!("{} processors make no sense: use 0.01 to 4096", limits.cpus.unwrap_or_default()));
    }
    let names = request.environment.keys().chain(request.labels.keys());
    if let Some(name) = names.into_iter().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return invalid(format!("{name:?} cannot be a name"));
    }
    Ok(())
}
