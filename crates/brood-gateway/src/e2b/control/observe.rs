//! What a sandbox uses and what its background processes print.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use brood_sandbox::model::LogRecord;
use brood_sandbox::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Query;
use super::lifecycle::find;
use super::views::{cpu_count, disk_bytes};
use crate::e2b::E2bState;
use crate::e2b::failure::{Failure, blocking};
use crate::e2b::time::{now_ms, rfc3339};

/// Samples kept of a sandbox: a quarter of an hour at one a second.
const SAMPLES_KEPT: usize = 900;
/// Least time between two samples.
const SAMPLE_INTERVAL_MS: u64 = 1000;
/// Log lines in an answer when the client does not say, and at most.
const LOG_LINES: usize = 1000;

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::e2b) struct Sample {
    timestamp: String,
    timestamp_unix: u64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
    #[serde(skip)]
    time_ms: u64,
    #[serde(skip)]
    cpu_us: u64,
}

impl Sample {
    /// In the form that envd has for it.
    pub(in crate::e2b) fn as_envd(&self) -> Value {
        json!({
            "ts": self.timestamp_unix,
            "cpu_count": self.cpu_count,
            "cpu_used_pct": self.cpu_used_pct,
            "mem_total": self.mem_total,
            "mem_used": self.mem_used,
            "mem_cache": self.mem_cache,
            "mem_total_mib": self.mem_total >> 20,
            "mem_used_mib": self.mem_used >> 20,
            "disk_used": self.disk_used,
            "disk_total": self.disk_total,
        })
    }
}

/// The samples of all sandboxes. One is taken whenever somebody asks.
#[derive(Debug, Default)]
pub(in crate::e2b) struct Samples {
    taken: Mutex<HashMap<String, VecDeque<Sample>>>,
}

