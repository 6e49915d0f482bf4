//! The process service: tool calls started, followed, signalled.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::model::{ExitReason, ProcessRequest, SandboxState, TerminalSize};
use brood_sandbox::output::{OutputEvent, Stream as Output, SubscribeFrom, Subscription};
use brood_sandbox::process::Process;
use brood_sandbox::sandbox::Sandbox;
use bytes::Bytes;
use futures::Stream;
use tokio::sync::watch;

use super::messages::{
    DataEvent, Empty, EndEvent, ListResponse, ProcessConfig, ProcessEvent, ProcessInfo, ProcessResponse, Pty,
    SelectRequest, Selector, SendSignalRequest, StartEvent, StartRequest, UpdateRequest,
};
use super::user::{Acting, named};
use super::{Envd, input};
use crate::e2b::connect::{self, Code, Piece, RpcError};
use crate::e2b::time::now_ms;

/// Silence after which a stream says that it lives, unless the client asks for another interval.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// How long an ended process can still be asked for.
const ENDED_FOR_MS: u64 = 30_000;
/// Time that the kernel usually needs a hundredth of to end a process.
const KILL_WAIT: Duration = Duration::from_secs(1);
const SIGNAL_TERMINATE: i32 = 15;
const SIGNAL_KILL: i32 = 9;

pub(super) async fn call(envd: Envd, method: &str, request: Request) -> Response {
    match method {
        "Start" => connect::server_stream(request, |headers, message| start(envd, headers, message)).await,
        "Connect" => connect::server_stream(request, |headers, message| follow(envd, headers, message)).await,
        "List" => connect::unary(request, |_, _: Empty| async { Ok(list(&envd)) }).await,
        "Update" => connect::unary(request, |_, message| async move { update(&envd, &message) }).await,
        "SendSignal" => connect::unary(request, |_, message| send_signal(envd, message)).await,
        "SendInput" => connect::unary(request, |_, message| input::send(envd, message)).await,
        "CloseStdin" => connect::unary(request, |_, message| async move { input::close(&envd, &message) }).await,
        "StreamInput" => connect::client_stream(request, |incoming| input::stream(envd, incoming)).await,
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// What programs inside look for to know where they are.
pub(super) fn own_variables(envd: &Envd) -> [(String, String); 3] {
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [
        own("E2B_SANDBOX", "true"),
        own("E2B_SANDBOX_ID", envd.reached.id()),
        own("E2B_TEMPLATE_ID", &envd.reached.record.template),
    ]
}

/// The process that a call names, live or recently ended.
pub(super) fn find(envd: &Envd, selector: Option<&Selector>) -> Result<Arc<Process>, RpcError> {
    let found = match selector {
        Some(Selector { pid: Some(pid), .. }) => envd.sandbox().process(*pid)?,
        Some(Selector { tag: Some(tag), .. }) => envd.sandbox().process_by_tag(tag)?,
        _ => return Err(RpcError::new(Code::Unimplemented, "the call names no process")),
    };
    match found.info().exit {
        Some(exit) if now_ms().saturating_sub(exit.ended_ms) > ENDED_FOR_MS => Err(no_process()),
        _ => Ok(found),
    }
}

/// As [`find`], but it must be alive.
pub(super) fn find_live(envd: &Envd, selector: Option<&Selector>) -> Result<Arc<Process>, RpcError> {
    let process = find(envd, selector)?;
    if process.info().exit.is_some() { Err(no_process()) } else { Ok(process) }
}

fn no_process() -> RpcError {
    RpcError::new(Code::NotFound, "the process has ended")
}

pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let milliseconds = value.to_str().ok().filter(|text| text.len() <= 10).and_then(|text| text.parse::<u64>().ok());
    let milliseconds =
        milliseconds.ok_or_else(|| RpcError::invalid("Connect-Timeout-Ms is no number of 1 to 10 digits"))?;
    Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
}

pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    asked.filter(|seconds| *seconds > 0).map_or(KEEPALIVE, Duration::from_secs)
}

fn terminal(pty: &Pty) -> TerminalSize {
    let size = pty.size.clone().unwrap_or_default();
    let within = |count: u32, otherwise: u16| match u16::try_from(count) {
        Ok(0) => otherwise,
        Ok(count) => count,
        Err(_) => u16::MAX,
    };
    TerminalSize { columns: within(size.cols, 80), rows: within(size.rows, 24) }
}

async fn start(
    envd: Envd,
    headers: HeaderMap,
    message: StartRequest,
) -> Result<impl Stream<Item = Piece<ProcessResponse>>, RpcError> {
    let timeout = timeout(&headers)?;
    // Waits in place, as PID 1 answers faster than a trip to another thread and back.
    let (process, output) = tokio::task::block_in_place(|| {
        let request = request(&envd, &headers, message, timeout)?;
        Ok::<_, RpcError>(envd.sandbox().spawn_with_output(request)?)
    })
    .map_err(|error| match error.code {
        Code::Unauthenticated | Code::ResourceExhausted => error,
        _ => RpcError::invalid(error.message),
    })?;
    Ok(events(&envd, &process, output, keepalive(&headers)))
}

