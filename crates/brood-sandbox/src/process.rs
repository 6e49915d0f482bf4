//! Tool calls and background processes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use crate::cgroup::CallCgroup;
use crate::endpoints::{self, Endpoints, Slot};
use crate::error::{EngineError, ErrorKind, Result};
use crate::events::{Follow, now_ms};
use crate::model::{ExitReason, ExitReport, LogRecord, ProcessInfo, ProcessRequest, TerminalSize};
use crate::output::{Flow, Hub, Stream, SubscribeFrom, Subscription};
use crate::reactor::{Reactor, Source, TimerId, Token};
use crate::sandbox::Sandbox;

/// Bytes read from a stream at once: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// Reads before other streams get their turn.
const READS_IN_A_ROW: usize = 4;
/// End of transmission: what a terminal's user types to end the input.
const TERMINAL_END_OF_INPUT: u8 = 4;

/// Why a process is being killed, when it is we who do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum KillCause {
    None = 0,
    TimedOut = 1,
    SandboxKilled = 2,
    RolledBack = 3,
}

/// A tool call or background process. It lives on when nobody holds this.
#[derive(Debug)]
pub struct Process {
    pub(crate) arguments: Vec<String>,
    tag: Option<String>,
    background: bool,
    terminal: bool,
    started_ms: u64,
    started: Instant,
    pid: OnceLock<u32>,
    hub: Arc<Hub>,
    pumps: Mutex<Vec<Arc<Pump>>>,
    input: Mutex<Option<Arc<Input>>>,
    pub(crate) cgroup: Mutex<Option<Arc<CallCgroup>>>,
    kill_cause: AtomicU8,
    pub(crate) timer: Mutex<Option<TimerId>>,
    sandbox: Weak<Sandbox>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    pub(crate) fn new(request: &ProcessRequest, cgroup: Arc<CallCgroup>, sandbox: Weak<Sandbox>) -> Arc<Self> {
        Arc::new(Self {
            arguments: request.arguments.clone(),
            tag: request.tag.clone(),
            background: request.background,
            terminal: request.terminal.is_some(),
            started_ms: now_ms(),
            started: Instant::now(),
            pid: OnceLock::new(),
            hub: Hub::new(),
            pumps: Mutex::default(),
            input: Mutex::default(),
            cgroup: Mutex::new(Some(cgroup)),
            kill_cause: AtomicU8::new(KillCause::None as u8),
            timer: Mutex::default(),
            sandbox,
        })
    }

    /// A process that came with a checkpoint.
    pub(crate) fn restored(info: &ProcessInfo, cgroup: Option<Arc<CallCgroup>>, sandbox: Weak<Sandbox>) -> Arc<Self> {
        Arc::new(Self {
            arguments: info.arguments.clone(),
            tag: info.tag.clone(),
            background: info.background,
            terminal: info.terminal,
            started_ms: info.started_ms,
            started: Instant::now(),
            pid: OnceLock::new(),
            hub: Hub::new(),
            pumps: Mutex::default(),
            input: Mutex::default(),
            cgroup: Mutex::new(cgroup),
            kill_cause: AtomicU8::new(KillCause::None as u8),
            timer: Mutex::default(),
            sandbox,
        })
    }

    /// Ends what its readers see as it had ended, for one that only left its streams to others.
    pub(crate) fn was_over(&self, report: ExitReport) {
        self.hub.end(report);
    }

    /// Ends what its readers see with `RolledBack`, and follows the process, which was put back
    /// to an earlier state of itself, as another.
    pub(crate) fn succeed(&self) -> Arc<Self> {
        let cgroup = lock(&self.cgroup).take();
        let successor = Self::restored(&self.info(), cgroup, self.sandbox.clone());
        let _new = successor.pid.set(self.pid());
        let pumps = std::mem::take(&mut *lock(&self.pumps));
        for pump in &pumps {
            *lock(&pump.process) = Arc::downgrade(&successor);
        }
        let resumed: Vec<Weak<Pump>> = pumps.iter().map(Arc::downgrade).collect();
        successor.hub.set_resume(move || resumed.iter().filter_map(Weak::upgrade).for_each(|pump| pump.resume()));
        pumps.iter().for_each(|pump| pump.resume());
        *lock(&successor.pumps) = pumps;
        *lock(&successor.input) = lock(&self.input).take();
        self.hub.end(self.report(ExitReason::RolledBack, 0, 0, 0));
        successor
    }

