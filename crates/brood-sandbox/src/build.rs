//! Building templates: a source, then steps, each a layer of its own.
//!
//! A step's layer is remembered under a key made from everything that it depends on: the layers
//! below, the environment, the user, the working directory, and the command or the content of what
//! is copied. So a build that changes its last step repeats only that, as in Docker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use brood_deltafs::{LayerId, LayerStack};
use brood_image::{FetchOptions, Source};
use brood_network::RegistrySettings;

use crate::copy_source::CopySource;
use crate::engine::Engine;
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::now_ms;
use crate::files::{Files, Owner};
use crate::ids::{SandboxId, TemplateName};
use crate::model::{
    BuildRequest, BuildStep, CreateRequest, EventObject, ExitReason, HistoryEntry, NetworkAccess, NetworkRequest,
    ProcessRequest, ResourceLimits, TemplateInfo, Warmth,
};
use crate::output::OutputEvent;
use crate::shared_stack::SharedStack;
use crate::storage;
use crate::template::Template;

/// Bytes of a failed step's output that its error repeats.
pub(crate) const FAILURE_OUTPUT_BYTES: usize = 2000;
/// Tasks of a build step: compilers and package managers start many.
pub(crate) const BUILD_PIDS: u32 = 8192;
/// Files that every sandbox gets written anew; what a step left of them is not part of its layer.
const IDENTITY_FILES: [&str; 4] = ["etc/hosts", "etc/hostname", "etc/resolv.conf", storage::SEED_FILE];
/// Settings that the host's own proxies need, handed to `RUN` steps as Docker hands its predefined
/// build arguments. Compared without regard to case.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Where a build tells how far it is.
pub trait BuildProgress: Send + Sync {
    /// Step `index` of `total` begins, or is taken from an earlier build.
    fn step(&self, index: usize, total: usize, text: &str, cached: bool);
    /// Output of a step or of a tool that makes the source.
    fn output(&self, text: &str);
    /// Bytes of a download or of an archive being unpacked.
    fn transfer(&self, item: &str, done_bytes: u64, total_bytes: Option<u64>);
}

/// A build that nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl BuildProgress for Quiet {
    fn step(&self, _: usize, _: usize, _: &str, _: bool) {}
    fn output(&self, _: &str) {}
    fn transfer(&self, _: &str, _: u64, _: Option<u64>) {}
}

/// What has been built so far.
struct Building {
    stack: LayerStack,
    environment: BTreeMap<String, String>,
    working_directory: String,
    user: String,
    history: Vec<HistoryEntry>,
}

/// Takes the name out of the table of builds under way.
struct NameTaken<'e> {
    engine: &'e Engine,
    name: TemplateName,
}

