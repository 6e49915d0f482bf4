//! One thread that waits for everything: messages of PID 1s, output of tool calls, deadlines.
//!
//! What it calls must return quickly; whatever may block goes to the [`Janitor`](crate::janitor).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::error::{EngineError, Result};

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// The token of the descriptor that wakes the thread.
const WAKE_TOKEN: u64 = 0;

/// Something that waits for its descriptor. Called on the reactor's thread.
pub(crate) trait Source: Send + Sync {
    /// The descriptor is ready for something that was asked for, or has hung up.
    fn ready(&self, readiness: EventFlags);
}

/// Names a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token(u64);

type Action = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Timers {
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    /// A timer that was cancelled is missing here.
    actions: HashMap<u64, Action>,
}

/// Names a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerId(u64);

pub(crate) struct Reactor {
    epoll: OwnedFd,
    wake: OwnedFd,
    next_number: AtomicU64,
    sources: Mutex<HashMap<u64, Arc<dyn Source>>>,
    timers: Mutex<Timers>,
    stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reactor")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reactor {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Arc<Self>> {
        let failed = |error: rustix::io::Errno| EngineError::system("cannot start the reactor", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE_TOKEN), EventFlags::IN).map_err(failed)?;
        let reactor = Arc::new(Self {
            epoll,
            wake,
            next_number: AtomicU64::new(WAKE_TOKEN + 1),
            sources: Mutex::default(),
            timers: Mutex::default(),
            stopped: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let running = Arc::clone(&reactor);
        let thread = std::thread::Builder::new().name("reactor".to_owned()).spawn(move || running.run());
        *lock(&reactor.thread) = Some(thread.map_err(|error| EngineError::system("cannot start the reactor", error))?);
        Ok(reactor)
    }

    /// Ends the thread and lets go of all sources.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake_up();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _panicked = thread.join();
        }
        lock(&self.sources).clear();
        lock(&self.timers).actions.clear();
    }

    /// Watches a descriptor that `source` owns.
    pub(crate) fn register(&self, fd: BorrowedFd<'_>, source: Arc<dyn Source>, interest: EventFlags) -> Result<Token> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        lock(&self.sources).insert(number, source);
        if let Err(error) = epoll::add(&self.epoll, fd, EventData::new_u64(number), interest) {
            lock(&self.sources).remove(&number);
            return Err(EngineError::system("cannot watch a descriptor", error));
        }
        Ok(Token(number))
    }

    /// Changes what is waited for. Without any flag only hang-ups are reported.
    pub(crate) fn set_interest(&self, fd: BorrowedFd<'_>, token: Token, interest: EventFlags) {
        // Fails only for a descriptor that is not registered any more, whose readiness nobody wants.
        let _unused = epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), interest);
    }

    /// Stops watching.
    pub(crate) fn deregister(&self, fd: BorrowedFd<'_>, token: Token) {
        let _unused = epoll::delete(&self.epoll, fd);
        let source = lock(&self.sources).remove(&token.0);
        // Its destructor may want the reactor's locks.
        drop(source);
    }

    /// Runs `action` on the reactor's thread at `when`.
    pub(crate) fn at(&self, when: Instant, action: impl FnOnce() + Send + 'static) -> TimerId {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut timers = lock(&self.timers);
        let is_first = timers.due.peek().is_none_or(|Reverse((first, _))| when < *first);
        timers.due.push(Reverse((when, number)));
        timers.actions.insert(number, Box::new(action));
        drop(timers);
        if is_first {
            self.wake_up();
        }
        TimerId(number)
    }

    /// Forgets a deadline.
    pub(crate) fn cancel(&self, timer: TimerId) {
        let action = lock(&self.timers).actions.remove(&timer.0);
        drop(action);
    }

    fn wake_up(&self) {
        // A full counter wakes just as well.
        let _unused = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        while !self.stopped.load(Ordering::Acquire) {
            let timeout = self.run_timers();
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the reactor cannot wait any more");
                    return;
                }
            }
            for event in &events {
                let number = event.data.u64();
                if number == WAKE_TOKEN {
                    let _unused = rustix::io::read(&self.wake, &mut [0; 8]);
                    continue;
                }
                let source = lock(&self.sources).get(&number).cloned();
                if let Some(source) = source {
                    source.ready(event.flags);
                }
            }
        }
    }

    /// Runs what is due; the time until the next deadline.
    fn run_timers(&self) -> Option<Timespec> {
        loop {
            let mut timers = lock(&self.timers);
            let Reverse((when, number)) = *timers.due.peek()?;
            if !timers.actions.contains_key(&number) {
                timers.due.pop();
                continue;
            }
            let now = Instant::now();
            if when > now {
                return Timespec::try_from(when - now).ok();
            }
            timers.due.pop();
            let action = timers.actions.remove(&number);
            drop(timers);
            if let Some(action) = action {
                action();
            }
        }
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    struct Tell(mpsc::Sender<()>);
    impl Source for Tell {
        fn ready(&self, _: EventFlags) {
            let _unused = self.0.send(());
        }
    }

    #[test]
    fn timers_run_in_order_and_cancelled_ones_never() {
        let reactor = Reactor::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let now = Instant::now();
        let mut timers = Vec::new();
        for (number, milliseconds) in [(3, 30), (1, 1), (2, 15)] {
            let sender = sender.clone();
            let when = now + Duration::from_millis(milliseconds);
            timers.push(reactor.at(when, move || sender.send(number).unwrap()));
        }
        reactor.cancel(timers[2]);
        let seen: Vec<i32> = receiver.iter().take(2).collect();
        assert_eq!(seen, [1, 3]);
        reactor.stop();
        drop(sender);
        assert!(receiver.recv().is_err(), "the actions are dropped");
    }

    #[test]
    fn readiness_reaches_the_source_until_it_is_deregistered() {
        let reactor = Reactor::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let token =
            reactor.register(read.as_fd(), Arc::new(Tell(sender)), EventFlags::IN | EventFlags::ONESHOT).unwrap();
        rustix::io::write(&write, b"x").unwrap();
        receiver.recv_timeout(Duration::from_secs(5)).unwrap();
        reactor.deregister(read.as_fd(), token);
        assert!(receiver.recv().is_err(), "the source is dropped");
        reactor.stop();
    }
}