impl Samples {
    /// Forgets all but those for which `keep` says so.
    pub(in crate::e2b) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| keep(id));
    }

    fn add(&self, id: &str, sample: Sample) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_sandbox = taken.entry(id.to_owned()).or_default();
        of_sandbox.push_back(sample);
        if of_sandbox.len() > SAMPLES_KEPT {
            of_sandbox.pop_front();
        }
    }

    fn last(&self, id: &str) -> Option<Sample> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).get(id)?.back().cloned()
    }

    fn between(&self, id: &str, start_s: u64, end_s: u64) -> Vec<Sample> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = taken.get(id).into_iter().flatten();
        all.filter(|sample| (start_s..=end_s).contains(&sample.timestamp_unix)).cloned().collect()
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Span {
    start: Option<u64>,
    end: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Many {
    #[serde(default)]
    sandbox_ids: String,
}

/// What a sandbox uses now; of the processor, what it used since the last time somebody asked.
pub(in crate::e2b) fn sample(state: &E2bState, sandbox: &Arc<Sandbox>) -> Result<Sample, Failure> {
    let id = sandbox.id().as_str();
    let last = state.samples().last(id);
    let now = now_ms();
    if let Some(last) = &last
        && now.saturating_sub(last.time_ms) < SAMPLE_INTERVAL_MS
    {
        return Ok(last.clone());
    }
    let stats = sandbox.stats()?;
    let limits = sandbox.info().limits;
    let (since_ms, since_cpu_us) = match &last {
        Some(last) => (last.time_ms, last.cpu_us),
        None => (state.records().of(sandbox).started_ms, 0),
    };
    let elapsed_us = now.saturating_sub(since_ms).max(1) * 1000;
    let used_us = stats.cpu_us.saturating_sub(since_cpu_us);
    let sample = Sample {
        timestamp: rfc3339(now),
        timestamp_unix: now / 1000,
        cpu_count: cpu_count(&limits),
        // One processor fully used is 100. Both counts are far below 2^52.
        cpu_used_pct: (used_us as f64 / elapsed_us as f64 * 10_000.0).round() / 100.0,
        mem_used: stats.memory_bytes,
        mem_total: stats.memory_limit_bytes,
        mem_cache: 0,
        disk_used: stats.disk_bytes,
        disk_total: limits.disk_bytes.unwrap_or_else(|| disk_bytes(state)),
        time_ms: now,
        cpu_us: stats.cpu_us,
    };
    state.samples().add(id, sample.clone());
    Ok(sample)
}

/// `GET /sandboxes/{id}/metrics`.
pub(super) async fn metrics(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Query(span): Query<Span>,
) -> Result<Json<Vec<Sample>>, Failure> {
    let sandbox = find(&state, &id)?;
    let sampler = state.clone();
    let sampled = Arc::clone(&sandbox);
    blocking(move || sample(&sampler, &sampled)).await?;
    let (start, end) = (span.start.unwrap_or(0), span.end.unwrap_or(u64::MAX));
    Ok(Json(state.samples().between(sandbox.id().as_str(), start, end)))
}

/// `GET /sandboxes/metrics`: the newest of several.
pub(super) async fn metrics_of_many(
    State(state): State<E2bState>,
    Query(many): Query<Many>,
) -> Result<Json<Value>, Failure> {
    let sampler = state.clone();
    let samples = blocking(move || {
        let ids = many.sandbox_ids.split(',').map(str::trim).filter(|id| !id.is_empty());
        let found = ids.filter_map(|id| find(&sampler, id).ok());
        let samples = found.map(|sandbox| Ok((sandbox.id().to_string(), sample(&sampler, &sandbox)?)));
        samples.collect::<Result<HashMap<String, Sample>, Failure>>()
    })
    .await?;
    Ok(Json(json!({ "sandboxes": samples })))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogFilters {
    /// Only lines from this time on, or in the other direction up to it, in milliseconds since 1970.
    start: Option<u64>,
    cursor: Option<u64>,
    limit: Option<usize>,
    direction: Option<String>,
}

/// `GET /sandboxes/{id}/logs`.
pub(super) async fn logs_v1(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Query(filters): Query<LogFilters>,
) -> Result<Json<Value>, Failure> {
    let records = records(&state, &id, &filters)?;
    let lines: Vec<Value> =
        records.iter().map(|record| json!({ "timestamp": rfc3339(record.time_ms), "line": record.text })).collect();
    let entries: Vec<Value> = records.iter().map(entry).collect();
    Ok(Json(json!({ "logs": lines, "logEntries": entries })))
}

/// `GET /v2/sandboxes/{id}/logs`.
pub(super) async fn logs_v2(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Query(filters): Query<LogFilters>,
) -> Result<Json<Value>, Failure> {
    let entries: Vec<Value> = records(&state, &id, &filters)?.iter().map(entry).collect();
    Ok(Json(json!({ "logs": entries })))
}

fn records(state: &E2bState, id: &str, filters: &LogFilters) -> Result<Vec<LogRecord>, Failure> {
    let sandbox = find(state, id)?;
    let backward = match filters.direction.as_deref() {
        None | Some("forward" | "") => false,
        Some("backward") => true,
        Some(_) => return Err(Failure::invalid("direction must be forward or backward")),
    };
    let limit = filters.limit.unwrap_or(LOG_LINES).min(LOG_LINES);
    let from = filters.cursor.or(filters.start);
    let (all, _) = sandbox.logs().since(0);
    if backward {
        let until = from.unwrap_or(u64::MAX);
        return Ok(all.into_iter().rev().filter(|record| record.time_ms <= until).take(limit).collect());
    }
    let from = from.unwrap_or(0);
    Ok(all.into_iter().filter(|record| record.time_ms >= from).take(limit).collect())
}

fn entry(record: &LogRecord) -> Value {
    let level = if record.stream == "stderr" { "error" } else { "info" };
    let mut fields = HashMap::from([("stream", record.stream.clone())]);
    if let Some(pid) = record.pid {
        fields.insert("pid", pid.to_string());
    }
    json!({ "timestamp": rfc3339(record.time_ms), "message": record.text, "level": level, "fields": fields })
}
