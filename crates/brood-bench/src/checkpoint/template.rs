//! The templates that are measured: Debian with numpy and a working tree of 200 MB, cold and warm.

use brood_api::Client;
use brood_sandbox::model::{BuildRequest, BuildStep};

use crate::sandbox::template::{Say, build, debian, request};

/// Files alone.
pub(super) const COLD: &str = "brood-bench-checkpoint-cold";
/// The same with the session and a shell running.
pub(super) const WARM: &str = "brood-bench-checkpoint";
/// How the session is started.
pub(super) const SESSION: &str = "python3 -u /srv/session.py";
/// 2,000 files of 100 KB in 40 directories; a tool call overwrites some.
const TREE: &str = "for d in $(seq 0 39); do mkdir -p /tree/$d; for n in $(seq 0 49); do \
    head -c 100000 /dev/urandom > /tree/$d/$n; done; done";

/// Builds both unless they are there.
pub(super) async fn prepare(client: &Client, say: Say<'_>) -> anyhow::Result<()> {
    let script = Script::write()?;
    let steps = vec![
        BuildStep::Run { command: TREE.to_owned() },
        BuildStep::Copy { source: script.path.clone(), destination: "/srv/session.py".to_owned() },
    ];
    build(client, say, request(COLD, debian("python3,python3-numpy"), steps)?).await?;
    let warm = BuildRequest {
        start_command: Some(format!("bash -c 'while :; do sleep 1000; done' & exec {SESSION}")),
        ready_command: Some("test -e /ready".to_owned()),
        ..request(WARM, format!("template:{COLD}"), Vec::new())?
    };
    build(client, say, warm).await
}

/// The session's program as a file, which goes when it is dropped.
struct Script {
    path: std::path::PathBuf,
}

impl Script {
    fn write() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("brood-bench-session-{}.py", std::process::id()));
        std::fs::write(&path, include_str!("session.py"))?;
        Ok(Self { path })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap_or(());
    }
}
