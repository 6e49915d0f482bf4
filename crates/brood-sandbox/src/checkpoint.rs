//! Checkpoints: immutable pairs of a layer stack and a process-tree image, in a tree.
//!
//! A checkpoint is in the table once both halves exist, so nobody ever sees one without the other.
//! Both live as long as the daemon does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use brood_deltacr::ProcessTreeImage;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::{CheckpointId, SandboxId, TemplateName};
use crate::model::{CreateRequest, ProcessInfo};
use crate::process::lock;
use crate::shared_stack::SharedStack;
use crate::template::Template;

/// Most checkpoints that a daemon keeps. Each holds at least its own layer directory and image.
const CHECKPOINTS_MAX: usize = 100_000;

/// A tool call or background process that lived when a checkpoint was taken, or one that had ended
/// and left its streams to others (`info.exit` is there then).
#[derive(Debug, Clone)]
pub(crate) struct ProcessRecord {
    pub(crate) info: ProcessInfo,
    pub(crate) has_input: bool,
}

/// Files and processes at one moment. Immutable, but for the shape of the stack.
#[derive(Debug)]
pub(crate) struct FrozenState {
    pub(crate) stack: Arc<SharedStack>,
    /// None for files alone.
    pub(crate) processes: Option<ProcessTreeImage>,
    pub(crate) records: Vec<ProcessRecord>,
    /// Whether its sandbox was on the network: its processes may have sockets at that address.
    pub(crate) connected: bool,
}

/// A frozen state of a sandbox, with its place in the tree.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    pub(crate) info: CheckpointInfo,
    pub(crate) template: Arc<Template>,
    /// How forks are made: the environment and limits of its sandbox, and what that might reach when it was taken.
    pub(crate) request: CreateRequest,
    pub(crate) state: Arc<FrozenState>,
}

/// A checkpoint as lists and `inspect` show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Its id.
    pub id: CheckpointId,
    /// A name given by the caller, unique among the checkpoints of one template.
    pub name: Option<String>,
    /// The checkpoint that its sandbox was at before.
    pub parent: Option<CheckpointId>,
    /// The sandbox that it was taken of, which may be gone.
    pub sandbox: SandboxId,
    /// The template of that sandbox.
    pub template: TemplateName,
    /// When, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether it holds processes, or files alone.
    pub with_processes: bool,
    /// Processes in it, PID 1 not counted.
    pub processes: usize,
    /// Layers of its files.
    pub layers: usize,
    /// Pages that were copied when it was taken: those written since its parent.
    pub copied_pages: usize,
    /// How long the sandbox stood still, in microseconds.
    pub standstill_us: u64,
    /// Whether it was taken by itself after a tool call, and goes by itself too.
    #[serde(default)]
    pub automatic: bool,
}

/// All checkpoints of an engine.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    table: RwLock<BTreeMap<CheckpointId, Arc<Checkpoint>>>,
}

impl Checkpoints {
    fn table(&self) -> RwLockReadGuard<'_, BTreeMap<CheckpointId, Arc<Checkpoint>>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a checkpoint below the one that its sandbox is at, and the sandbox at the new one. Both
    /// under the lock, so that no removal comes in between. How it is shown then.
    pub(crate) fn insert(&self, mut checkpoint: Checkpoint, at: &Mutex<Option<CheckpointId>>) -> CheckpointInfo {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let before = lock(at).replace(checkpoint.info.id.clone());
        checkpoint.info.parent = before.filter(|parent| table.contains_key(parent));
        let info = checkpoint.info.clone();
        table.insert(info.id.clone(), Arc::new(checkpoint));
        info
    }

    /// Puts a sandbox at a checkpoint that may have been removed meanwhile.
    pub(crate) fn move_to(&self, checkpoint: &Checkpoint, at: &Mutex<Option<CheckpointId>>) {
        let table = self.table();
        let id = &checkpoint.info.id;
        let parent = || checkpoint.info.parent.clone().filter(|parent| table.contains_key(parent));
        *lock(at) = if table.contains_key(id) { Some(id.clone()) } else { parent() };
    }