fn request(
    envd: &Envd,
    headers: &HeaderMap,
    message: StartRequest,
    timeout: Option<Duration>,
) -> Result<ProcessRequest, RpcError> {
    let config = message.process.unwrap_or_default();
    let acting = Acting::of(envd, named(headers).as_deref())?;
    let directory = acting.path(config.cwd.as_deref().unwrap_or(""))?;
    let mut environment: BTreeMap<String, String> = own_variables(envd).into();
    environment.extend(envd.reached.record.environment.clone());
    environment.insert("LOGNAME".to_owned(), acting.identity.name.clone());
    environment.extend(config.envs);
    let mut arguments = vec![config.cmd];
    arguments.extend(config.args);
    Ok(ProcessRequest {
        arguments,
        environment,
        user: Some(acting.identity.name),
        working_directory: Some(directory.to_string_lossy().into_owned()),
        stdin: message.pty.is_none() && message.stdin.unwrap_or(true),
        terminal: message.pty.as_ref().map(terminal),
        timeout,
        background: false,
        tag: message.tag,
    })
}

async fn follow(
    envd: Envd,
    headers: HeaderMap,
    message: SelectRequest,
) -> Result<impl Stream<Item = Piece<ProcessResponse>>, RpcError> {
    let process = find(&envd, message.process.as_ref())?;
    let output = process.subscribe(SubscribeFrom::Now);
    Ok(events(&envd, &process, output, keepalive(&headers)))
}

struct Feed {
    output: Subscription,
    keepalive: Duration,
    ended: watch::Receiver<bool>,
    sandbox: Arc<Sandbox>,
    /// Sent before anything else is waited for, the first one last.
    ready: Vec<Piece<ProcessResponse>>,
    done: bool,
}

/// The stream of a process: its start, its output, its end.
fn events(
    envd: &Envd,
    process: &Process,
    output: Subscription,
    keepalive: Duration,
) -> impl Stream<Item = Piece<ProcessResponse>> + use<> {
    let start = ProcessEvent { start: Some(StartEvent { pid: process.pid() }), ..ProcessEvent::default() };
    let (ended, sandbox) = (envd.state.ended(), Arc::clone(envd.sandbox()));
    let feed = Feed { output, keepalive, ended, sandbox, ready: vec![message(start)], done: false };
    futures::stream::unfold(feed, |mut feed| async move {
        if feed.ready.is_empty() && !feed.done {
            feed.advance().await;
        }
        let piece = feed.ready.pop()?;
        Some((piece, feed))
    })
}

fn message(event: ProcessEvent) -> Piece<ProcessResponse> {
    Piece::Message(ProcessResponse { event: Some(event) })
}

impl Feed {
    /// Waits for what comes next.
    async fn advance(&mut self) {
        enum Next {
            Output(Option<OutputEvent>),
            Silence,
            Shutdown,
        }
        let output = &mut self.output;
        let next = tokio::select! {
            biased;
            event = poll_fn(|context| output.poll_next(context)) => Next::Output(event),
            () = tokio::time::sleep(self.keepalive) => Next::Silence,
            _ = self.ended.wait_for(|ended| *ended) => Next::Shutdown,
        };
        let event = match next {
            Next::Output(event) => event,
            Next::Silence => {
                self.ready.push(message(ProcessEvent { keepalive: Some(Empty {}), ..ProcessEvent::default() }));
                return;
            }
            Next::Shutdown => return self.end(Some(RpcError::new(Code::Unavailable, "the server is shutting down"))),
        };
        match event {
            Some(OutputEvent::Data { stream, bytes }) => {
                let data = data(stream, Bytes::from_owner(bytes));
                self.ready.push(message(ProcessEvent { data: Some(data), ..ProcessEvent::default() }));
            }
            // A reader that was there from the start loses nothing; one that came later asked for it.
            Some(OutputEvent::Lost { .. }) => {}
            Some(OutputEvent::Ended(report)) => match interrupted(report.reason) {
                Some(error) => self.end(Some(error)),
                None => {
                    self.end(None);
                    self.ready.push(message(ProcessEvent { end: Some(end(report.reason)), ..ProcessEvent::default() }));
                }
            },
            None => {
                let gone = self.sandbox.info().state != SandboxState::Running;
                self.end(gone.then(|| RpcError::new(Code::Unavailable, "the sandbox was killed")));
            }
        }
    }

    fn end(&mut self, error: Option<RpcError>) {
        self.ready.push(Piece::End(error));
        self.done = true;
    }
}

