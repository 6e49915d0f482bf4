//! The pager's threads and the table of address spaces.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use brood_kernel::userfaultfd::{Features, Userfaultfd};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use thiserror::Error;

use crate::custodian::Custodian;
use crate::fill::FillQueue;
use crate::owed::OwedMap;
use crate::server::{Outcome, Server};
use crate::space::{Adoption, PagedSpace, Space, SpaceId};
use crate::statistics::{Counters, PagerStatistics};

/// Serving threads by default: one for each processor, since a fault keeps one busy, but no more
/// than can be busy at once on ordinary hosts.
const SERVERS_MAX: usize = 8;
/// After that many births of address spaces it is looked which have ended. Nothing reports that,
/// and each holds a descriptor until then.
const BIRTHS_BETWEEN_SWEEPS: u64 = 64;
/// The same while nothing is born.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Pause before faults are tried again that could not be answered: an address space is being
/// changed by a task that needs the processor for it, or memory is short.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The number that stands for the request to stop.
const STOP: u64 = 0;

/// What a userfaultfd must be started with to be adopted; tracking of writes may be added.
pub const FEATURES: Features = Features::EVENT_FORK
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP)
    .union(Features::POISON);

/// How a pager works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Threads that answer faults.
    pub servers: NonZeroUsize,
    /// Threads that fill ahead.
    pub fillers: NonZeroUsize,
}

impl Default for Settings {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let most = NonZeroUsize::new(SERVERS_MAX).unwrap_or(NonZeroUsize::MIN);
        Self { servers: processors.min(most), fillers: NonZeroUsize::MIN }
    }
}

/// Why a pager can't work.
#[derive(Debug, Error)]
pub enum PagerError {
    /// A thread or descriptor could not be made.
    #[error("cannot {action} for the pager")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

fn failed(action: &'static str) -> impl FnOnce(Errno) -> PagerError {
    move |source| PagerError::System { action, source }
}

/// What the threads and all handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    stopping: AtomicBool,
    spaces: RwLock<HashMap<u64, Arc<Space>>>,
    last_id: AtomicU64,
    births: AtomicU64,
    custodian: Option<Arc<dyn Custodian>>,
    pub(crate) counters: Counters,
    pub(crate) fill_queue: FillQueue,
}

impl Shared {
    pub(crate) fn next_id(&self) -> SpaceId {
        SpaceId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Starts serving a space. Its faults are noticed from here on.
    pub(crate) fn insert(&self, space: Arc<Space>) {
        if let Some(custodian) = &self.custodian {
            custodian.keep(space.id, space.userfaultfd.as_fd());
        }
        self.spaces.write().unwrap_or_else(PoisonError::into_inner).insert(space.id.0, Arc::clone(&space));
        let data = epoll::EventData::new_u64(space.id.0);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &space.userfaultfd, data, flags) {
            // Its tasks wait for ever rather than see zeros.
            tracing::error!(space = space.id.0, %error, "a process can't be served: it waits from now on");
        }
        // Sweeping is left to the threads: the caller may hold the state of a space.
        self.births.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, id: SpaceId) {
        let removed = self.spaces.write().unwrap_or_else(PoisonError::into_inner).remove(&id.0);
        if let Some(space) = removed {
            if let Some(custodian) = &self.custodian {
                custodian.forget(id);
            }
            if let Err(error) = epoll::delete(&self.epoll, &space.userfaultfd) {
                tracing::debug!(space = id.0, %error, "a space was not waited for");
            }
            if let Some(observer) = &space.observer {
                observer.ended();
            }
        }
    }

    fn get(&self, id: u64) -> Option<Arc<Space>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn all(&self) -> Vec<Arc<Space>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn spaces_of(&self, lineage: SpaceId) -> Vec<Arc<Space>> {
        self.all().into_iter().filter(|space| space.lineage == lineage).collect()
    }

    /// Works off what waits in a space on this thread.
    pub(crate) fn serve_here(self: &Arc<Self>, space: &Arc<Space>) {
        let mut server = Server::new(Arc::clone(self));
        while server.drain(space) == Outcome::Unfinished && !self.stopping.load(Ordering::Acquire) {
            std::thread::park_timeout(RETRY_INTERVAL);
        }
    }

    /// Stops serving spaces whose process has ended. The caller holds the state of none.
    pub(crate) fn remove_ended(&self) {
        for space in self.all() {
            if !space.is_alive() {
                self.remove(space.id);
            }
        }
    }
}

