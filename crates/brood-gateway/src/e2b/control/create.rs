//! Creating a sandbox, in both generations of the interface.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use brood_sandbox::model::CreateRequest;
use brood_sandbox::sandbox::Sandbox;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::network::Rules;
use super::templates::{self, Origin};
use super::views::Created;
use super::{Answer, parse};
use crate::e2b::E2bState;
use crate::e2b::auth::KeyId;
use crate::e2b::failure::{Failure, blocking};
use crate::e2b::record::Record;
use crate::e2b::time::now_ms;

/// Life of a sandbox when the client does not say, in seconds.
const TIMEOUT_V2_S: i64 = 300;
const TIMEOUT_V1_S: i64 = 15;
/// Longest life that may be asked for at once: 31 days. It can be prolonged.
pub(super) const TIMEOUT_MAX_S: i64 = 31 * 86_400;
/// Bounds on what the creator may attach.
const METADATA_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<i64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    network: Option<Rules>,
    secure: Option<bool>,
    volume_mounts: Option<Vec<Value>>,
    iam: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

pub(super) async fn create_v2(
    State(state): State<E2bState>,
    Extension(owner): Extension<KeyId>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Created> {
    let asked: Create = parse(&body)?;
    create_once(&state, owner.0, &headers, &body, Create { secure: Some(true), ..asked }, TIMEOUT_V2_S).await
}

pub(super) async fn create_v1(
    State(state): State<E2bState>,
    Extension(owner): Extension<KeyId>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Created> {
    let asked: Create = parse(&body)?;
    create_once(&state, owner.0, &headers, &body, asked, TIMEOUT_V1_S).await
}

/// Creates, or answers as the first time when the request has been carried out before.
async fn create_once(
    state: &E2bState,
    owner: String,
    headers: &HeaderMap,
    body: &[u8],
    asked: Create,
    default_s: i64,
) -> Answer<Created> {
    let Some(slot) = state.idempotency().slot(&owner, headers)? else {
        return create(state, owner, asked, default_s).await.map(|created| (StatusCode::CREATED, Json(created.1)));
    };
    let mut done = slot.lock().await;
    let hash = blake3::hash(body);
    if let Some((before, id)) = done.as_ref() {
        if *before != hash {
            return Err(Failure::conflict("this Idempotency-Key came with another request before"));
        }
        let record = state.records().find(id).ok_or_else(|| Failure::no_sandbox(id))?;
        return Ok((StatusCode::CREATED, Json(Created::of(state, id, &record))));
    }
    let (id, created) = create(state, owner, asked, default_s).await?;
    *done = Some((hash, id));
    Ok((StatusCode::CREATED, Json(created)))
}

async fn create(state: &E2bState, owner: String, asked: Create, default_s: i64) -> Result<(String, Created), Failure> {
    let plan = plan(state, owner, asked, default_s)?;
    let maker = state.clone();
    let Plan { origin, request, mut record, timeout } = plan;
    if matches!(origin, Origin::Snapshot { .. }) {
        // The engine goes on with what the snapshot's sandbox had.
        record.environment = request.environment.clone();
    }
    let sandbox = blocking(move || make(&maker, &origin, request)).await?;
    let id = sandbox.id().to_string();
    state.records().insert(&id, record);
    state.set_end(&sandbox, timeout)?;
    let record = state.records().of(&sandbox);
    Ok((id.clone(), Created::of(state, &id, &record)))
}

/// A request that has been checked.
struct Plan {
    origin: Origin,
    request: CreateRequest,
    record: Record,
    timeout: Duration,
}

fn plan(state: &E2bState, owner: String, asked: Create, default_s: i64) -> Result<Plan, Failure> {
    refuse_unsupported(&asked)?;
    let timeout = timeout(asked.timeout.unwrap_or(default_s))?;
    let metadata = asked.metadata.unwrap_or_default();
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(Failure::invalid(format!("metadata takes {bytes} bytes, {METADATA_BYTES_MAX} is the most")));
    }
    let rules = asked.network.clone().unwrap_or_default();
    let network = rules.request(asked.allow_internet_access)?;
    let origin = templates::resolve(state, &asked.template_id)?;
    let record = Record {
        owner,
        template: origin.shown(),
        metadata: metadata.clone(),
        environment: BTreeMap::new(),
        started_ms: now_ms(),
        ends_ms: None,
        auto_pause: asked.auto_pause.unwrap_or(false),
        auto_resume: asked.auto_resume.unwrap_or_default().enabled,
        secure: asked.secure.unwrap_or(false),
        public_traffic: rules.allow_public_traffic.unwrap_or(true),
        mask_request_host: rules.mask_request_host.clone(),
        internet_access: asked.allow_internet_access,
        network: asked.network.as_ref().and_then(|rules| serde_json::to_value(rules).ok()),
    };
    let request = CreateRequest {
        environment: asked.env_vars.unwrap_or_default(),
        limits: origin.limits(),
        // The engine's labels are stricter than metadata; what does not fit is in the record alone.
        labels: metadata.into_iter().filter(|(key, _)| !key.is_empty() && !key.contains(['=', '\0'])).collect(),
        network,
        ..CreateRequest::plain(origin.template().clone())
    };
    Ok(Plan { origin, request, record, timeout })
}

fn refuse_unsupported(asked: &Create) -> Result<(), Failure> {
    if asked.auto_pause_memory == Some(false) && !asked.auto_pause.unwrap_or(false) {
        return Err(Failure::invalid("autoPauseMemory needs autoPause"));
    }
    if asked.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
        return Err(Failure::invalid("volumeMounts is not supported by this server"));
    }
    if asked.iam.as_ref().is_some_and(|iam| !iam.is_null()) {
        return Err(Failure::invalid("iam is not supported by this server"));
    }
    Ok(())
}

/// A life in seconds, checked.
pub(super) fn timeout(seconds: i64) -> Result<Duration, Failure> {
    if seconds > TIMEOUT_MAX_S {
        return Err(Failure::invalid(format!("Timeout cannot be greater than {} hours", TIMEOUT_MAX_S / 3600)));
    }
    Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn make(state: &E2bState, origin: &Origin, request: CreateRequest) -> Result<Arc<Sandbox>, Failure> {
    let checkpoint = match origin {
        Origin::Template { .. } => return Ok(state.engine().create(with_variables(request))?),
        Origin::Snapshot { checkpoint, .. } => checkpoint,
    };
    let sandbox = state.engine().fork(checkpoint)?;
    if let Err(error) = sandbox.set_network(request.network) {
        // It may have ended by itself meanwhile.
        drop(sandbox.kill());
        return Err(error.into());
    }
    Ok(sandbox)
}

/// Adds the variables that programs inside look for. The id is known only afterwards, so that
/// envd sets it with each process.
fn with_variables(mut request: CreateRequest) -> CreateRequest {
    request.environment.entry("E2B_SANDBOX".to_owned()).or_insert_with(|| "true".to_owned());
    request
}
