//! Finding the daemon, and starting it when none runs.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use brood_api::{ApiError, Client};
use rustix::fs::FlockOperation;

use crate::settings::Settings;

/// What a daemon that was started on demand writes to its standard output once it serves.
pub const READY_LINE: &str = "ready";
/// How much of the daemon's log is shown when it does not start.
const LOG_TAIL_BYTES: u64 = 2048;

/// A client whose daemon answers.
///
/// # Errors
/// When no daemon runs and none may or can be started.
pub async fn connect(settings: &Settings, no_spawn: bool) -> anyhow::Result<Client> {
    let client = Client::new(settings.socket());
    match client.open().await {
        Ok(()) => return Ok(client),
        Err(ApiError::Unreachable { source, .. })
            if matches!(source.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) => {}
        Err(error @ ApiError::Unreachable { .. }) => {
            return Err(error).context("run this as root, or as a member of the daemon's socket_group");
        }
        Err(error) => return Err(error.into()),
    }
    let socket = settings.socket();
    if no_spawn {
        bail!("no daemon runs on {} and --no-spawn forbids starting one; `brood serve` does", socket.display());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("no daemon runs on {} and only root can start one; try `sudo brood serve`", socket.display());
    }
    start(settings, &client).await?;
    client.open().await.context("the daemon started but does not answer")?;
    Ok(client)
}

/// Where a daemon that was started on demand writes its log.
pub fn log_path(settings: &Settings) -> PathBuf {
    settings.state_directory.value.join("daemon.log")
}

async fn start(settings: &Settings, client: &Client) -> anyhow::Result<()> {
    let run = &settings.run_directory.value;
    create_directories(&[run, &settings.state_directory.value])?;
    // Many commands may find no daemon at once: one of them starts it, the others wait here and
    // then find it.
    let lock_path = run.join("spawn.lock");
    let lock = File::create(&lock_path).with_context(|| format!("cannot create {}", lock_path.display()))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).context("cannot lock the start of the daemon")?;
    if client.open().await.is_ok() {
        return Ok(());
    }
    let log_path = log_path(settings);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .with_context(|| format!("cannot write the daemon's log {}", log_path.display()))?;
    // The daemon outlives whoever gave us a descriptor and waits for its end, such as a pipe of a shell.
    brood_kernel::descriptors::keep_from_programs(3).context("cannot keep our descriptors from the daemon")?;
    let log_start = log.metadata().map_or(0, |metadata| metadata.len());
    let mut daemon = Command::new(std::env::current_exe().context("cannot find this program's own file")?)
        .args(["serve", "--on-demand"])
        .args(settings.as_flags())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the daemon")?;
    let mut line = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot hear from the daemon")?;
    }
    if line.trim_end() != READY_LINE {
        let status = daemon.wait().context("cannot wait for the daemon")?;
        let log = tail(&log_path, log_start).unwrap_or_default();
        bail!("the daemon did not start ({status}); its log {} says:\n{}", log_path.display(), log.trim_end());
    }
    Ok(())
}

/// Creates the daemon's own directories.
///
/// # Errors
/// Naming the one that cannot be created.
pub fn create_directories(directories: &[&Path]) -> anyhow::Result<()> {
    for directory in directories {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(())
}

/// What the log holds from `start` on, or the last of it when that is long.
fn tail(path: &Path, start: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(LOG_TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
