//! Warm templates: the start command is run once, and every sandbox goes on from where it was when
//! it was ready.
//!
//! The frozen processes are in the daemon's memory. After a restart of the daemon the command is
//! run again, before the next sandbox of the template is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::build::{BUILD_PIDS, BuildProgress, FAILURE_OUTPUT_BYTES, end_of, host_memory_bytes};
use crate::checkpoint::FrozenState;
use crate::engine::Engine;
use crate::error::{EngineError, ErrorKind, Result};
use crate::model::{CreateRequest, ExitReason, ProcessRequest, ResourceLimits};
use crate::output::{OutputEvent, SubscribeFrom};
use crate::process::{Process, lock};
use crate::sandbox::Sandbox;
use crate::template::Template;

/// The tag of the start command's process, by which `brood attach` finds it in every sandbox.
pub const START_TAG: &str = "start";
/// Time for a start command to get ready: imports and servers take seconds, on a loaded host a
/// minute.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time between two questions whether it is ready: short beside what starting takes, long beside
/// what asking takes.
const READY_INTERVAL: Duration = Duration::from_millis(50);

impl Engine {
    /// What sandboxes of the template go on from; none for a cold one. Runs the start command if
    /// nobody has yet; others wait meanwhile.
    ///
    /// # Errors
    /// `Invalid` when the command ends or does not get ready, with the end of its output;
    /// `Unsupported` when its processes cannot be captured.
    pub(crate) fn warm_state(
        &self,
        template: &Arc<Template>,
        progress: &dyn BuildProgress,
    ) -> Result<Option<Arc<FrozenState>>> {
        let Some(command) = &template.info.start_command else { return Ok(None) };
        if let Some(state) = template.warm.get() {
            return Ok(Some(Arc::clone(state)));
        }
        let _alone = lock(&template.warming);
        if let Some(state) = template.warm.get() {
            return Ok(Some(Arc::clone(state)));
        }
        let state = self.warm_up(template, command, progress)?;
        Ok(Some(Arc::clone(template.warm.get_or_init(|| state))))
    }

    fn warm_up(
        &self,
        template: &Arc<Template>,
        command: &str,
        progress: &dyn BuildProgress,
    ) -> Result<Arc<FrozenState>> {
        let request = CreateRequest {
            limits: ResourceLimits {
                memory_bytes: host_memory_bytes()?,
                pids: BUILD_PIDS,
                ..ResourceLimits::default()
            },
            labels: BTreeMap::from([("brood.start".to_owned(), template.info.name.to_string())]),
            ..CreateRequest::plain(template.info.name.clone())
        };
        let sandbox = self.create_cold(request, Arc::clone(template))?;
        let frozen = start(&sandbox, command, template.info.ready_command.as_deref(), progress)
            .and_then(|()| sandbox.freeze_aside());
        // It may have ended by itself.
        let _unused = sandbox.kill();
        frozen
    }
}

/// Runs the start command until the ready command succeeds.
fn start(sandbox: &Arc<Sandbox>, command: &str, ready: Option<&str>, progress: &dyn BuildProgress) -> Result<()> {
    let request =
        ProcessRequest { background: true, stdin: true, tag: Some(START_TAG.to_owned()), ..shell_request(command) };
    let process = sandbox.spawn(request)?;
    let began = Instant::now();
    loop {
        let exit = process.wait_until(Instant::now() + READY_INTERVAL);
        if let Some(report) = exit.filter(|report| report.reason != ExitReason::Exited(0)) {
            let message = format!(
                "start command `{command}` ended with {} before it was ready; the end of its output:\n{}",
                end_of(report.reason),
                tail(&process)
            );
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
        if exit.is_some() {
            // It has left its work to others; there is nothing to wait for but time.
            std::thread::park_timeout(READY_INTERVAL);
        }
        let Some(ready) = ready else { break };
        let left = READY_TIMEOUT.saturating_sub(began.elapsed());
        let asked = sandbox.spawn(ProcessRequest { timeout: Some(left), ..shell_request(ready) })?;
        if asked.wait().reason == ExitReason::Exited(0) {
            break;
        }
        if began.elapsed() >= READY_TIMEOUT {
            let message = format!(
                "start command `{command}` was not ready within {} s (`{ready}` fails); the end of its output:\n{}",
                READY_TIMEOUT.as_secs(),
                tail(&process)
            );
            return Err(EngineError::new(ErrorKind::Invalid, message));
        }
    }
    progress.output(&tail(&process));
    Ok(())
}

fn shell_request(command: &str) -> ProcessRequest {
    ProcessRequest {
        arguments: vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()],
        environment: BTreeMap::new(),
        user: None,
        working_directory: None,
        terminal: None,
        stdin: false,
        timeout: None,
        background: false,
        tag: None,
    }
}

/// The end of what a process has printed so far.
fn tail(process: &Process) -> String {
    let mut output = process.subscribe(SubscribeFrom::Start);
    let mut text = Vec::new();
    while let Some(event) = output.next_if_there() {
        if let OutputEvent::Data { bytes, .. } = event {
            text.extend_from_slice(&bytes);
            let excess = text.len().saturating_sub(FAILURE_OUTPUT_BYTES);
            text.drain(..excess);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
