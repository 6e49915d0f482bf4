//! What a tool call prints, kept for whoever reads it, within bounds.
//!
//! - With no reader, the newest [`OUTPUT_BYTES_KEPT`] bytes stay; what goes is counted, and a late
//!   reader is told how much it missed.
//! - With readers, the process waits once the slowest is [`OUTPUT_BYTES_AHEAD`] bytes behind. A
//!   reader that goes away lets it run on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::limits::{OUTPUT_BYTES_AHEAD, OUTPUT_BYTES_KEPT};
use crate::model::ExitReport;

/// Where a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A pseudo-terminal, which has both in one.
    Terminal,
}

impl Stream {
    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Terminal => "terminal",
        }
    }
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Some output.
    Data {
        /// Where it came from.
        stream: Stream,
        /// The bytes as the process wrote them.
        bytes: Arc<[u8]>,
    },
    /// This much was dropped before the reader came.
    Lost {
        /// Bytes of all streams.
        bytes: u64,
    },
    /// The process has ended; nothing follows.
    Ended(ExitReport),
}

/// Where a new reader starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscribeFrom {
    /// With what is still kept.
    Start,
    /// With what comes from now on.
    Now,
}

/// Whether the one who fills the hub should go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Stop reading until the hub asks to resume.
    Pause,
    /// The process has ended: nobody reads this any more.
    Discard,
}

struct Chunk {
    stream: Stream,
    start: u64,
    bytes: Arc<[u8]>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

#[derive(Default)]
struct Reader {
    position: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// Position behind the newest byte; positions count from the process's first byte.
    end: u64,
    readers: HashMap<u64, Reader>,
    next_reader: u64,
    exit: Option<ExitReport>,
    exit_wakers: Vec<Waker>,
    paused: bool,
}

type Resume = Box<dyn Fn() + Send + Sync>;

/// The output of one process.
pub(crate) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    resume: Mutex<Option<Resume>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hub")
    }
}

impl State {
    fn slowest(&self) -> Option<u64> {
        self.readers.values().map(|reader| reader.position).min()
    }

    fn is_far_ahead(&self, bytes: usize) -> bool {
        self.exit.is_none() && self.slowest().is_some_and(|slowest| self.end - slowest > bytes as u64)
    }

