//! Copying between pairs of connections: one thread for all of them.
//!
//! Each direction has one buffer. It is filled when it is empty and then emptied before it is filled again, so a slow
//! reader slows its writer down and nobody's memory grows.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::address::Slot;

/// Bytes of one direction's buffer: large enough that a copy costs more than the system calls around it.
const BUFFER_BYTES: usize = 64 * 1024;
/// Pairs at a time: each holds two descriptors and up to two buffers.
const PAIRS_MAX: usize = 4096;
/// The token of the descriptor that wakes the thread.
const TOKEN_WAKE: u64 = u64::MAX;

/// Two connections to be joined.
#[derive(Debug)]
pub(crate) struct Pair {
    /// Whose it is.
    pub(crate) slot: Slot,
    pub(crate) first: TcpStream,
    pub(crate) second: TcpStream,
    /// What came from the first before they were joined.
    pub(crate) to_second: Vec<u8>,
    /// Why it was allowed; judged again when the policy changes. Pairs without are cut only with their sandbox.
    pub(crate) reason: Option<Reason>,
}

/// What a connection was judged by.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    pub(crate) address: std::net::IpAddr,
    pub(crate) name: Option<String>,
}

/// Says of a pair whether it may stay.
pub(crate) type Keep = Box<dyn Fn(&Reason) -> bool + Send>;

enum Message {
    Join(Pair),
    /// Judge the pairs of a sandbox again.
    Review(Slot, Keep),
    /// Cut all pairs of a sandbox.
    Cut(Slot),
    Stop,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Relay {
    handle: RelayHandle,
    thread: Option<JoinHandle<()>>,
}

/// Where pairs are sent to be joined.
#[derive(Debug, Clone)]
pub(crate) struct RelayHandle {
    sender: Sender<Message>,
    wake: Arc<OwnedFd>,
}

impl Relay {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(TOKEN_WAKE), EventFlags::IN)?;
        let copier = Copier { epoll, wake: Arc::clone(&wake), receiver, pairs: HashMap::new(), next: 0 };
        let thread = std::thread::Builder::new().name("network-relay".to_owned()).spawn(move || copier.run())?;
        Ok(Self { handle: RelayHandle { sender, wake }, thread: Some(thread) })
    }

    pub(crate) fn handle(&self) -> RelayHandle {
        self.handle.clone()
    }

    /// Cuts all pairs and ends the thread.
    pub(crate) fn stop(&mut self) {
        self.handle.send(Message::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that copies between connections panicked");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}

impl RelayHandle {
    pub(crate) fn join(&self, pair: Pair) {
        self.send(Message::Join(pair));
    }

    pub(crate) fn review(&self, slot: Slot, keep: Keep) {
        self.send(Message::Review(slot, keep));
    }

    pub(crate) fn cut(&self, slot: Slot) {
        self.send(Message::Cut(slot));
    }

    /// Once the thread has ended, whatever is in the message is closed with it.
    fn send(&self, message: Message) {
        if self.sender.send(message).is_ok()
            && let Err(error) = rustix::io::write(&self.wake, &1u64.to_ne_bytes())
        {
            tracing::debug!(%error, "the copying thread is awake already");
        }
    }
}

struct Copier {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    receiver: Receiver<Message>,
    pairs: HashMap<u64, Joined>,
    next: u64,
}

/// A pair with what is under way in it.
#[derive(Debug)]
struct Joined {
    slot: Slot,
    reason: Option<Reason>,
    streams: [TcpStream; 2],
    /// What goes to the stream of the same position.
    ways: [Way; 2],
    /// What each stream is watched for, if it is.
    watched: [Option<EventFlags>; 2],
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    buffer: Vec<u8>,
    sent: usize,
    /// The source has ended.
    is_ending: bool,
    /// The target was told.
    has_ended: bool,
}

/// What was reported of one stream of a pair.
#[derive(Debug, Clone, Copy)]
struct Report {
    position: usize,
    flags: EventFlags,
}

impl Way {
    fn is_empty(&self) -> bool {
        self.sent == self.buffer.len()
    }
}

impl Copier {
    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the copying thread cannot wait");
                    return;
                }
            }
            for event in std::mem::replace(&mut events, Vec::with_capacity(256)) {
                match event.data.u64() {
                    TOKEN_WAKE => {
                        if self.take_messages() {
                            return;
                        }
                    }
                    token => self.advance(token >> 1, Report { position: (token & 1) as usize, flags: event.flags }),
                }
            }
        }
    }

    /// Whether to stop.
    fn take_messages(&mut self) -> bool {
        let mut count = [0; 8];
        if let Err(error) = rustix::io::read(&*self.wake, &mut count) {
            tracing::debug!(%error, "the copying thread was woken for nothing");
        }
        while let Ok(message) = self.receiver.try_recv() {
            match message {
                Message::Join(pair) => {
                    if let Err(error) = self.join(pair) {
                        tracing::warn!(%error, "two connections could not be joined");
                    }
                }
                Message::Review(slot, keep) => self
                    .pairs
                    .retain(|_, pair| pair.slot != slot || pair.reason.as_ref().is_none_or(&keep) || pair.cut()),
                Message::Cut(slot) => self.pairs.retain(|_, pair| pair.slot != slot || pair.cut()),
                Message::Stop => return true,
            }
        }
        false
    }

    fn join(&mut self, pair: Pair) -> io::Result<()> {
        if self.pairs.len() >= PAIRS_MAX {
            return Err(io::Error::other(format!("{PAIRS_MAX} connections are joined already")));
        }
        let streams = [pair.first, pair.second];
        let number = self.next;
        self.next += 1;
        for (stream, token) in streams.iter().zip(number << 1..) {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            epoll::add(&self.epoll, stream, EventData::new_u64(token), EventFlags::empty())?;
        }
        let to_second = Way { buffer: pair.to_second, ..Way::default() };
        let joined = Joined {
            slot: pair.slot,
            reason: pair.reason,
            streams,
            ways: [Way::default(), to_second],
            watched: [Some(EventFlags::empty()); 2],
        };
        self.pairs.insert(number, joined);
        self.advance(number, Report { position: 0, flags: EventFlags::empty() });
        Ok(())
    }

    /// Copies what can be copied; ends the pair when both directions have ended or one has failed.
    ///
    /// A failed stream is reported for ever, also when nothing is to be read from it or written to it, so the report itself
    /// ends the pair.
    fn advance(&mut self, number: u64, report: Report) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        let is_going_on = match pair.copy() {
            Ok(()) if report.flags.contains(EventFlags::ERR) => pair.cut(),
            Ok(()) => !pair.ways.iter().all(|way| way.has_ended) && pair.watch(&self.epoll, number, report).is_ok(),
            Err(_) => pair.cut(),
        };
        if !is_going_on {
            self.pairs.remove(&number);
        }
    }
}

