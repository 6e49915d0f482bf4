//! What this interface knows of a sandbox beyond what the engine does.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use brood_sandbox::model::SandboxInfo;
use brood_sandbox::sandbox::Sandbox;
use serde::{Deserialize, Serialize};

/// A sandbox as its creator asked for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// The key that made it.
    pub(super) owner: String,
    /// The template, as the creator named it.
    pub(super) template: String,
    /// The creator's own text.
    pub(super) metadata: BTreeMap<String, String>,
    /// Environment of its processes, where the engine does not know it.
    pub(super) environment: BTreeMap<String, String>,
    /// When it started, in milliseconds since 1970; a fork or resume does not change it.
    pub(super) started_ms: u64,
    /// When it will be killed or paused, in milliseconds since 1970; none is never, or what the
    /// engine says.
    pub(super) ends_ms: Option<u64>,
    /// Whether it is paused rather than killed when its time is up.
    pub(super) auto_pause: bool,
    /// Whether traffic wakes it when it is paused.
    pub(super) auto_resume: bool,
    /// Whether files and processes need the sandbox's token.
    pub(super) secure: bool,
    /// Whether its ports may be reached without a token.
    pub(super) public_traffic: bool,
    /// What servers inside see as their host name; `${PORT}` stands for the port.
    pub(super) mask_request_host: Option<String>,
    /// Whether the creator asked for internet access by the simple switch.
    pub(super) internet_access: Option<bool>,
    /// The network rules as they were given, for the creator to read again.
    pub(super) network: Option<serde_json::Value>,
}

impl Record {
    /// What is assumed of a sandbox that was made by other means.
    fn assumed(info: &SandboxInfo) -> Self {
        Self {
            owner: String::new(),
            template: info.template.to_string(),
            metadata: info.labels.clone(),
            environment: BTreeMap::new(),
            started_ms: info.created_ms,
            ends_ms: None,
            auto_pause: false,
            auto_resume: false,
            secure: true,
            public_traffic: true,
            mask_request_host: None,
            internet_access: None,
            network: None,
        }
    }
}

/// The records of all live and paused sandboxes.
#[derive(Debug, Default)]
pub(super) struct Records {
    known: RwLock<HashMap<String, Arc<Record>>>,
}

impl Records {
    pub(super) fn insert(&self, id: &str, record: Record) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), Arc::new(record));
    }

    pub(super) fn remove(&self, id: &str) -> Option<Arc<Record>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// The record of a live sandbox.
    pub(super) fn of(&self, sandbox: &Sandbox) -> Arc<Record> {
        self.find(sandbox.id().as_str()).unwrap_or_else(|| Arc::new(Record::assumed(&sandbox.info())))
    }

    /// The record of a sandbox, live or paused.
    pub(super) fn of_info(&self, info: &SandboxInfo) -> Arc<Record> {
        self.find(info.id.as_str()).unwrap_or_else(|| Arc::new(Record::assumed(info)))
    }

    /// The record with this id.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Record>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Changes a record, which other sandboxes' requests may be reading meanwhile.
    pub(super) fn change(&self, sandbox: &Sandbox, change: impl FnOnce(&mut Record)) {
        let mut record = (*self.of(sandbox)).clone();
        change(&mut record);
        self.insert(sandbox.id().as_str(), record);
    }

    /// Forgets all but those for which `keep` says so.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).retain(|id, _| keep(id));
    }
}
