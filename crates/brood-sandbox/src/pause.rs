//! Paused sandboxes: frozen, without a process, under the id that they had.
//!
//! Their processes are in the daemon's memory and end with it, as those of checkpoints do.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crate::checkpoint::FrozenState;
use crate::engine::Engine;
use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::{CheckpointId, SandboxId, TemplateName};
use crate::model::{CreateRequest, EventObject, SandboxInfo, SandboxState};
use crate::process::lock;
use crate::sandbox::Sandbox;
use crate::template::Template;

/// What is kept of a sandbox while it is paused.
#[derive(Debug, Clone)]
struct Paused {
    info: SandboxInfo,
    template: Arc<Template>,
    request: CreateRequest,
    state: Arc<FrozenState>,
    /// The checkpoint that it was at.
    at: Option<CheckpointId>,
}

/// All paused sandboxes of an engine. An entry is taken out by whoever resumes it.
#[derive(Debug, Default)]
pub(crate) struct PausedSandboxes {
    table: Mutex<HashMap<SandboxId, Paused>>,
}

impl PausedSandboxes {
    /// How many came from a template.
    pub(crate) fn count_of(&self, template: &TemplateName) -> usize {
        lock(&self.table).values().filter(|paused| paused.info.template == *template).count()
    }

    /// Forgets all; for the end of the engine.
    pub(crate) fn clear(&self) {
        let table = std::mem::take(&mut *lock(&self.table));
        drop(table);
    }
}

impl Engine {
    /// Freezes a sandbox and frees everything that it used but its files and pages. Calls in
    /// flight end for their clients, and go on for themselves when it is resumed.
    ///
    /// # Errors
    /// As [`Sandbox::checkpoint`]; the sandbox goes on then.
    pub fn pause(&self, id: &SandboxId) -> Result<SandboxInfo> {
        let sandbox = self.sandbox(id)?;
        let paused = sandbox.freeze_and(|state| {
            let mut info = sandbox.info();
            (info.state, info.init_pid, info.expires_ms) = (SandboxState::Paused, None, None);
            let at = lock(&sandbox.at).clone();
            let (template, request) = (Arc::clone(&sandbox.template), sandbox.request.clone());
            let paused = Paused { info, template, request, state: Arc::clone(state), at };
            // In the table before the live one is gone, so that the id is always somewhere.
            lock(&self.paused.table).insert(id.clone(), paused.clone());
            sandbox.kill().inspect_err(|_error| {
                lock(&self.paused.table).remove(id);
            })?;
            Ok(paused)
        })?;
        self.core.announce(EventObject::Sandbox, id.as_str(), "pause", BTreeMap::new());
        Ok(paused.info)
    }

    /// Brings a paused sandbox back, under its id, with its limits and network, its processes going
    /// on from where they were. Its timeout counts from now.
    ///
    /// # Errors
    /// `NotFound` when it is not paused, or being resumed by somebody else; as
    /// [`create`](Self::create), and it stays paused then.
    pub fn resume(&self, id: &SandboxId) -> Result<Arc<Sandbox>> {
        let paused = lock(&self.paused.table).remove(id);
        let paused = paused.ok_or_else(|| {
            EngineError::new(ErrorKind::NotFound, format!("no sandbox {id} is paused: `brood ps` lists them"))
        })?;
        let template = Arc::clone(&paused.template);
        let resumed = self.create_from(id.clone(), paused.request.clone(), template, &paused.state);
        let sandbox = match resumed {
            Ok(sandbox) => sandbox,
            Err(error) => {
                lock(&self.paused.table).insert(id.clone(), paused);
                return Err(error);
            }
        };
        *lock(&sandbox.at) = paused.at.filter(|at| self.core.checkpoints.find(at.as_str()).is_ok());
        self.core.announce(EventObject::Sandbox, id.as_str(), "resume", BTreeMap::new());
        Ok(sandbox)
    }

    /// All paused sandboxes, oldest first.
    pub fn paused(&self) -> Vec<SandboxInfo> {
        let mut infos: Vec<_> = lock(&self.paused.table).values().map(|paused| paused.info.clone()).collect();
        infos.sort_by(|left, right| (left.created_ms, &left.id).cmp(&(right.created_ms, &right.id)));
        infos
    }

    /// Gives a paused sandbox up; whether there was one.
    pub(crate) fn discard_paused(&self, id: &SandboxId) -> bool {
        let paused = lock(&self.paused.table).remove(id);
        let found = paused.is_some();
        drop(paused);
        if found {
            self.core.announce(EventObject::Sandbox, id.as_str(), "die", BTreeMap::new());
        }
        found
    }
}
