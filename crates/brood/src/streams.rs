//! A tool call's streams and signals, joined with this program's own.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::Context as _;
use brood_api::session::OutputStream;
use brood_api::{ApiError, Session, SessionEvent, SessionWriter};
use brood_sandbox::model::{ExitReason, ExitReport};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::output;
use crate::terminal::{self, RawTerminal};

/// Bytes read from standard input at a time: a pipe's size.
const STDIN_BYTES: usize = 64 << 10;
/// What a shell shows for a program that SIGHUP ended.
const CODE_HANGUP: u8 = 128 + 1;
const SIGNAL_PIPE: u8 = 13;
/// Time that a process has to end of SIGPIPE.
const PIPE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// What of this program is joined to the process.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    /// Standard input is passed on.
    pub stdin: bool,
    /// The process has a terminal: ours goes raw, and its size follows.
    pub terminal: bool,
}

/// How the joint ended.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// The process ended.
    Exit(ExitReport),
    /// The process runs on without us; this is our exit code.
    Left(u8),
}

/// Carries everything both ways until the process ends.
///
/// # Errors
/// When the connection breaks, or standard output fails for another reason than a closed pipe.
pub async fn join(session: &mut Session, joined: Joined) -> anyhow::Result<End> {
    let writer = session.writer();
    let raw = if joined.terminal && joined.stdin {
        RawTerminal::enter().context("cannot make the terminal raw")?
    } else {
        None
    };
    let leave = Arc::new(Notify::new());
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch for signals")?;
    forward_signals(&writer)?;
    if joined.terminal {
        follow_size(&writer)?;
    }
    if joined.stdin {
        forward_stdin(writer.clone(), raw.is_some().then(|| Arc::clone(&leave)))?;
    }
    let end = tokio::select! {
        biased;
        end = carry_output(session, &writer) => end?,
        () = leave.notified() => End::Left(0),
        _ = hangup.recv() => End::Left(CODE_HANGUP),
    };
    drop(raw);
    Ok(end)
}

async fn carry_output(session: &mut Session, writer: &SessionWriter) -> anyhow::Result<End> {
    loop {
        match session.next().await? {
            Some(SessionEvent::Started { .. }) => {}
            Some(SessionEvent::Output { stream, bytes }) => {
                let to: BorrowedFd<'_> = match stream {
                    OutputStream::Stdout | OutputStream::Terminal => rustix::stdio::stdout(),
                    OutputStream::Stderr => rustix::stdio::stderr(),
                };
                match write_all(to, &bytes) {
                    Ok(()) => {}
                    Err(rustix::io::Errno::PIPE) => return broken_pipe(session, writer).await,
                    Err(error) => return Err(io::Error::from(error)).context("cannot write the command's output"),
                }
            }
            Some(SessionEvent::Lost { bytes }) => {
                eprintln!("brood: {} of earlier output were dropped, as nobody read them", output::bytes(bytes));
            }
            Some(SessionEvent::Exit(report)) => return Ok(End::Exit(report)),
            None => return Err(ApiError::Broken(io::ErrorKind::UnexpectedEof.into()).into()),
        }
    }
}

/// Whoever read our output is gone. A local process would get SIGPIPE, so this one does. Its end is
/// waited for, since a connection that is closed with unread output takes the signal along.
async fn broken_pipe(session: &mut Session, writer: &SessionWriter) -> anyhow::Result<End> {
    writer.signal(SIGNAL_PIPE).await?;
    match tokio::time::timeout(PIPE_PATIENCE, session.wait()).await {
        Ok(report) => Ok(End::Exit(report?)),
        // It does not care about the signal, and runs on.
        Err(_elapsed) => Ok(End::Left(128 + SIGNAL_PIPE)),
    }
}