/// The threads that answer page faults. Dropping it supplies what is still owed and stops them.
#[derive(Debug)]
pub struct Pager {
    shared: Arc<Shared>,
    servers: Vec<JoinHandle<()>>,
    fillers: Vec<JoinHandle<()>>,
}

impl Pager {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the kernel has no descriptors or threads for it.
    pub fn new(settings: Settings) -> Result<Self, PagerError> {
        Self::start(settings, None)
    }

    /// As [`new`](Self::new), with somebody who holds all userfaultfds too.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_custodian(settings: Settings, custodian: Arc<dyn Custodian>) -> Result<Self, PagerError> {
        Self::start(settings, Some(custodian))
    }

    fn start(settings: Settings, custodian: Option<Arc<dyn Custodian>>) -> Result<Self, PagerError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("wait for faults"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("make an eventfd"))?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)
            .map_err(failed("wait for the end"))?;
        let shared = Arc::new(Shared {
            epoll,
            stop,
            stopping: AtomicBool::new(false),
            spaces: RwLock::default(),
            last_id: AtomicU64::new(STOP),
            births: AtomicU64::new(0),
            custodian,
            counters: Counters::default(),
            fill_queue: FillQueue::default(),
        });
        let mut pager = Self { shared, servers: Vec::new(), fillers: Vec::new() };
        for _ in 0..settings.servers.get() {
            let shared = Arc::clone(&pager.shared);
            pager.servers.push(spawn("brood-pager", move || serve(&shared))?);
        }
        for _ in 0..settings.fillers.get() {
            let shared = Arc::clone(&pager.shared);
            pager.fillers.push(spawn("brood-fill", move || shared.fill_queue.work(&shared.counters))?);
        }
        Ok(pager)
    }

    /// Takes over the faults of a process. Its userfaultfd doesn't block, serves faults inside
    /// system calls too, and was started with [`FEATURES`] at least.
    #[must_use]
    pub fn adopt(&self, userfaultfd: Userfaultfd, adoption: Adoption) -> PagedSpace {
        let id = self.shared.next_id();
        let space = Arc::new(Space::new(id, id, userfaultfd, adoption, OwedMap::default()));
        space.claimed.store(true, Ordering::Release);
        self.shared.insert(Arc::clone(&space));
        PagedSpace { space, shared: Arc::clone(&self.shared) }
    }

    /// What was done so far.
    #[must_use]
    pub fn statistics(&self) -> PagerStatistics {
        self.shared.counters.read(self.shared.all().len())
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // A userfaultfd that is closed leaves zeros where pages are owed.
        for space in self.shared.all() {
            let owed = space.state().owed.clone();
            let ranges: Vec<_> = owed
                .ranges()
                .map(|(start, range)| crate::PageAddress::of(start)..crate::PageAddress::of(range.end))
                .collect();
            crate::fill::fill(&space, &self.shared.counters, &ranges);
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.fill_queue.close();
        if let Err(error) = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "the pager's threads can't be told to stop");
            return;
        }
        for thread in self.servers.drain(..).chain(self.fillers.drain(..)) {
            if thread.join().is_err() {
                tracing::error!("a thread of the pager has failed");
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, PagerError> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map_err(|error| failed("start a thread")(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))
}

/// The life of a serving thread.
fn serve(shared: &Arc<Shared>) {
    let mut server = Server::new(Arc::clone(shared));
    let mut unfinished: Vec<Arc<Space>> = Vec::new();
    while !shared.stopping.load(Ordering::Acquire) {
        let patience = if unfinished.is_empty() { SWEEP_INTERVAL } else { RETRY_INTERVAL };
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(STOP) }];
        let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        // One at a time: what a second one waits for another thread can do meanwhile.
        let count = match epoll::wait(&shared.epoll, &mut events[..], Some(&timeout)) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the pager can't wait for faults");
                return;
            }
        };
        let arrived = events.iter().take(count).filter_map(|event| shared.get(event.data.u64()));
        for space in arrived.chain(std::mem::take(&mut unfinished)) {
            match server.drain(&space) {
                Outcome::Idle => {}
                Outcome::Unfinished => unfinished.push(space),
                Outcome::Ended => shared.remove(space.id),
            }
        }
        let is_idle = count == 0 && unfinished.is_empty();
        if is_idle || shared.births.load(Ordering::Relaxed) >= BIRTHS_BETWEEN_SWEEPS {
            shared.births.store(0, Ordering::Relaxed);
            shared.remove_ended();
        }
    }
}
