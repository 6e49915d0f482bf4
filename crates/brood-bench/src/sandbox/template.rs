//! The template that is measured: Debian with Python, pytest, git and a compiler, and the source
//! distribution of a PyPI project.

use std::path::Path;

use anyhow::bail;
use brood_api::error::ErrorCode;
use brood_api::types::BuildMessage;
use brood_api::{ApiError, Client, ErrorBody};
use brood_sandbox::model::{BuildRequest, BuildStep};

use super::Run;

/// Who is told what goes on.
pub(crate) type Say<'a> = &'a (dyn Fn(&str) + Sync);

/// The template that sandboxes are made of.
pub(crate) const NAME: &str = "brood-bench-sandbox";
/// The same with the project, for the ratios.
pub(super) const PROJECT_NAME: &str = "brood-bench-project";
/// The project whose test-suite is run, pinned: a pure Python project of 6,000 lines.
const PROJECT: &str = "sqlparse==0.5.3";
/// Where it is unpacked.
pub(super) const PROJECT_DIRECTORY: &str = "/src/project";
/// Certificates of the host, which `pip` inside should trust as `pip` outside does.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Builds the first template unless it is there.
pub(super) async fn prepare(client: &Client, say: Say<'_>) -> anyhow::Result<()> {
    let packages = "python3,python3-pip,python3-pytest,git,gcc,libc6-dev,ca-certificates";
    build(client, say, request(NAME, debian(packages), Vec::new())?).await
}

/// Debian of the host's own release with these packages, as a source.
pub(crate) fn debian(packages: &str) -> String {
    let suite = std::fs::read_to_string("/etc/os-release")
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME=").map(str::to_owned))
        .unwrap_or_else(|| "bookworm".to_owned());
    format!("debian:{suite}+{packages}")
}

/// Builds the second one on top, which needs a way out to the package index.
pub(super) async fn prepare_project(run: &Run<'_>) -> anyhow::Result<()> {
    let mut steps = Vec::new();
    if Path::new(CERTIFICATES).exists() {
        steps.push(BuildStep::Copy { source: CERTIFICATES.into(), destination: CERTIFICATES.to_owned() });
    }
    steps.push(BuildStep::Run {
        command: format!(
            "mkdir -p /src && cd /src && pip download --no-deps --no-binary sqlparse {PROJECT} && \
             mkdir project && tar xf ./*.tar.gz --strip-components=1 -C project && rm ./*.tar.gz"
        ),
    });
    build(run.client, run.say, request(PROJECT_NAME, format!("template:{NAME}"), steps)?).await
}

/// Builds a template unless it is there.
pub(crate) async fn build(client: &Client, say: Say<'_>, request: BuildRequest) -> anyhow::Result<()> {
    match client.template(request.name.as_str()).await {
        Ok(_) => return Ok(()),
        Err(ApiError::Remote(ErrorBody { code: ErrorCode::NotFound, .. })) => {}
        Err(error) => return Err(error.into()),
    }
    say(&format!("building the template {} (once)", request.name));
    let mut messages = client.build_template(&request).await?;
    while let Some(message) = messages.next().await? {
        match message {
            BuildMessage::Step { index, total, text, .. } => say(&format!("[{index}/{total}] {text}")),
            BuildMessage::Done { .. } => return Ok(()),
            BuildMessage::Failed { error } => return Err(error.into()),
            BuildMessage::Output { .. } | BuildMessage::Transfer { .. } => {}
        }
    }
    bail!("the daemon broke the build off");
}

/// A template of Debian with our environment.
pub(crate) fn request(name: &str, source: String, steps: Vec<BuildStep>) -> anyhow::Result<BuildRequest> {
    Ok(BuildRequest {
        name: name.parse()?,
        source,
        steps,
        environment: [("PIP_CERT", CERTIFICATES), ("PYTHONDONTWRITEBYTECODE", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        working_directory: None,
        user: None,
        start_command: None,
        ready_command: None,
        no_cache: false,
    })
}