/// Writes straight to the descriptor: what comes is already in large pieces, and a line buffer
/// would only copy it.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut poll = [rustix::event::PollFd::from_borrowed_fd(to, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut poll, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn forward_signals(writer: &SessionWriter) -> anyhow::Result<()> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    for kind in kinds {
        let mut arrivals = signal(kind).context("cannot watch for signals")?;
        let writer = writer.clone();
        let number = u8::try_from(kind.as_raw_value()).context("a signal number beyond 255")?;
        tokio::spawn(async move {
            // A broken connection ends the program by itself.
            while arrivals.recv().await.is_some() && writer.signal(number).await.is_ok() {}
        });
    }
    Ok(())
}

fn follow_size(writer: &SessionWriter) -> anyhow::Result<()> {
    let mut changes = signal(SignalKind::window_change()).context("cannot watch for signals")?;
    let writer = writer.clone();
    tokio::spawn(async move {
        while changes.recv().await.is_some() {
            let Some(size) = terminal::size() else { continue };
            if writer.resize(size).await.is_err() {
                break;
            }
        }
    });
    Ok(())
}

/// Reads standard input in a thread of its own, because no other way leaves the descriptor's flags
/// alone, which it shares with the shell.
fn forward_stdin(writer: SessionWriter, leave: Option<Arc<Notify>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let read_all = move || {
        let mut buffer = vec![0u8; STDIN_BYTES];
        let mut keys = leave.is_some().then(LeaveKeys::default);
        loop {
            let bytes = match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(0) => break,
                Ok(count) => &buffer[..count],
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            };
            let (bytes, left) = keys.as_mut().map_or((bytes.to_vec(), false), |keys| keys.pass(bytes));
            if runtime.block_on(writer.stdin(&bytes)).is_err() {
                return;
            }
            if left {
                if let Some(leave) = &leave {
                    leave.notify_one();
                }
                return;
            }
        }
        // The process may have ended meanwhile; then there is nobody to tell.
        drop(runtime.block_on(writer.stdin_end()));
    };
    std::thread::Builder::new().name("stdin".to_owned()).spawn(read_all).context("cannot start a thread")?;
    Ok(())
}

/// Looks for Ctrl-P Ctrl-Q in what is typed.
#[derive(Debug, Default)]
struct LeaveKeys {
    held: bool,
}

impl LeaveKeys {
    const FIRST: u8 = 0x10;
    const SECOND: u8 = 0x11;

    /// What is to be passed on, and whether the keys were pressed. The first key is held back until
    /// the next byte tells what it was.
    fn pass(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(bytes.len() + 1);
        for byte in bytes {
            if self.held {
                if *byte == Self::SECOND {
                    return (passed, true);
                }
                passed.push(Self::FIRST);
            }
            self.held = *byte == Self::FIRST;
            if !self.held {
                passed.push(*byte);
            }
        }
        (passed, false)
    }
}

/// Says on standard error how a process ended, where its exit code alone would not tell.
pub fn explain(report: &ExitReport, limit: Option<std::time::Duration>) {
    match report.reason {
        ExitReason::TimedOut => {
            let limit = limit.map_or(String::new(), |limit| format!(" after {}", output::span(limit)));
            eprintln!("brood: timed out{limit}; everything that the command had started was killed");
        }
        ExitReason::OutOfMemory => eprintln!(
            "brood: out of memory: the command was killed; the sandbox had used {} at most (see --memory)",
            output::bytes(report.sandbox_memory_peak_bytes)
        ),
        ExitReason::SandboxKilled => eprintln!("brood: the sandbox was killed while the command ran"),
        ExitReason::RolledBack => eprintln!("brood: the sandbox was rolled back while the command ran"),
        ExitReason::Exited(_) | ExitReason::Signaled(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_keys_are_found_across_reads() {
        let mut keys = LeaveKeys::default();
        assert_eq!(keys.pass(b"ab\x10"), (b"ab".to_vec(), false));
        assert_eq!(keys.pass(b"c\x10\x10"), (b"\x10c\x10".to_vec(), false));
        assert_eq!(keys.pass(b"\x11x"), (Vec::new(), true));
    }
}
