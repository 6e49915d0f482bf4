//! `brood exec` and `brood run`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use brood_api::session::OutputStream;
use brood_api::types::CreateSandboxes;
use brood_api::{ApiError, Client, Session, SessionEvent};
use brood_sandbox::model::{ExitReport, ProcessRequest, TerminalSize};
use serde::Serialize;

use super::Context;
use crate::arguments::{ExecArguments, ProcessOptions, RunArguments};
use crate::failure::{CODE_ENGINE, Outcome};
use crate::output;
use crate::streams::{self, End, Joined};
use crate::terminal;

/// Output of one stream that `--json` keeps; what goes beyond is counted and dropped.
const JSON_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// A terminal whose size nobody knows.
const TERMINAL_SIZE_DEFAULT: TerminalSize = TerminalSize { columns: 80, rows: 24 };

pub async fn exec(context: &Context, arguments: ExecArguments) -> Outcome {
    let mut request = request(arguments.options, arguments.command, arguments.timeout);
    request.environment.extend(arguments.env);
    request.tag = arguments.tag;
    let client = context.client().await?;
    if arguments.detach {
        request.background = true;
        let process = client.spawn(&arguments.id, &request).await?;
        if context.global.json {
            output::json(&process)?;
        } else {
            output::line(process.pid)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    call(context, &client, &arguments.id, &request).await
}

pub async fn run(context: &Context, arguments: RunArguments) -> Outcome {
    let create = super::create::request(&arguments.template, arguments.sandbox)?;
    let request = request(arguments.process, arguments.command, arguments.timeout);
    let client = context.client().await?;
    let mut sandboxes = client.create(&CreateSandboxes { request: create, count: 1 }).await?;
    let Some(sandbox) = sandboxes.pop() else { bail!("the daemon made no sandbox") };
    let outcome = call(context, &client, sandbox.id.as_str(), &request).await;
    match client.kill(sandbox.id.as_str()).await {
        Ok(_) => {}
        // Somebody else killed it first, or its time was up.
        Err(ApiError::Remote(body)) if body.code == brood_api::error::ErrorCode::NotFound => {}
        Err(error) => eprintln!("brood: sandbox {} is left behind: {error}", sandbox.id),
    }
    outcome
}

fn request(options: ProcessOptions, command: Vec<String>, timeout: Option<Duration>) -> ProcessRequest {
    let terminal = options.tty.then(|| terminal::size().unwrap_or(TERMINAL_SIZE_DEFAULT));
    let mut request = ProcessRequest {
        arguments: command,
        environment: std::collections::BTreeMap::new(),
        user: options.user,
        working_directory: options.cwd,
        terminal,
        stdin: options.interactive,
        timeout,
        background: false,
        tag: None,
    };
    if terminal.is_some()
        && let Ok(kind) = std::env::var("TERM")
    {
        request.environment.insert("TERM".to_owned(), kind);
    }
    request
}

async fn call(context: &Context, client: &Client, id: &str, request: &ProcessRequest) -> Outcome {
    let mut session = client.open_session(id, request).await?;
    if context.global.json {
        return collect(&mut session).await;
    }
    let joined = Joined { stdin: request.stdin, terminal: request.terminal.is_some() };
    match streams::join(&mut session, joined).await? {
        End::Exit(report) => {
            streams::explain(&report, request.timeout);
            Ok(ExitCode::from(report.shell_code()))
        }
        End::Left(code) => Ok(ExitCode::from(code)),
    }
}

/// A whole tool call as one object.
#[derive(Debug, Default, Serialize)]
struct Collected {
    pid: u32,
    stdout: String,
    stderr: String,
    lost_bytes: u64,
    exit_code: u8,
    exit: Option<ExitReport>,
}

async fn collect(session: &mut Session) -> Outcome {
    let mut collected = Collected::default();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = session.next().await? {
        match event {
            SessionEvent::Started { pid } => collected.pid = pid,
            SessionEvent::Output { stream, bytes } => {
                let kept = if stream == OutputStream::Stderr { &mut stderr } else { &mut stdout };
                let fits = bytes.len().min(JSON_OUTPUT_BYTES_MAX - kept.len());
                kept.extend_from_slice(&bytes[..fits]);
                collected.lost_bytes += (bytes.len() - fits) as u64;
            }
            SessionEvent::Lost { bytes } => collected.lost_bytes += bytes,
            SessionEvent::Exit(report) => {
                collected.exit_code = report.shell_code();
                collected.exit = Some(report);
                break;
            }
        }
    }
    collected.stdout = String::from_utf8_lossy(&stdout).into_owned();
    collected.stderr = String::from_utf8_lossy(&stderr).into_owned();
    output::json(&collected)?;
    Ok(ExitCode::from(if collected.exit.is_some() { collected.exit_code } else { CODE_ENGINE }))
}
