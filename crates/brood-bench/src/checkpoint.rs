//! `brood bench checkpoint`: freezing, putting back and forking a living session with its files.

mod forks;
mod rounds;
mod session;
mod template;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use brood_api::Client;
use brood_api::types::{CreateSandboxes, TakeCheckpoint};
use brood_sandbox::checkpoint::CheckpointInfo;
use serde::Serialize;
use serde_json::Value;

use crate::environment::Environment;
use crate::figures::{Distribution, Samples};
use crate::sandbox::create_request;
use crate::selection::Selection;

/// What is measured, by key.
pub const KEYS: [&str; 9] = [
    "standstill_ms",
    "rollback_ms",
    "fork_running_ms",
    "fork_answer_ms",
    "fork_100_ms",
    "fork_unshared_kb",
    "tracking_slowdown",
    "standstill_by_pages",
    "standstill_by_size",
];

/// How it is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is measured, and how often.
    pub selection: Selection,
    /// The daemon's state directory.
    pub state_directory: PathBuf,
}

/// All figures. Those that were not asked for are absent.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Time that the tasks stand still for a checkpoint, after a call that changed 1,000 pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standstill_ms: Option<Distribution>,
    /// A rollback in place, from the request to the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_ms: Option<Distribution>,
    /// A fork of the warm template, from the request to the answer: it runs then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork_running_ms: Option<Distribution>,
    /// From the same request to the first answer of its Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork_answer_ms: Option<Distribution>,
    /// One request for 100 forks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork_100_ms: Option<Distribution>,
    /// Memory charged to a fork that has not worked yet, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork_unshared_kb: Option<Distribution>,
    /// Time of a computation after a checkpoint, by that before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracking_slowdown: Option<f64>,
    /// Median standstill in ms by changed pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standstill_by_pages: Option<BTreeMap<String, f64>>,
    /// Median standstill in ms by MiB of resident memory, 100 pages changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standstill_by_size: Option<BTreeMap<String, f64>>,
    /// What the figures stand beside, by name.
    pub beside: BTreeMap<String, Value>,
    /// What it was measured on.
    pub environment: Option<Environment>,
}

/// A run of the benchmark.
struct Run<'a> {
    client: &'a Client,
    options: &'a Options,
    say: &'a (dyn Fn(&str) + Sync),
    report: Report,
}

/// Measures everything that was asked for. `say` is told what goes on.
///
/// # Errors
/// When something that is measured fails; what was made for it is removed.
pub async fn run(client: &Client, options: &Options, say: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Report> {
    if let Some(directory) = &options.selection.data {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    template::prepare(client, say).await?;
    let environment = Environment::here(&options.state_directory);
    let mut run = Run { client, options, say, report: Report::default() };
    let measured = run.measure().await;
    run.remove_all().await;
    measured?;
    run.report.environment = Some(environment);
    if let Some(directory) = &options.selection.data {
        let path = directory.join("checkpoint.json");
        std::fs::write(&path, serde_json::to_vec_pretty(&run.report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(run.report)
}

impl Run<'_> {
    async fn measure(&mut self) -> anyhow::Result<()> {
        if self.options.selection.wants("standstill_ms") || self.options.selection.wants("rollback_ms") {
            self.rounds().await?;
        }
        if self.options.selection.wants("standstill_by_pages") {
            self.by_pages().await?;
        }
        if self.options.selection.wants("standstill_by_size") {
            self.by_size().await?;
        }
        if self.options.selection.wants("tracking_slowdown") {
            self.tracking().await?;
        }
        if self.options.selection.wants("fork_running_ms") || self.options.selection.wants("fork_answer_ms") {
            self.one_fork().await?;
        }
        if self.options.selection.wants("fork_100_ms") || self.options.selection.wants("fork_unshared_kb") {
            self.many_forks().await?;
        }
        Ok(())
    }

    /// Keeps samples of something that is told beside the figures.
    fn beside(&mut self, name: &str, samples: &Samples) -> anyhow::Result<()> {
        let distribution = self.options.selection.keep(name, samples)?;
        self.report.beside.insert(name.to_owned(), serde_json::to_value(distribution)?);
        Ok(())
    }

    async fn create(&self, template: &str, count: u32) -> anyhow::Result<Vec<String>> {
        let request = CreateSandboxes { request: create_request(template)?, count };
        Ok(self.client.create(&request).await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
    }

    async fn create_one(&self, template: &str) -> anyhow::Result<String> {
        self.create(template, 1).await?.pop().context("no sandbox was made")
    }

    async fn checkpoint(&self, id: &str) -> anyhow::Result<CheckpointInfo> {
        Ok(self.client.take_checkpoint(id, &TakeCheckpoint { name: None, with_processes: true }).await?)
    }

    async fn kill(&self, ids: &[String]) -> anyhow::Result<()> {
        for id in ids {
            self.client.kill(id).await?;
        }
        Ok(())
    }

    /// Sandboxes and checkpoints, and whatever a failed measurement left.
    async fn remove_all(&self) {
        for sandbox in self.client.sandboxes().await.unwrap_or_default() {
            if self.client.kill(sandbox.id.as_str()).await.is_err() {
                (self.say)(&format!("sandbox {} could not be killed", sandbox.id));
            }
        }
        for checkpoint in self.client.checkpoints().await.unwrap_or_default() {
            if self.client.remove_checkpoint(checkpoint.id.as_str(), false).await.is_err() {
                (self.say)(&format!("checkpoint {} could not be removed", checkpoint.id));
            }
        }
    }
}