    /// Refuses what could not be kept, before anything is touched.
    pub(crate) fn ensure_room(&self, template: &TemplateName, name: Option<&str>) -> Result<()> {
        let table = self.table();
        if table.len() >= CHECKPOINTS_MAX {
            let message = format!("there are {CHECKPOINTS_MAX} checkpoints: remove some (`brood checkpoint rm`)");
            return Err(EngineError::new(ErrorKind::Exhausted, message));
        }
        let Some(name) = name else { return Ok(()) };
        let well_formed = name.len() <= 128 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if name.is_empty() || !well_formed || name.starts_with(['-', '.']) {
            let message = format!("checkpoint name {name:?} is not valid: letters, digits and - _ . are allowed");
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        let taken = |info: &CheckpointInfo| info.template == *template && info.name.as_deref() == Some(name);
        if table.values().any(|checkpoint| taken(&checkpoint.info)) {
            let message = format!("checkpoint {name:?} exists already: choose another name or remove it");
            return Err(EngineError::new(ErrorKind::Conflict, message));
        }
        Ok(())
    }

    /// By id, by the beginning of one, or by name.
    pub(crate) fn find(&self, text: &str) -> Result<Arc<Checkpoint>> {
        let table = self.table();
        let matches: Vec<_> = table
            .values()
            .filter(|checkpoint| {
                checkpoint.info.name.as_deref() == Some(text)
                    || (text.len() >= 4 && checkpoint.info.id.as_str().starts_with(text))
            })
            .collect();
        match matches[..] {
            [one] => Ok(Arc::clone(one)),
            [] => Err(not_found(text)),
            _ => {
                let message = format!("{text:?} names {} checkpoints: give the whole id", matches.len());
                Err(EngineError::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<CheckpointInfo> {
        let mut infos: Vec<_> = self.table().values().map(|checkpoint| checkpoint.info.clone()).collect();
        infos.sort_by(|left, right| (left.created_ms, &left.id).cmp(&(right.created_ms, &right.id)));
        infos
    }

    /// Takes a checkpoint out, and all below it if `recursive`. Children of a removed one stay
    /// whole: they share its layers and pages, which live as long as somebody refers to them; in
    /// the tree they move up to its parent. Sandboxes that are at a removed one move there too:
    /// `moved` is told from where to where, while nothing can be added.
    pub(crate) fn remove(
        &self,
        id: &CheckpointId,
        recursive: bool,
        moved: impl FnOnce(&HashSet<CheckpointId>, Option<&CheckpointId>),
    ) -> Result<Vec<Arc<Checkpoint>>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let first = table.remove(id).ok_or_else(|| not_found(id.as_str()))?;
        let parent = first.info.parent.clone();
        let mut removed = vec![first];
        let mut children: HashMap<CheckpointId, Vec<CheckpointId>> = HashMap::new();
        for checkpoint in table.values() {
            if let Some(parent) = &checkpoint.info.parent {
                children.entry(parent.clone()).or_default().push(checkpoint.info.id.clone());
            }
        }
        let mut below = children.remove(id).unwrap_or_default();
        if recursive {
            while let Some(child) = below.pop() {
                removed.extend(table.remove(&child));
                below.extend(children.remove(&child).unwrap_or_default());
            }
        } else {
            for child in below {
                let Some(checkpoint) = table.get_mut(&child) else { continue };
                Arc::make_mut(checkpoint).info.parent.clone_from(&parent);
            }
        }
        let gone = removed.iter().map(|checkpoint| checkpoint.info.id.clone()).collect();
        moved(&gone, parent.as_ref());
        Ok(removed)
    }

    /// Those of a sandbox's automatic checkpoints that may go, oldest first: all but the newest
    /// `kept` and those from which more than one state goes on.
    pub(crate) fn outdated(
        &self,
        sandbox: &SandboxId,
        kept: usize,
        is_used: impl Fn(&CheckpointId) -> bool,
    ) -> Vec<CheckpointId> {
        let all = self.list();
        let children = |id: &CheckpointId| all.iter().filter(|info| info.parent.as_ref() == Some(id)).count();
        let automatic: Vec<_> = all.iter().filter(|info| info.automatic && info.sandbox == *sandbox).collect();
        let old = automatic.iter().take(automatic.len().saturating_sub(kept));
        old.filter(|info| children(&info.id) < 2 && !is_used(&info.id)).map(|info| info.id.clone()).collect()
    }

    /// Takes all out; for the end of the engine.
    pub(crate) fn clear(&self) -> Vec<Arc<Checkpoint>> {
        let table = std::mem::take(&mut *self.table.write().unwrap_or_else(PoisonError::into_inner));
        table.into_values().collect()
    }
}

fn not_found(text: &str) -> EngineError {
    let shown: String = text.chars().take(80).collect();
    let message = format!("no checkpoint {shown:?}: `brood checkpoint ls` lists what there is");
    EngineError::new(ErrorKind::NotFound, message)
}