impl Joined {
    fn copy(&mut self) -> io::Result<()> {
        for target in 0..2 {
            let source = 1 - target;
            self.fill_and_empty(source, target)?;
        }
        Ok(())
    }

    fn fill_and_empty(&mut self, source: usize, target: usize) -> io::Result<()> {
        /// Rounds before the other pairs have their turn.
        const ROUNDS_MAX: usize = 16;
        let way = &mut self.ways[target];
        for _ in 0..ROUNDS_MAX {
            while !way.is_empty() {
                match (&self.streams[target]).write(&way.buffer[way.sent..]) {
                    Ok(count) => way.sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if way.is_ending {
                if !way.has_ended {
                    way.has_ended = true;
                    self.streams[target].shutdown(Shutdown::Write)?;
                }
                return Ok(());
            }
            way.sent = 0;
            way.buffer.resize(BUFFER_BYTES, 0);
            match (&self.streams[source]).read(&mut way.buffer) {
                Ok(0) => {
                    way.buffer = Vec::new();
                    way.is_ending = true;
                }
                Ok(count) => way.buffer.truncate(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // An idle connection holds no buffer.
                    way.buffer = Vec::new();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => way.buffer.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for what the next step of each direction needs.
    ///
    /// That a stream has ended both ways is reported for ever, asked for or not, while the other stream may take its time:
    /// such a stream is not watched until something is wanted of it again.
    fn watch(&mut self, epoll: &OwnedFd, number: u64, report: Report) -> io::Result<()> {
        for position in 0..2 {
            let stream = &self.streams[position];
            let outgoing = &self.ways[position];
            let incoming = &self.ways[1 - position];
            let mut wanted = EventFlags::empty();
            if !outgoing.is_empty() {
                wanted |= EventFlags::OUT;
            }
            if incoming.is_empty() && !incoming.is_ending {
                wanted |= EventFlags::IN;
            }
            let has_hung_up = report.position == position && report.flags.contains(EventFlags::HUP);
            let token = EventData::new_u64(number << 1 | position as u64);
            match self.watched[position] {
                Some(_) if wanted.is_empty() && has_hung_up => {
                    epoll::delete(epoll, stream)?;
                    self.watched[position] = None;
                }
                Some(watched) if watched != wanted => {
                    epoll::modify(epoll, stream, token, wanted)?;
                    self.watched[position] = Some(wanted);
                }
                None if !wanted.is_empty() => {
                    epoll::add(epoll, stream, token, wanted)?;
                    self.watched[position] = Some(wanted);
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Makes both sides notice that the connection did not end but was cut. Always `false`: not to be kept.
    fn cut(&self) -> bool {
        for stream in &self.streams {
            reset_when_closed(stream);
        }
        false
    }
}

/// Makes the kernel send a reset instead of an ordinary end when the stream is closed.
pub(crate) fn reset_when_closed(stream: &TcpStream) {
    let now = Some(std::time::Duration::ZERO);
    if let Err(error) = rustix::net::sockopt::set_socket_linger(stream, now) {
        tracing::debug!(%error, "a connection will end without a reset");
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;

    use super::*;

    /// Two ends of one connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn joined(relay: &Relay, to_second: &[u8]) -> (TcpStream, TcpStream) {
        let (near, first) = connection();
        let (far, second) = connection();
        relay.handle().join(Pair { slot: Slot(1), first, second, to_second: to_second.to_vec(), reason: None });
        (near, far)
    }

    fn text(mut stream: &TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Processor time that the copying threads of this process have used.
    fn relay_ticks() -> u64 {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok())
            .filter_map(|stat| {
                let (name, fields) = stat.rsplit_once(") ")?;
                let fields: Vec<&str> = fields.split(' ').collect();
                // Fields 14 and 15 of proc_pid_stat(5), counted from the state.
                let ticks = |position: usize| fields.get(position)?.parse::<u64>().ok();
                name.ends_with("(network-relay").then_some(ticks(11)? + ticks(12)?)
            })
            .sum()
    }

    /// Reads from a stream that does not block, when there is something.
    fn read_when_ready(mut stream: &TcpStream) -> usize {
        poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
        stream.read(&mut [0]).unwrap()
    }

    #[test]
    fn each_direction_ends_by_itself() {
        let mut relay = Relay::start().unwrap();
        let (near, far) = joined(&relay, b"greeting ");
        (&near).write_all(b"question").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(text(&far), "greeting question");
        (&far).write_all(b"answer").unwrap();
        drop(far);
        assert_eq!(text(&near), "answer");
        relay.stop();
    }

    #[test]
    fn a_reset_reaches_the_other_side() {
        let mut relay = Relay::start().unwrap();
        let (near, mut far) = joined(&relay, b"");
        // Half closed first: nothing is left to be read or written when the reset comes.
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        reset_when_closed(&near);
        drop(near);
        let mut descriptors = [PollFd::new(&far, PollFlags::empty())];
        poll(&mut descriptors, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
        assert!(descriptors[0].revents().contains(PollFlags::ERR), "{:?}", descriptors[0].revents());
        relay.stop();
    }

    #[test]
    fn waiting_for_a_slow_reader_costs_no_time() {
        let mut relay = Relay::start().unwrap();
        let (near, far) = joined(&relay, b"");
        near.set_nonblocking(true).unwrap();
        // More than all buffers hold, then the end; nobody reads.
        let mut sent = 0;
        let mut idle = 0;
        while idle < 50 {
            match (&near).write(&[1; 65_536]) {
                Ok(count) => {
                    sent += count;
                    idle = 0;
                }
                Err(_) => {
                    idle += 1;
                    poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 })).unwrap();
                }
            }
        }
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_when_ready(&near), 0);
        near.shutdown(Shutdown::Both).unwrap();
        // Room for the rest and the end to arrive at the relay, but not to leave it.
        let mut received = 0;
        let mut far = far;
        while received < sent / 3 {
            received += far.read(&mut [0; 65_536]).unwrap();
        }
        let before = relay_ticks();
        poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 300_000_000 })).unwrap();
        let spent = relay_ticks() - before;
        // A thread that spins for 300 ms uses thirty ticks of 10 ms.
        assert!(spent < 10, "{spent} ticks of processor time while waiting");
        let mut part = vec![0; 65_536];
        loop {
            match far.read(&mut part) {
                Ok(0) | Err(_) => break,
                Ok(count) => received += count,
            }
        }
        assert_eq!(received, sent);
        relay.stop();
    }
}
