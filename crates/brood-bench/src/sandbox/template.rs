//! The template that is measured: Debian with Python, pytest, git and a compiler, and the source
//! distribution of a PyPI project.

use std::path::Path;

use anyhow::bail;
use brood_api::error::ErrorCode;
use brood_api::types::BuildMessage;
use brood_api::{ApiError, ErrorBody};
use brood_sandbox::model::{BuildRequest, BuildStep};

use super::Run;

/// Its name.
pub(super) const NAME: &str = "brood-bench-sandbox";
/// The project whose test-suite is run, pinned: a pure Python project of 6,000 lines.
const PROJECT: &str = "sqlparse==0.5.3";
/// Where it is unpacked.
pub(super) const PROJECT_DIRECTORY: &str = "/src/project";
/// Certificates of the host, which `pip` inside should trust as `pip` outside does.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Builds the template unless it is there.
pub(super) async fn prepare(run: &Run<'_>) -> anyhow::Result<()> {
    match run.client.template(NAME).await {
        Ok(_) => return Ok(()),
        Err(ApiError::Remote(ErrorBody { code: ErrorCode::NotFound, .. })) => {}
        Err(error) => return Err(error.into()),
    }
    (run.say)("building the template (once)");
    let mut messages = run.client.build_template(&request()?).await?;
    while let Some(message) = messages.next().await? {
        match message {
            BuildMessage::Step { index, total, text, .. } => (run.say)(&format!("[{index}/{total}] {text}")),
            BuildMessage::Done { .. } => return Ok(()),
            BuildMessage::Failed { error } => return Err(error.into()),
            BuildMessage::Output { .. } | BuildMessage::Transfer { .. } => {}
        }
    }
    bail!("the daemon broke the build off");
}

fn request() -> anyhow::Result<BuildRequest> {
    let suite = std::fs::read_to_string("/etc/os-release")
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME=").map(str::to_owned))
        .unwrap_or_else(|| "bookworm".to_owned());
    let mut steps = Vec::new();
    if Path::new(CERTIFICATES).exists() {
        steps.push(BuildStep::Copy { source: CERTIFICATES.into(), destination: CERTIFICATES.to_owned() });
    }
    steps.push(BuildStep::Run {
        command: format!(
            "mkdir -p /src && cd /src && pip download --no-deps --no-binary :all: {PROJECT} && \
             mkdir project && tar xf ./*.tar.gz --strip-components=1 -C project && rm ./*.tar.gz"
        ),
    });
    Ok(BuildRequest {
        name: NAME.parse()?,
        source: format!("debian:{suite}+python3,python3-pip,python3-pytest,git,gcc,libc6-dev,ca-certificates"),
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