    /// Tells where its streams end on our side.
    pub(crate) fn add_endpoints(&self, endpoints: &mut Endpoints) {
        for pump in lock(&self.pumps).iter() {
            let slot = match pump.stream {
                Stream::Stdout => Slot::Output,
                Stream::Stderr => Slot::Error,
                Stream::Terminal => Slot::Terminal,
            };
            match slot {
                Slot::Terminal => endpoints.add_terminal(pump.descriptor.as_fd(), endpoints::key(self.pid(), slot)),
                _ => endpoints.add_pipe(pump.descriptor.as_fd(), endpoints::key(self.pid(), slot)),
            }
        }
        if let Some(input) = lock(&self.input).as_ref().filter(|_| !self.terminal) {
            endpoints.add_pipe(input.descriptor.as_fd(), endpoints::key(self.pid(), Slot::Input));
        }
    }

    /// Whether somebody may still write to its streams.
    pub(crate) fn has_open_streams(&self) -> bool {
        lock(&self.pumps).iter().any(|pump| pump.open.load(Ordering::Acquire))
    }

    /// Whether its standard input is still open on our side.
    pub(crate) fn has_input(&self) -> bool {
        lock(&self.input).is_some()
    }

    /// Its process id inside the sandbox.
    pub fn pid(&self) -> u32 {
        // Set before anybody outside of the crate gets to see it.
        self.pid.get().copied().unwrap_or(0)
    }

    /// The caller's own name for it.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Whether it was started in the background.
    pub fn is_background(&self) -> bool {
        self.background
    }

    /// How it stands.
    pub fn info(&self) -> ProcessInfo {
        ProcessInfo {
            pid: self.pid(),
            arguments: self.arguments.clone(),
            tag: self.tag.clone(),
            background: self.background,
            terminal: self.terminal,
            started_ms: self.started_ms,
            exit: self.hub.exit(),
        }
    }

    /// Writes to its standard input; how much was taken.
    ///
    /// # Errors
    /// `WouldBlock` when the pipe is full, `BrokenPipe` when nobody reads it or it is closed.
    pub fn write_stdin(&self, bytes: &[u8]) -> std::io::Result<usize> {
        let input = lock(&self.input).clone().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(rustix::io::write(&input.descriptor, bytes)?)
    }

    /// Ready when [`write_stdin`](Self::write_stdin) would take or refuse something at once.
    pub fn poll_stdin(&self, context: &mut Context<'_>) -> Poll<()> {
        match lock(&self.input).clone() {
            Some(input) => input.poll_ready(context),
            None => Poll::Ready(()),
        }
    }

    /// Ends its standard input. On a terminal that is what Ctrl-D does.
    pub fn close_stdin(&self) {
        if self.terminal {
            // A full terminal buffer keeps the end of input away; its reader is not at the end either.
            let _unused = self.write_stdin(&[TERMINAL_END_OF_INPUT]);
            return;
        }
        let input = lock(&self.input).take();
        if let Some(input) = input {
            input.close();
        }
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// `Invalid` when it has none.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        let input = lock(&self.input).clone().filter(|_| self.terminal);
        let input = input
            .ok_or_else(|| EngineError::new(ErrorKind::Invalid, format!("process {} has no terminal", self.pid())))?;
        let size = rustix::termios::Winsize { ws_col: size.columns, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&input.descriptor, size)
            .map_err(|error| EngineError::system("cannot set the terminal's size", error))
    }

