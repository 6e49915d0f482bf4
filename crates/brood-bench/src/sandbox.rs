//! `brood bench sandbox`: creating, running in and killing sandboxes.

mod idle;
mod latency;
mod ratio;
pub(crate) mod template;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use brood_api::Client;
use brood_api::types::CreateSandboxes;
use brood_sandbox::model::{CreateRequest, ProcessRequest};
use serde::Serialize;
use serde_json::Value;

use crate::environment::Environment;
use crate::figures::{Distribution, Samples};
use crate::host;
use crate::selection::Selection;

/// What is measured, by key.
pub const KEYS: [&str; 6] =
    ["create_true_kill_ms", "create_100_s", "exec_true_ms", "native_ratio", "files_ratio", "idle_kb"];

/// How it is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is measured, and how often.
    pub selection: Selection,
    /// A directory for the plain chroot, on the same file system as the daemon's state.
    pub scratch: PathBuf,
    /// The daemon's state directory.
    pub state_directory: PathBuf,
}

/// All figures. Those that were not asked for are absent.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Create a sandbox, run `true` in it, kill it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_true_kill_ms: Option<Distribution>,
    /// Create 100 sandboxes by one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_100_s: Option<Distribution>,
    /// Run `true` in a live sandbox, through the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_true_ms: Option<Distribution>,
    /// A test-suite inside, by the same in a plain chroot: ratio of the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_ratio: Option<f64>,
    /// Work on many files likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_ratio: Option<f64>,
    /// Memory of an idle sandbox, kernel objects included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_kb: Option<f64>,
    /// The host's own figures and what lies behind the ratios, by name.
    pub beside: std::collections::BTreeMap<String, Value>,
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
    let environment = Environment::here(&options.state_directory);
    let mut run = Run { client, options, say, report: Report::default() };
    template::prepare(client, say).await?;
    let measured = run.measure().await;
    run.kill_all().await;
    measured?;
    run.report.environment = Some(environment);
    if let Some(directory) = &options.selection.data {
        let path = directory.join("sandbox.json");
        std::fs::write(&path, serde_json::to_vec_pretty(&run.report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(run.report)
}

impl Run<'_> {
    async fn measure(&mut self) -> anyhow::Result<()> {
        if self.options.selection.wants("exec_true_ms") {
            self.exec_true().await?;
        }
        if self.options.selection.wants("create_true_kill_ms") {
            self.create_true_kill().await?;
        }
        if self.options.selection.wants("create_100_s") {
            self.create_100().await?;
        }
        if self.options.selection.wants("idle_kb") {
            self.idle().await?;
        }
        if self.options.selection.wants("native_ratio") || self.options.selection.wants("files_ratio") {
            self.ratios().await?;
        }
        Ok(())
    }

    /// Keeps samples of something that is told beside the figures.
    fn beside(&mut self, name: &str, samples: &Samples) -> anyhow::Result<()> {
        let distribution = self.options.selection.keep(name, samples)?;
        self.report.beside.insert(name.to_owned(), serde_json::to_value(distribution)?);
        Ok(())
    }

    async fn create(&self, count: u32) -> anyhow::Result<Vec<String>> {
        self.create_of(template::NAME, count).await
    }

    async fn create_of(&self, template: &str, count: u32) -> anyhow::Result<Vec<String>> {
        let request = CreateSandboxes { request: create_request(template)?, count };
        Ok(self.client.create(&request).await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
    }

    async fn kill(&self, ids: &[String]) -> anyhow::Result<()> {
        for id in ids {
            self.client.kill(id).await?;
        }
        Ok(())
    }

    /// Whatever a failed measurement left.
    async fn kill_all(&self) {
        for sandbox in self.client.sandboxes().await.unwrap_or_default() {
            if [template::NAME, template::PROJECT_NAME].contains(&sandbox.template.as_str())
                && self.client.kill(sandbox.id.as_str()).await.is_err()
            {
                (self.say)(&format!("sandbox {} could not be killed", sandbox.id));
            }
        }
    }
}

/// A sandbox as it is made when nothing but the template is said.
pub(crate) fn create_request(template: &str) -> anyhow::Result<CreateRequest> {
    Ok(serde_json::from_value(serde_json::json!({ "template": template }))?)
}

pub(crate) fn command(arguments: &[&str]) -> ProcessRequest {
    ProcessRequest {
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        environment: std::collections::BTreeMap::new(),
        user: None,
        working_directory: None,
        terminal: None,
        stdin: false,
        timeout: None,
        background: false,
        tag: None,
    }
}

/// A directory that is removed with everything in it.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is mounted below: mounts of the chroot are in namespaces that ended.
        std::fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

/// The host's own figures beside those of creating and running.
fn host_true(run: &mut Run<'_>) -> anyhow::Result<()> {
    let samples = host::fork_exec_true_ms(run.options.selection.times(500))?;
    run.beside("host_fork_exec_true_ms", &samples)
}
