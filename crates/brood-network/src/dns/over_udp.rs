//! The name server's thread: queries and answers over UDP. Connections over TCP are handed to threads of their own.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

use super::Sockets;
use super::decision::{Decision, NEIGHBOUR_TTL_S, decide};
use super::message::{Question, ResponseCode, set_id};
use super::over_tcp::{self, Connections};
use super::upstream::{Upstreams, with_port};
use crate::network::Shared;
use crate::sandbox::Sandbox;
use crate::slots::random_u32;

/// Largest datagram taken from anybody: EDNS lets servers send up to 64 KiB.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Queries waiting for an answer, of all sandboxes and of one: each holds a socket.
const PENDING_MAX: usize = 1024;
const PENDING_PER_SANDBOX_MAX: usize = 128;
/// How long one server may take.
const TRY_MS: u64 = 2000;
/// How often each server is asked.
const ROUNDS: usize = 2;

const TOKEN_STOP: u64 = 0;
/// Sockets that sandboxes talk to: UDP by number from here, TCP from the second.
const TOKEN_UDP: u64 = 1;
const TOKEN_TCP: u64 = 8;
const TOKEN_PENDING: u64 = 16;

/// State of the thread.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    sockets: Sockets,
    /// Held open as long as it is waited for.
    _stop: Arc<OwnedFd>,
    epoll: OwnedFd,
    upstreams: Upstreams,
    pending: HashMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
    next_token: u64,
    connections: Arc<Connections>,
}

/// A query that was sent on.
#[derive(Debug)]
struct Pending {
    sandbox: Arc<Sandbox>,
    client: SocketAddr,
    /// Which of our UDP sockets it came by.
    by: usize,
    query: Vec<u8>,
    question: Question,
    servers: Vec<SocketAddr>,
    tried: usize,
    socket: Option<UdpSocket>,
    /// The number it has upstream, unpredictable like the port.
    upstream_id: u16,
    deadline: Instant,
}

impl Server {
    pub(super) fn new(shared: Arc<Shared>, sockets: Sockets, stop: Arc<OwnedFd>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let add =
            |descriptor: &dyn AsFd, token| epoll::add(&epoll, descriptor, EventData::new_u64(token), EventFlags::IN);
        add(&stop, TOKEN_STOP)?;
        for (socket, token) in sockets.udp.iter().zip(TOKEN_UDP..) {
            add(socket, token)?;
        }
        for (socket, token) in sockets.tcp.iter().zip(TOKEN_TCP..) {
            add(socket, token)?;
        }
        let upstreams = Upstreams::new(&shared.configuration.name_servers);
        Ok(Self {
            shared,
            sockets,
            _stop: stop,
            epoll,
            upstreams,
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_token: TOKEN_PENDING,
            connections: Arc::default(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the name server cannot wait for queries");
                    return;
                }
            }
            for event in std::mem::replace(&mut events, Vec::with_capacity(64)) {
                match event.data.u64() {
                    TOKEN_STOP => {
                        self.connections.stop();
                        return;
                    }
                    token if token >= TOKEN_PENDING => self.take_answer(token),
                    token if token >= TOKEN_TCP => self.accept(token - TOKEN_TCP),
                    token => self.take_queries(token - TOKEN_UDP),
                }
            }
            self.expire();
        }
    }

    /// Until the next query has waited long enough.
    fn timeout(&self) -> Option<Timespec> {
        let (deadline, _) = self.deadlines.first()?;
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: waking a moment too early would mean waking twice.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn take_queries(&mut self, by: u64) {
        let by = usize::from(by != 0);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            match self.sockets.udp[by].recv_from(&mut buffer) {
                Ok((length, client)) => self.take_query(by, client, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An ICMP error about an earlier answer; the next call goes on.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    tracing::warn!(%error, "the name server cannot read a query");
                    return;
                }
            }
        }
    }

    fn take_query(&mut self, by: usize, client: SocketAddr, query: &[u8]) {
        let Some(sandbox) = self.shared.sandbox_at(client.ip()) else {
            return;
        };
        let Ok(question) = Question::of_query(query) else {
            // Not a query that can be answered; without its question there is no way to say so either.
            return;
        };
        let (decision, verdict) = decide(&self.shared, &sandbox, &question);
        let (code, addresses) = match decision {
            Decision::Forward(servers) => {
                return self.forward(by, client, query, question, sandbox, &servers);
            }
            Decision::Deny => (ResponseCode::NoSuchName, Vec::new()),
            Decision::Empty => (ResponseCode::NoError, Vec::new()),
            Decision::Neighbour(addresses) => (ResponseCode::NoError, addresses),
        };
        let answer = question.answer(query, code, &addresses, NEIGHBOUR_TTL_S);
        sandbox.log_look_up(&question.name, question.kind, verdict, addresses);
        self.send(by, client, &answer);
    }