    /// Sends a signal to the process; on a terminal to its whole group.
    ///
    /// # Errors
    /// `NotFound` when it has ended, `Invalid` for a signal that does not exist.
    pub fn signal(&self, signal: u8) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(EngineError::new(ErrorKind::Invalid, format!("{signal} is no signal: use 1 to 64")));
        }
        self.sandbox()?.signal(self.pid(), signal, self.terminal)
    }

    /// Kills everything that the call started, itself included.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub fn kill(&self) -> Result<()> {
        match lock(&self.cgroup).as_ref() {
            Some(cgroup) => cgroup.kill(),
            None => Ok(()),
        }
    }

    pub(crate) fn kill_because(&self, cause: KillCause) -> Result<()> {
        self.kill_cause.store(cause as u8, Ordering::Release);
        self.kill()
    }

    pub(crate) fn mark(&self, cause: KillCause) {
        self.kill_cause.store(cause as u8, Ordering::Release);
    }

    /// Reads its output.
    pub fn subscribe(&self, from: SubscribeFrom) -> Subscription {
        self.hub.subscribe(from)
    }

    /// How it ended, for a task.
    pub fn poll_exit(&self, context: &mut Context<'_>) -> Poll<ExitReport> {
        self.hub.poll_exit(context)
    }

    /// Waits for its end.
    pub fn wait(&self) -> ExitReport {
        self.hub.wait_exit()
    }

    /// Waits for its end, but not beyond a point in time.
    pub fn wait_until(&self, deadline: Instant) -> Option<ExitReport> {
        self.hub.wait_exit_until(deadline)
    }

    fn sandbox(&self) -> Result<Arc<Sandbox>> {
        self.sandbox.upgrade().ok_or_else(|| EngineError::new(ErrorKind::NotFound, "the sandbox is gone"))
    }

    /// It runs: connects its streams. Called on the reactor's thread, before anything that
    /// follows in the control socket is looked at.
    pub(crate) fn started(
        self: &Arc<Self>,
        pid: u32,
        streams: Streams,
        reactor: &Arc<Reactor>,
        log: &Follow<LogRecord>,
    ) {
        let _already = self.pid.set(pid);
        let log = self.background.then(|| log.clone());
        let outputs: Vec<(OwnedFd, Stream)> = match streams {
            Streams::Pipes { input, output, error } => {
                *lock(&self.input) = input.map(|descriptor| Input::new(descriptor, reactor));
                vec![(output, Stream::Stdout), (error, Stream::Stderr)]
            }
            Streams::Terminal { master } => {
                // A second descriptor: one is waited on for reading, the other for writing.
                *lock(&self.input) = master.try_clone().ok().map(|descriptor| Input::new(descriptor, reactor));
                vec![(master, Stream::Terminal)]
            }
        };
        let pumps: Vec<Arc<Pump>> = outputs
            .into_iter()
            .map(|(descriptor, stream)| Pump::start(descriptor, stream, self, reactor, log.clone()))
            .collect();
        let resumed: Vec<Weak<Pump>> = pumps.iter().map(Arc::downgrade).collect();
        self.hub.set_resume(move || resumed.iter().filter_map(Weak::upgrade).for_each(|pump| pump.resume()));
        *lock(&self.pumps) = pumps;
    }

    /// It has ended: takes what is still in its pipes and tells everybody. Called on the reactor's
    /// thread.
    pub(crate) fn ended(&self, end: ProcessEnd) -> ExitReport {
        for pump in lock(&self.pumps).iter() {
            pump.drain(&self.hub);
        }
        let cause = self.kill_cause.load(Ordering::Acquire);
        let reason = match end.reason {
            ExitReason::Signaled(9) | ExitReason::Exited(137) if end.out_of_memory => ExitReason::OutOfMemory,
            ExitReason::Exited(_) | ExitReason::Signaled(_) if cause == KillCause::TimedOut as u8 => {
                ExitReason::TimedOut
            }
            ExitReason::Signaled(9) if cause == KillCause::SandboxKilled as u8 => ExitReason::SandboxKilled,
            ExitReason::Signaled(9) if cause == KillCause::RolledBack as u8 => ExitReason::RolledBack,
            reason => reason,
        };
        let report = self.report(reason, end.cpu_us, end.resident_peak_kib, end.sandbox_memory_peak_bytes);
        let input = lock(&self.input).take();
        if let Some(input) = input {
            input.close();
        }
        self.hub.end(report);
        report
    }

    fn report(&self, reason: ExitReason, cpu_us: u64, resident_peak_kib: u64, memory_peak: u64) -> ExitReport {
        ExitReport {
            reason,
            ended_ms: now_ms(),
            duration_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            cpu_us,
            resident_peak_kib,
            sandbox_memory_peak_bytes: memory_peak,
        }
    }

    /// Stops reading what background children may still print. For the end of the sandbox.
    pub(crate) fn close(&self) {
        let pumps = std::mem::take(&mut *lock(&self.pumps));
        pumps.iter().for_each(|pump| pump.close());
    }
}

/// What the kernel said about the end of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessEnd {
    pub(crate) reason: ExitReason,
    pub(crate) out_of_memory: bool,
    pub(crate) cpu_us: u64,
    pub(crate) resident_peak_kib: u64,
    pub(crate) sandbox_memory_peak_bytes: u64,
}

/// Our ends of a process's standard streams.
#[derive(Debug)]
pub(crate) enum Streams {
    Pipes { input: Option<OwnedFd>, output: OwnedFd, error: OwnedFd },
    Terminal { master: OwnedFd },
}

/// Reads one stream into the hub.
#[derive(Debug)]
struct Pump {
    descriptor: OwnedFd,
    stream: Stream,
    /// Whom the output belongs to; after a rollback that is another.
    process: Mutex<Weak<Process>>,
    token: OnceLock<Token>,
    /// Until the last writer has gone.
    open: AtomicBool,
    reactor: Arc<Reactor>,
    log: Option<Follow<LogRecord>>,
}