    /// Drops what nobody needs: older than the slowest reader and beyond what is kept for late ones.
    fn trim(&mut self) {
        let kept_from = self.end.saturating_sub(OUTPUT_BYTES_KEPT as u64);
        let keep_from = self.slowest().map_or(kept_from, |slowest| slowest.min(kept_from));
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= keep_from) {
            self.chunks.pop_front();
        }
    }

    fn wake_readers(&mut self) {
        for reader in self.readers.values_mut() {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), resume: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is called when a paused process may go on.
    pub(crate) fn set_resume(&self, resume: impl Fn() + Send + Sync + 'static) {
        *self.resume.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(resume));
    }

    /// Takes output; tells whether more is wanted.
    pub(crate) fn push(&self, stream: Stream, bytes: &[u8]) -> Flow {
        let mut state = self.state();
        if state.exit.is_some() {
            return Flow::Discard;
        }
        let start = state.end;
        state.end += bytes.len() as u64;
        state.chunks.push_back(Chunk { stream, start, bytes: bytes.into() });
        state.trim();
        state.wake_readers();
        state.paused = state.is_far_ahead(OUTPUT_BYTES_AHEAD);
        let flow = if state.paused { Flow::Pause } else { Flow::Continue };
        drop(state);
        self.changed.notify_all();
        flow
    }

    /// Takes note of the end. The first report counts.
    pub(crate) fn end(&self, report: ExitReport) {
        let mut state = self.state();
        if state.exit.is_none() {
            state.exit = Some(report);
        }
        state.wake_readers();
        let wakers = std::mem::take(&mut state.exit_wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_all();
    }

    /// How the process ended, once it has.
    pub(crate) fn exit(&self) -> Option<ExitReport> {
        self.state().exit
    }

    /// As [`exit`](Self::exit), for a task.
    pub(crate) fn poll_exit(&self, context: &mut Context<'_>) -> Poll<ExitReport> {
        let mut state = self.state();
        if let Some(report) = state.exit {
            return Poll::Ready(report);
        }
        if !state.exit_wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.exit_wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for the end.
    pub(crate) fn wait_exit(&self) -> ExitReport {
        let mut state = self.state();
        loop {
            if let Some(report) = state.exit {
                return report;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`wait_exit`](Self::wait_exit), but not beyond a point in time.
    pub(crate) fn wait_exit_until(&self, deadline: Instant) -> Option<ExitReport> {
        let mut state = self.state();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.exit.is_some() || left.is_zero() {
                return state.exit;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn subscribe(self: &Arc<Self>, from: SubscribeFrom) -> Subscription {
        let mut state = self.state();
        let position = match from {
            SubscribeFrom::Start => 0,
            SubscribeFrom::Now => state.end,
        };
        // Output that is gone must not make the process wait for a reader that cannot have it.
        let oldest = state.chunks.front().map_or(state.end, |chunk| chunk.start);
        let lost = oldest.saturating_sub(position);
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(number, Reader { position: position.max(oldest), waker: None });
        drop(state);
        Subscription { hub: Arc::clone(self), number, lost, finished: false }
    }

    fn resume_if_possible(&self, mut state: MutexGuard<'_, State>) {
        if !state.paused || state.is_far_ahead(OUTPUT_BYTES_AHEAD / 2) {
            return;
        }
        state.paused = false;
        drop(state);
        if let Some(resume) = self.resume.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            resume();
        }
    }
}

/// A reader of a process's output. Dropping it does not disturb the process.
#[derive(Debug)]
pub struct Subscription {
    hub: Arc<Hub>,
    number: u64,
    lost: u64,
    finished: bool,
}

impl Subscription {
    /// The next piece of output, for a task; none after the end.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<OutputEvent>> {
        if self.finished {
            return Poll::Ready(None);
        }
        let hub = Arc::clone(&self.hub);
        let mut state = hub.state();
        match self.take(&mut state) {
            Some(event) => {
                hub.resume_if_possible(state);
                Poll::Ready(Some(event))
            }
            None => {
                if let Some(reader) = state.readers.get_mut(&self.number) {
                    reader.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Waits for the next piece of output; none after the end.
    pub fn next_blocking(&mut self) -> Option<OutputEvent> {
        if self.finished {
            return None;
        }
        let hub = Arc::clone(&self.hub);
        let mut state = hub.state();
        loop {
            if let Some(event) = self.take(&mut state) {
                hub.resume_if_possible(state);
                return Some(event);
            }
            state = hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next piece of output, if there is one already.
    pub fn next_if_there(&mut self) -> Option<OutputEvent> {
        if self.finished {
            return None;
        }
        let hub = Arc::clone(&self.hub);
        let mut state = hub.state();
        let event = self.take(&mut state);
        hub.resume_if_possible(state);
        event
    }

    fn take(&mut self, state: &mut State) -> Option<OutputEvent> {
        if self.lost > 0 {
            return Some(OutputEvent::Lost { bytes: std::mem::take(&mut self.lost) });
        }
        let position = state.readers.get(&self.number)?.position;
        let at = state.chunks.partition_point(|chunk| chunk.end() <= position);
        if let Some(chunk) = state.chunks.get(at) {
            // A reader that started in the middle of a chunk begins there.
            let skip = usize::try_from(position.saturating_sub(chunk.start)).unwrap_or(0);
            let bytes = if skip == 0 { Arc::clone(&chunk.bytes) } else { chunk.bytes[skip..].into() };
            let event = OutputEvent::Data { stream: chunk.stream, bytes };
            let end = chunk.end();
            if let Some(reader) = state.readers.get_mut(&self.number) {
                reader.position = end;
            }
            state.trim();
            return Some(event);
        }
        let report = state.exit?;
        self.finished = true;
        Some(OutputEvent::Ended(report))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        state.readers.remove(&self.number);
        state.trim();
        self.hub.resume_if_possible(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::model::ExitReason;

    fn report() -> ExitReport {
        ExitReport {
            reason: ExitReason::Exited(0),
            ended_ms: 0,
            duration_us: 0,
            cpu_us: 0,
            resident_peak_kib: 0,
            sandbox_memory_peak_bytes: 0,
        }
    }

    fn data(event: Option<OutputEvent>) -> Vec<u8> {
        match event {
            Some(OutputEvent::Data { bytes, .. }) => bytes.to_vec(),
            other => panic!("no data: {other:?}"),
        }
    }

    #[test]
    fn readers_get_all_in_order_and_then_the_end() {
        let hub = Hub::new();
        hub.push(Stream::Stdout, b"one");
        let mut early = hub.subscribe(SubscribeFrom::Start);
        let mut late = hub.subscribe(SubscribeFrom::Now);
        hub.push(Stream::Stderr, b"two");
        hub.end(report());
        assert_eq!(data(early.next_blocking()), b"one");
        assert_eq!(data(early.next_blocking()), b"two");
        assert_eq!(early.next_blocking(), Some(OutputEvent::Ended(report())));
        assert_eq!(early.next_blocking(), None);
        assert_eq!(data(late.next_blocking()), b"two");
        assert_eq!(hub.push(Stream::Stdout, b"too late"), Flow::Discard);
    }

    #[test]
    fn output_that_nobody_reads_is_bounded_and_the_loss_is_told() {
        let hub = Hub::new();
        for _ in 0..100 {
            assert_eq!(hub.push(Stream::Stdout, &[b'x'; 65536]), Flow::Continue);
        }
        let kept: usize = hub.state().chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        assert!(kept <= OUTPUT_BYTES_KEPT + 65536, "{kept}");
        let mut reader = hub.subscribe(SubscribeFrom::Start);
        let lost = 100 * 65536 - kept as u64;
        assert_eq!(reader.next_blocking(), Some(OutputEvent::Lost { bytes: lost }));
        assert_eq!(data(reader.next_blocking()).len(), 65536);
    }

    #[test]
    fn a_slow_reader_pauses_the_process_and_leaving_resumes_it() {
        let hub = Hub::new();
        let resumed = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&resumed);
        hub.set_resume(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let mut reader = hub.subscribe(SubscribeFrom::Start);
        let mut pushed = 0;
        while hub.push(Stream::Stdout, &[0; 65536]) == Flow::Continue {
            pushed += 1;
            assert!(pushed < 1000);
        }
        assert!(pushed * 65536 <= OUTPUT_BYTES_AHEAD);
        for _ in 0..pushed {
            reader.next_blocking();
        }
        assert_eq!(resumed.load(Ordering::Relaxed), 1);
        while hub.push(Stream::Stdout, &[0; 65536]) == Flow::Continue {}
        drop(reader);
        assert_eq!(resumed.load(Ordering::Relaxed), 2);
        assert_eq!(hub.push(Stream::Stdout, b"on"), Flow::Continue);
    }

    #[test]
    fn random_pushes_and_reads_lose_and_reorder_nothing() {
        let hub = Hub::new();
        let mut reader = hub.subscribe(SubscribeFrom::Start);
        let mut seed = 7u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        let (mut written, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            if random() % 2 == 0 {
                let piece: Vec<u8> = (0..random() % 40 + 1).map(|_| (random() & 0xff) as u8).collect();
                hub.push(Stream::Stdout, &piece);
                written.extend(piece);
            } else if seen.len() < written.len() {
                seen.extend(data(reader.next_blocking()));
            }
        }
        while seen.len() < written.len() {
            seen.extend(data(reader.next_blocking()));
        }
        assert_eq!(seen, written);
    }
}
