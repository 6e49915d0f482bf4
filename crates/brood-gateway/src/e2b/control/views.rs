//! Sandboxes as the control plane shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use brood_sandbox::model::{ResourceLimits, SandboxInfo};
use brood_sandbox::sandbox::Sandbox;
use serde::Serialize;

use crate::e2b::record::Record;
use crate::e2b::time::rfc3339;
use crate::e2b::tokens::Purpose;
use crate::e2b::{E2bState, ENVD_VERSION};

/// Required by the clients and of no use to them.
const CLIENT_ID: &str = "brood";
/// The end of a sandbox that has none, since clients want one: 1 January 2100.
const NEVER_MS: u64 = 4_102_444_800_000;

/// Answer of create and connect, and part of the answer of fork.
#[derive(Debug, Serialize)]
pub(in crate::e2b) struct Created {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    #[serde(rename = "envdVersion")]
    envd_version: &'static str,
    alias: String,
    #[serde(rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    #[serde(rename = "trafficAccessToken", skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    domain: String,
}

impl Created {
    pub(in crate::e2b) fn of(state: &E2bState, id: &str, record: &Record) -> Self {
        let token = |purpose, wanted: bool| wanted.then(|| state.tokens().of(purpose, id));
        Self {
            template_id: record.template.clone(),
            sandbox_id: id.to_owned(),
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            alias: record.template.clone(),
            envd_access_token: token(Purpose::Envd, record.secure),
            traffic_access_token: token(Purpose::Traffic, record.secure || !record.public_traffic),
            domain: state.settings().domain.clone(),
        }
    }
}

/// Where a sandbox stands, in the only two words that clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::e2b) enum State {
    Running,
    Paused,
}

/// A sandbox as lists show it.
#[derive(Debug, Clone, Serialize)]
pub(in crate::e2b) struct Listed {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    alias: String,
    #[serde(rename = "startedAt")]
    started_at: String,
    #[serde(rename = "endAt")]
    end_at: String,
    #[serde(rename = "cpuCount")]
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    pub(super) state: State,
    #[serde(rename = "envdVersion")]
    envd_version: &'static str,
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(skip)]
    pub(super) started_ms: u64,
}

/// A sandbox as it is shown alone.
#[derive(Debug, Serialize)]
pub(in crate::e2b) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    #[serde(rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: String,
    #[serde(rename = "allowInternetAccess", skip_serializing_if = "Option::is_none")]
    allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<serde_json::Value>,
    lifecycle: Lifecycle,
}

#[derive(Debug, Serialize)]
struct Lifecycle {
    #[serde(rename = "autoResume")]
    auto_resume: bool,
    #[serde(rename = "onTimeout")]
    on_timeout: &'static str,
}

/// What a list needs to know of a sandbox, live or paused.
#[derive(Debug)]
pub(in crate::e2b) struct Shown<'a> {
    pub(in crate::e2b) id: &'a str,
    pub(in crate::e2b) record: &'a Record,
    pub(in crate::e2b) limits: &'a ResourceLimits,
    pub(in crate::e2b) state: State,
    pub(in crate::e2b) ends_ms: Option<u64>,
}

impl Listed {
    pub(in crate::e2b) fn of(state: &E2bState, shown: &Shown<'_>) -> Self {
        let Shown { id, record, limits, state: stands, ends_ms } = *shown;
        Self {
            template_id: record.template.clone(),
            sandbox_id: id.to_owned(),
            client_id: CLIENT_ID,
            alias: record.template.clone(),
            started_at: rfc3339(record.started_ms),
            end_at: rfc3339(ends_ms.unwrap_or(NEVER_MS)),
            cpu_count: cpu_count(limits),
            memory_mb: limits.memory_bytes >> 20,
            disk_size_mb: limits.disk_bytes.unwrap_or_else(|| disk_bytes(state)) >> 20,
            state: stands,
            envd_version: ENVD_VERSION,
            metadata: record.metadata.clone(),
            started_ms: record.started_ms,
        }
    }

    pub(in crate::e2b) fn of_live(state: &E2bState, sandbox: &Arc<Sandbox>) -> Self {
        let (info, record) = (sandbox.info(), state.records().of(sandbox));
        Self::of(state, &live(&info, &record))
    }

    pub(in crate::e2b) fn of_paused(state: &E2bState, info: &SandboxInfo) -> Self {
        let record = state.records().of_info(info);
        Self::of(state, &Shown { state: State::Paused, ..live(info, &record) })
    }
}

fn live<'a>(info: &'a SandboxInfo, record: &'a Record) -> Shown<'a> {
    Shown {
        id: info.id.as_str(),
        record,
        limits: &info.limits,
        state: State::Running,
        ends_ms: record.ends_ms.or(info.expires_ms),
    }
}

impl Detail {
    pub(in crate::e2b) fn of(state: &E2bState, shown: &Shown<'_>) -> Self {
        let record = shown.record;
        Self {
            listed: Listed::of(state, shown),
            envd_access_token: record.secure.then(|| state.tokens().of(Purpose::Envd, shown.id)),
            domain: state.settings().domain.clone(),
            allow_internet_access: record.internet_access,
            network: record.network.clone(),
            lifecycle: Lifecycle {
                auto_resume: record.auto_resume,
                on_timeout: if record.auto_pause { "pause" } else { "kill" },
            },
        }
    }

    pub(in crate::e2b) fn of_live(state: &E2bState, sandbox: &Arc<Sandbox>) -> Self {
        let (info, record) = (sandbox.info(), state.records().of(sandbox));
        Self::of(state, &live(&info, &record))
    }

    pub(in crate::e2b) fn of_paused(state: &E2bState, info: &SandboxInfo) -> Self {
        let record = state.records().of_info(info);
        Self::of(state, &Shown { state: State::Paused, ..live(info, &record) })
    }
}

/// Processors that a sandbox sees, at least one.
pub(super) fn cpu_count(limits: &ResourceLimits) -> u32 {
    let host = || std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    // The engine takes 0.01 to 4096.
    limits.cpus.map_or_else(host, |cpus| (cpus.ceil() as u32).max(1))
}

/// Size of the file system that sandboxes without a bound of their own share.
pub(super) fn disk_bytes(state: &E2bState) -> u64 {
    rustix::fs::statvfs(&state.settings().state_directory).map_or(0, |status| status.f_blocks * status.f_frsize)
}