impl Pump {
    fn start(
        descriptor: OwnedFd,
        stream: Stream,
        process: &Arc<Process>,
        reactor: &Arc<Reactor>,
        log: Option<Follow<LogRecord>>,
    ) -> Arc<Self> {
        let pump = Arc::new(Self {
            descriptor,
            stream,
            process: Mutex::new(Arc::downgrade(process)),
            token: OnceLock::new(),
            open: AtomicBool::new(true),
            reactor: Arc::clone(reactor),
            log,
        });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&pump);
        match reactor.register(pump.descriptor.as_fd(), source, EventFlags::IN) {
            Ok(token) => {
                let _already = pump.token.set(token);
            }
            Err(error) => tracing::error!(error = %error.chain(), "output of a process is lost"),
        }
        pump
    }

    /// One read; none at the end of the stream or when nothing is there.
    fn read(&self, buffer: &mut [u8]) -> ReadOutcome {
        match rustix::io::read(&self.descriptor, buffer) {
            Ok(0) => ReadOutcome::End,
            Ok(count) => ReadOutcome::Some(count),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => ReadOutcome::Nothing,
            // A terminal whose last user has gone says EIO.
            Err(_) => ReadOutcome::End,
        }
    }

    fn take(&self, hub: Option<&Hub>, bytes: &[u8]) -> Flow {
        if let Some(log) = &self.log {
            let pid = lock(&self.process).upgrade().map(|process| process.pid());
            let text = String::from_utf8_lossy(bytes).into_owned();
            log.push(|_| LogRecord { time_ms: now_ms(), pid, stream: self.stream.name().to_owned(), text });
        }
        hub.map_or(Flow::Discard, |hub| hub.push(self.stream, bytes))
    }

    /// Takes what the process had written before it ended.
    fn drain(&self, hub: &Hub) {
        let mut buffer = vec![0; READ_BYTES];
        while let ReadOutcome::Some(count) = self.read(&mut buffer) {
            self.take(Some(hub), &buffer[..count]);
        }
        // Children in the background may go on to write here; a full pipe would stop them.
        self.resume();
    }

    fn resume(&self) {
        if let Some(token) = self.token.get() {
            self.reactor.set_interest(self.descriptor.as_fd(), *token, EventFlags::IN);
        }
    }

    fn pause(&self) {
        if let Some(token) = self.token.get() {
            self.reactor.set_interest(self.descriptor.as_fd(), *token, EventFlags::empty());
        }
    }

    fn close(&self) {
        self.open.store(false, Ordering::Release);
        if let Some(token) = self.token.get() {
            self.reactor.deregister(self.descriptor.as_fd(), *token);
        }
    }
}

enum ReadOutcome {
    Some(usize),
    Nothing,
    End,
}

impl Source for Pump {
    fn ready(&self, _: EventFlags) {
        let process = lock(&self.process).upgrade();
        let hub = process.as_ref().map(|process| &*process.hub);
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_IN_A_ROW {
            match self.read(&mut buffer) {
                ReadOutcome::Some(count) => {
                    if self.take(hub, &buffer[..count]) == Flow::Pause {
                        self.pause();
                        return;
                    }
                }
                ReadOutcome::Nothing => return,
                ReadOutcome::End => {
                    self.close();
                    return;
                }
            }
        }
    }
}

/// The writing end of a process's standard input.
#[derive(Debug)]
struct Input {
    descriptor: OwnedFd,
    token: OnceLock<Token>,
    waker: Mutex<Option<Waker>>,
    reactor: Arc<Reactor>,
}

impl Input {
    fn new(descriptor: OwnedFd, reactor: &Arc<Reactor>) -> Arc<Self> {
        Arc::new(Self { descriptor, token: OnceLock::new(), waker: Mutex::default(), reactor: Arc::clone(reactor) })
    }

    fn poll_ready(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_ready() {
            return Poll::Ready(());
        }
        *lock(&self.waker) = Some(context.waker().clone());
        // Watched from the first time that somebody has to wait: most never do.
        let interest = EventFlags::OUT | EventFlags::ONESHOT;
        match self.token.get() {
            Some(token) => self.reactor.set_interest(self.descriptor.as_fd(), *token, interest),
            None => {
                let source: Arc<dyn Source> = Arc::<Self>::clone(self);
                match self.reactor.register(self.descriptor.as_fd(), source, interest) {
                    Ok(token) => {
                        let _already = self.token.set(token);
                    }
                    Err(_) => return Poll::Ready(()),
                }
            }
        }
        Poll::Pending
    }

    fn is_ready(&self) -> bool {
        let mut polled = [rustix::event::PollFd::new(&self.descriptor, rustix::event::PollFlags::OUT)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(0))
    }

    fn close(&self) {
        if let Some(token) = self.token.get() {
            self.reactor.deregister(self.descriptor.as_fd(), *token);
        }
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }
}

impl Source for Input {
    fn ready(&self, _: EventFlags) {
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }
}