    fn forward(
        &mut self,
        by: usize,
        client: SocketAddr,
        query: &[u8],
        question: Question,
        sandbox: Arc<Sandbox>,
        servers: &[std::net::IpAddr],
    ) {
        let of_sandbox = self.pending.values().filter(|pending| pending.sandbox.slot == sandbox.slot).count();
        if self.pending.len() >= PENDING_MAX || of_sandbox >= PENDING_PER_SANDBOX_MAX {
            // Its resolver asks again.
            return;
        }
        let servers = if servers.is_empty() { self.upstreams.current().to_vec() } else { with_port(servers) };
        let token = self.next_token;
        self.next_token += 1;
        let pending = Pending {
            sandbox,
            client,
            by,
            query: query.to_vec(),
            question,
            servers,
            tried: 0,
            socket: None,
            upstream_id: 0,
            deadline: Instant::now(),
        };
        self.ask(token, pending);
    }

    /// Sends a query to the next server, or gives up.
    fn ask(&mut self, token: u64, mut pending: Pending) {
        while pending.tried < pending.servers.len() * ROUNDS {
            let server = pending.servers[pending.tried % pending.servers.len()];
            pending.tried += 1;
            pending.upstream_id = random_id();
            let mut query = pending.query.clone();
            set_id(&mut query, pending.upstream_id);
            let asked = upstream_socket(server).and_then(|socket| {
                socket.send(&query)?;
                epoll::add(&self.epoll, &socket, EventData::new_u64(token), EventFlags::IN)?;
                Ok(socket)
            });
            match asked {
                Ok(socket) => {
                    pending.socket = Some(socket);
                    pending.deadline = Instant::now() + Duration::from_millis(TRY_MS);
                    self.deadlines.insert((pending.deadline, token));
                    self.pending.insert(token, pending);
                    return;
                }
                Err(error) => tracing::debug!(%error, %server, "a name server cannot be asked"),
            }
        }
        let Pending { by, client, query, question, sandbox, .. } = pending;
        self.fail(by, client, &query, &question, &sandbox);
    }

    fn fail(&self, by: usize, client: SocketAddr, query: &[u8], question: &Question, sandbox: &Sandbox) {
        sandbox.log_look_up(&question.name, question.kind, super::LoggedVerdict::Failed, Vec::new());
        let answer = question.answer(query, ResponseCode::ServerFailure, &[], 0);
        self.send(by, client, &answer);
    }

    fn take_answer(&mut self, token: u64) {
        let Some(pending) = self.pending.get(&token) else {
            return;
        };
        let Some(socket) = &pending.socket else {
            return;
        };
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let answer = &mut buffer[..length];
                let is_ours = Question::of_answer(answer)
                    .is_ok_and(|repeated| repeated.id == pending.upstream_id && pending.question.is_same(&repeated));
                if !is_ours {
                    return;
                }
                let Some(pending) = self.take_pending(token) else {
                    return;
                };
                set_id(answer, pending.question.id);
                super::finish(&self.shared, &pending.sandbox, &pending.question, answer);
                self.send(pending.by, pending.client, answer);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The server refuses: try the next one at once.
            Err(_) => {
                if let Some(pending) = self.take_pending(token) {
                    self.ask(token, pending);
                }
            }
        }
    }

    fn take_pending(&mut self, token: u64) -> Option<Pending> {
        let pending = self.pending.remove(&token)?;
        self.deadlines.remove(&(pending.deadline, token));
        Some(pending)
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((deadline, token)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            match self.take_pending(token) {
                Some(pending) => self.ask(token, pending),
                None => {
                    self.deadlines.remove(&(deadline, token));
                }
            }
        }
    }

    fn send(&self, by: usize, client: SocketAddr, answer: &[u8]) {
        if let Err(error) = self.sockets.udp[by].send_to(answer, client) {
            tracing::debug!(%error, "an answer could not be sent to a sandbox");
        }
    }

    fn accept(&self, by: u64) {
        let by = usize::from(by != 0);
        while let Ok((stream, client)) = self.sockets.tcp[by].accept() {
            let Some(sandbox) = self.shared.sandbox_at(client.ip()) else {
                continue;
            };
            over_tcp::serve(&self.shared, &self.connections, sandbox, stream);
        }
    }
}

/// A socket of its own for each question, so that its port cannot be guessed.
fn upstream_socket(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if server.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(super) fn random_id() -> u16 {
    u16::try_from(random_u32() >> 16).expect("16 bits remain")
}