impl Drop for NameTaken<'_> {
    fn drop(&mut self) {
        self.engine.building.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

impl Engine {
    /// Builds a template; an earlier one of the name is replaced once the build has succeeded.
    ///
    /// # Errors
    /// `Conflict` when the name is being built, `Invalid` for a source or step that fails, with
    /// the step and the end of its output. Layers that were finished stay in the cache.
    pub fn build_template(&self, request: BuildRequest, progress: &dyn BuildProgress) -> Result<TemplateInfo> {
        let _taken = self.take_name(&request.name)?;
        let total = request.steps.len() + 1 + usize::from(request.start_command.is_some());
        let mut building = self.start_from(&request, progress, total)?;
        building.environment.extend(request.environment.clone());
        if let Some(directory) = &request.working_directory {
            building.working_directory.clone_from(directory);
        }
        if !building.working_directory.starts_with('/') {
            let message = format!("working directory {:?} must be absolute", building.working_directory);
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        if let Some(user) = &request.user {
            building.user.clone_from(user);
        }
        for (index, step) in request.steps.iter().enumerate() {
            let position = Position { index: index + 2, total };
            self.run_step(&request, &mut building, step, position, progress)?;
        }
        self.finish(request, building, Position { index: total, total }, progress)
    }

    fn take_name(&self, name: &TemplateName) -> Result<NameTaken<'_>> {
        let mut building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if building.insert(name.clone(), ()).is_some() {
            let message = format!("template {name} is being built already: wait for that build, or use another name");
            return Err(EngineError::new(ErrorKind::Conflict, message));
        }
        Ok(NameTaken { engine: self, name: name.clone() })
    }

    fn start_from(&self, request: &BuildRequest, progress: &dyn BuildProgress, total: usize) -> Result<Building> {
        let text = format!("FROM {}", request.source);
        if let Some(name) = request.source.strip_prefix("template:") {
            let template = self.find_template(&name.parse()?)?;
            progress.step(1, total, &text, true);
            let info = &template.info;
            return Ok(Building {
                stack: template.stack.clone(),
                environment: info.environment.clone(),
                working_directory: info.working_directory.clone(),
                user: info.user.clone(),
                history: self.catalog.history(&info.name)?.unwrap_or_default(),
            });
        }
        let source: Source = request.source.parse().map_err(|error: brood_image::SourceError| {
            EngineError::caused_by(ErrorKind::Invalid, format!("source {:?} is not valid", request.source), error)
        })?;
        progress.step(1, total, &text, false);
        self.fetch(&source, request, progress)
    }

    fn fetch(&self, source: &Source, request: &BuildRequest, progress: &dyn BuildProgress) -> Result<Building> {
        let images = self.settings.state_directory.join("images");
        let mut options = FetchOptions::new(images.join("layers"), images.join("cache"));
        options.unpack.id_shift.base = self.settings.subuid_base;
        options.refresh = request.no_cache;
        let transfers = Transfers { progress, done: Mutex::default() };
        let image = brood_image::fetch(source, &options, &transfers).map_err(|error| {
            let kind = match error.kind() {
                brood_image::ErrorKind::DiskFull => ErrorKind::Exhausted,
                brood_image::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Invalid,
            };
            EngineError::caused_by(kind, format!("template {} cannot be made from {source}", request.name), error)
        })?;
        let mut layers = Vec::new();
        let mut history = Vec::new();
        for layer in &image.layers {
            let id: LayerId = format!("sha256-{}", layer.diff_id.hex())
                .parse()
                .map_err(|error| EngineError::caused_by(ErrorKind::Internal, "a digest makes no layer id", error))?;
            layers.push(self.core.store.adopt(id.clone(), &layer.path).map_err(storage::store_error)?);
            history.push(HistoryEntry {
                layer: id.as_str().to_owned(),
                created_by: format!("FROM {source}"),
                disk_bytes: layer.bytes,
                created_ms: now_ms(),
            });
        }
        layers.reverse();
        let config = image.config;
        Ok(Building {
            stack: self.system.enclose(layers),
            environment: config.env.into_iter().collect(),
            working_directory: config.workdir.unwrap_or_else(|| "/".to_owned()),
            user: config.user.unwrap_or_else(|| "root".to_owned()),
            history,
        })
    }

    fn run_step(
        &self,
        request: &BuildRequest,
        building: &mut Building,
        step: &BuildStep,
        position: Position,
        progress: &dyn BuildProgress,
    ) -> Result<()> {
        let text = match step {
            BuildStep::Run { command } => format!("RUN {command}"),
            BuildStep::Copy { source, destination } => format!("COPY {} {destination}", source.display()),
        };
        let copied = match step {
            BuildStep::Copy { source, destination } => Some(CopySource::open(source, destination)?),
            BuildStep::Run { .. } => None,
        };
        let key = key(building, &text, copied.as_ref())?;
        if !request.no_cache
            && let Some(entry) = self.catalog.built_layer(&key)?
            && let Ok(id) = entry.layer.parse::<LayerId>()
            && let Ok(layer) = self.core.store.layer(&id)
        {
            progress.step(position.index, position.total, &text, true);
            building.stack = building.stack.with_top(layer);
            building.history.push(entry);
            return Ok(());
        }
        progress.step(position.index, position.total, &text, false);
        let started = Instant::now();
        let stack = match (step, copied) {
            (BuildStep::Run { command }, _) => self.run_command(request, building, command, progress)?,
            (BuildStep::Copy { .. }, Some(copied)) => self.copy(building, &copied)?,
            (BuildStep::Copy { .. }, None) => return Ok(()),
        };
        tracing::debug!(step = text, seconds = started.elapsed().as_secs_f64(), "step built");
        let top = stack.top().ok_or_else(|| EngineError::new(ErrorKind::Internal, "a built layer is missing"))?;
        let entry = HistoryEntry {
            layer: top.id().as_str().to_owned(),
            created_by: text,
            disk_bytes: storage::tree_bytes(top.path())?,
            created_ms: now_ms(),
        };
        self.catalog.put_built_layer(&key, &entry)?;
        building.history.push(entry);
        building.stack = stack;
        Ok(())
    }

    /// Runs a command in a sandbox of its own and freezes what it wrote.
    fn run_command(
        &self,
        request: &BuildRequest,
        building: &Building,
        command: &str,
        progress: &dyn BuildProgress,
    ) -> Result<LayerStack> {
        let template = Arc::new(Template::new(info(request, building), building.stack.clone()));
        let limits =
            ResourceLimits { memory_bytes: host_memory_bytes()?, pids: BUILD_PIDS, ..ResourceLimits::default() };
        // What is no text is no proxy either.
        let variables =
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        let create = CreateRequest {
            environment: proxies(variables, progress),
            limits,
            labels: BTreeMap::from([("brood.build".to_owned(), request.name.to_string())]),
            // Package managers have to reach their registries.
            network: NetworkRequest { access: NetworkAccess::All, ..NetworkRequest::default() },
            ..CreateRequest::plain(request.name.clone())
        };
        let sandbox = self.create_cold(create, template)?;
        // As in a Dockerfile: the working directory is made when it is missing.
        let made =
            sandbox.files().and_then(|files| files.make_directory(&building.working_directory, Owner::default()));
        let outcome = made.and_then(|_made| run_in(&sandbox, command, progress));
        let disk = sandbox.kill_keeping_disk()?;
        match outcome {
            Ok(()) => self.freeze(disk),
            Err(error) => {
                storage::discard(&self.core.store, disk);
                Err(error)
            }
        }
    }

    fn copy(&self, building: &Building, copied: &CopySource) -> Result<LayerStack> {
        let lineage = SharedStack::new(&self.core.store, building.stack.clone());
        let disk = storage::make(&self.core.store, lineage, None)?;
        let root = storage::root_of(&disk)?;
        // Not a sandbox yet, but errors want a name.
        let files = Files::new(SandboxId::random(), root, self.core.id_base);
        match copied.copy_into(&files, Owner::default()) {
            Ok(()) => self.freeze(disk),
            Err(error) => {
                storage::discard(&self.core.store, disk);
                Err(error)
            }
        }
    }

    /// Makes what was written a layer. The processes must be gone.
    fn freeze(&self, disk: crate::sandbox::Disk) -> Result<LayerStack> {
        let crate::sandbox::Disk { stack, lineage, upper, space, mount } = disk;
        drop((mount, lineage));
        for path in IDENTITY_FILES {
            let _unused = std::fs::remove_file(upper.changes().join(path));
        }
        debug_assert!(space.is_none(), "builds have no disk limit");
        let frozen = self.core.store.freeze(&upper, &stack).map_err(storage::store_error)?;
        let (stack, fresh) = self.core.store.commit_freeze(frozen).map_err(storage::store_error)?;
        self.core.store.discard(fresh).map_err(storage::store_error)?;
        Ok(stack)
    }

    fn finish(
        &self,
        request: BuildRequest,
        building: Building,
        position: Position,
        progress: &dyn BuildProgress,
    ) -> Result<TemplateInfo> {
        let template = Arc::new(Template::new(info(&request, &building), building.stack));
        if let Some(command) = &request.start_command {
            progress.step(position.index, position.total, &format!("START {command}"), false);
            // Before the name changes hands: a command that is never ready leaves the old template.
            self.warm_state(&template, progress)?;
        }
        self.catalog.put_template(&template.info, &building.history)?;
        self.keep_template(Arc::clone(&template));
        if template.warm.get().is_some() {
            self.ready.want(&template);
        }
        self.core.announce(EventObject::Template, template.info.name.as_str(), "build", BTreeMap::new());
        Ok(template.describe())
    }
}

#[derive(Clone, Copy)]
struct Position {
    index: usize,
    total: usize,
}

fn info(request: &BuildRequest, building: &Building) -> TemplateInfo {
    let mut layers: Vec<String> = building.stack.ids().map(|id| id.as_str().to_owned()).collect();
    layers.reverse();
    TemplateInfo {
        name: request.name.clone(),
        created_ms: now_ms(),
        source: request.source.clone(),
        layers,
        disk_bytes: building.history.iter().map(|entry| entry.disk_bytes).sum(),
        environment: building.environment.clone(),
        working_directory: building.working_directory.clone(),
        user: building.user.clone(),
        start_command: request.start_command.clone(),
        ready_command: request.ready_command.clone(),
        warmth: Warmth::default(),
        sandboxes: 0,
    }
}

/// What a step's layer is remembered under.
fn key(building: &Building, text: &str, copied: Option<&CopySource>) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    };
    building.stack.ids().for_each(|id| add(id.as_str()));
    for (name, value) in &building.environment {
        add(name);
        add(value);
    }
    add(&building.user);
    add(&building.working_directory);
    add(text);
    if let Some(copied) = copied {
        add(&copied.digest()?);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn run_in(sandbox: &Arc<crate::sandbox::Sandbox>, command: &str, progress: &dyn BuildProgress) -> Result<()> {
    let request = ProcessRequest {
        arguments: vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()],
        environment: BTreeMap::from([("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned())]),
        user: None,
        working_directory: None,
        terminal: None,
        stdin: false,
        timeout: None,
        background: false,
        tag: None,
    };
    let (_process, mut output) = sandbox.spawn_with_output(request)?;
    let mut tail = Vec::new();
    let mut reason = ExitReason::SandboxKilled;
    while let Some(event) = output.next_blocking() {
        match event {
            OutputEvent::Data { bytes, .. } => {
                progress.output(&String::from_utf8_lossy(&bytes));
                tail.extend_from_slice(&bytes);
                let excess = tail.len().saturating_sub(FAILURE_OUTPUT_BYTES);
                tail.drain(..excess);
            }
            OutputEvent::Lost { .. } => {}
            OutputEvent::Ended(report) => reason = report.reason,
        }
    }
    if reason == ExitReason::Exited(0) {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let end = end_of(reason);
    let message = format!("step `RUN {command}` failed with {end}; the end of its output:\n{}", tail.trim_end());
    Err(EngineError::new(ErrorKind::Invalid, message))
}

/// How an end is told to people.
pub(crate) fn end_of(reason: ExitReason) -> String {
    match reason {
        ExitReason::Exited(code) => format!("exit code {code}"),
        ExitReason::Signaled(signal) => format!("signal {signal}"),
        other => format!("{other:?}"),
    }
}

/// The proxies among `variables`. One whose value holds a user name or password stays outside: a step
/// could write it into a layer, and a layer goes wherever the template goes.
fn proxies(
    variables: impl Iterator<Item = (String, String)>,
    progress: &dyn BuildProgress,
) -> BTreeMap<String, String> {
    let is_proxy = |name: &str| PROXY_VARIABLES.iter().any(|known| known.eq_ignore_ascii_case(name));
    let settings = RegistrySettings::from_variables(variables.filter(|(name, _)| is_proxy(name)));
    for name in &settings.withheld {
        progress.output(&format!(
            "brood: {name} of the daemon holds a user name or password and is not passed on; --env passes it, and keeps it in the template\n"
        ));
    }
    settings.variables.into_iter().collect()
}

pub(crate) fn host_memory_bytes() -> Result<u64> {
    let failed = |error| EngineError::system("cannot read /proc/meminfo", error);
    let text = std::fs::read_to_string("/proc/meminfo").map_err(failed)?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let kib: u64 = total.ok_or_else(|| EngineError::new(ErrorKind::Internal, "/proc/meminfo has no MemTotal"))?;
    Ok(kib << 10)
}

/// Hands the progress of a fetch on.
struct Transfers<'p> {
    progress: &'p dyn BuildProgress,
    done: Mutex<BTreeMap<brood_image::ProgressItem, (u64, Option<u64>)>>,
}

impl Transfers<'_> {
    fn update(&self, item: &brood_image::ProgressItem, change: impl FnOnce(&mut (u64, Option<u64>))) {
        let mut table = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = table.entry(item.clone()).or_default();
        change(entry);
        let (done, total) = *entry;
        drop(table);
        self.progress.transfer(&format!("{} {}", item.stage, item.name), done, total);
    }
}

impl brood_image::Progress for Transfers<'_> {
    fn started(&self, item: &brood_image::ProgressItem, total_bytes: Option<u64>) {
        self.update(item, |entry| entry.1 = total_bytes);
    }

    fn advanced(&self, item: &brood_image::ProgressItem, bytes: u64) {
        self.update(item, |entry| entry.0 += bytes);
    }

    fn message(&self, _: &brood_image::ProgressItem, line: &str) {
        self.progress.output(&format!("{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Said(Mutex<String>);

    impl BuildProgress for Said {
        fn step(&self, _: usize, _: usize, _: &str, _: bool) {}

        fn output(&self, text: &str) {
            self.0.lock().unwrap().push_str(text);
        }

        fn transfer(&self, _: &str, _: u64, _: Option<u64>) {}
    }

    #[test]
    fn steps_get_proxies_but_no_passwords() {
        let variables = [
            ("https_proxy", "http://proxy.example:3128"),
            ("HTTP_PROXY", "http://user:secret@proxy.example:3128"),
            ("NO_PROXY", "localhost,.example"),
            ("PIP_INDEX_URL", "https://mirror.example/simple"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let said = Said::default();
        let passed = proxies(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter(), &said);
        assert_eq!(passed.keys().collect::<Vec<_>>(), ["NO_PROXY", "https_proxy"]);
        let said = said.0.into_inner().unwrap();
        assert!(said.contains("HTTP_PROXY") && !said.contains("secret"), "{said}");
    }
}