fn data(stream: Output, bytes: Bytes) -> DataEvent {
    let mut data = DataEvent::default();
    match stream {
        Output::Stdout => data.stdout = Some(bytes),
        Output::Stderr => data.stderr = Some(bytes),
        Output::Terminal => data.pty = Some(bytes),
    }
    data
}

/// Ends that are not the process's own.
fn interrupted(reason: ExitReason) -> Option<RpcError> {
    match reason {
        ExitReason::TimedOut => {
            Some(RpcError::new(Code::DeadlineExceeded, "the process ran out of time and was killed"))
        }
        ExitReason::SandboxKilled => Some(RpcError::new(Code::Unavailable, "the sandbox was killed")),
        ExitReason::RolledBack => Some(RpcError::new(Code::Aborted, "the sandbox was rolled back to a checkpoint")),
        ExitReason::Exited(_) | ExitReason::Signaled(_) | ExitReason::OutOfMemory => None,
    }
}

/// In the words of Go's process state, which clients show.
fn end(reason: ExitReason) -> EndEvent {
    let (exit_code, exited, status) = match reason {
        ExitReason::Exited(code) => (i32::from(code), true, format!("exit status {code}")),
        ExitReason::Signaled(signal) => (-1, false, format!("signal: {}", signal_name(signal))),
        ExitReason::OutOfMemory => (-1, false, "signal: killed (the sandbox ran out of memory)".to_owned()),
        ExitReason::TimedOut | ExitReason::SandboxKilled | ExitReason::RolledBack => (-1, false, "killed".to_owned()),
    };
    let error = (exit_code != 0).then(|| status.clone());
    EndEvent { exit_code, exited, status, error }
}

fn signal_name(signal: u8) -> String {
    match signal {
        1 => "hangup".to_owned(),
        2 => "interrupt".to_owned(),
        3 => "quit".to_owned(),
        6 => "aborted".to_owned(),
        8 => "floating point exception".to_owned(),
        9 => "killed".to_owned(),
        11 => "segmentation fault".to_owned(),
        13 => "broken pipe".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

fn list(envd: &Envd) -> ListResponse {
    let describe = |process: &Arc<Process>| {
        let info = process.info();
        let mut arguments = info.arguments.into_iter();
        let cmd = arguments.next().unwrap_or_default();
        let config = ProcessConfig { cmd, args: arguments.collect(), ..ProcessConfig::default() };
        ProcessInfo { config: Some(config), pid: info.pid, tag: info.tag }
    };
    let live = envd.sandbox().processes();
    ListResponse { processes: live.iter().filter(|process| process.info().exit.is_none()).map(describe).collect() }
}

fn update(envd: &Envd, message: &UpdateRequest) -> Result<Empty, RpcError> {
    let process = find_live(envd, message.process.as_ref())?;
    if let Some(pty) = &message.pty {
        process.resize(terminal(pty)).map_err(|error| RpcError::new(Code::Internal, error.chain()))?;
    }
    Ok(Empty {})
}

async fn send_signal(envd: Envd, message: SendSignalRequest) -> Result<Empty, RpcError> {
    let process = find_live(&envd, message.process.as_ref())?;
    match message.signal {
        SIGNAL_KILL => {
            // Everything that the call started, so that nothing of it goes on unseen.
            process.kill()?;
            // Who asks next is to find it ended; a task that the kernel cannot end at once is no reason to wait long.
            let exit = poll_fn(|context| process.poll_exit(context));
            drop(tokio::time::timeout(KILL_WAIT, exit).await);
        }
        SIGNAL_TERMINATE => process.signal(SIGNAL_TERMINATE as u8)?,
        other => return Err(RpcError::new(Code::Unimplemented, format!("signal {other} cannot be sent"))),
    }
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_go_does() {
        assert_eq!(end(ExitReason::Exited(0)).error, None);
        let three = end(ExitReason::Exited(3));
        assert_eq!((three.exit_code, three.exited, three.status.as_str()), (3, true, "exit status 3"));
        let killed = end(ExitReason::Signaled(9));
        assert_eq!((killed.exit_code, killed.exited, killed.error.as_deref()), (-1, false, Some("signal: killed")));
        let json = serde_json::to_value(end(ExitReason::Exited(0))).unwrap();
        assert_eq!(json, serde_json::json!({ "exited": true, "status": "exit status 0" }));
    }

    #[test]
    fn deadlines_are_read_strictly() {
        let headers =
            |value: &str| HeaderMap::from_iter([("connect-timeout-ms".parse().unwrap(), value.parse().unwrap())]);
        assert_eq!(timeout(&headers("1500")).unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(timeout(&HeaderMap::new()).unwrap(), None);
        for bad in ["-1", "1e3", "99999999999", ""] {
            assert_eq!(timeout(&headers(bad)).unwrap_err().code, Code::InvalidArgument, "{bad}");
        }
    }
}
