//! Queries over TCP: what resolvers fall back to for answers that do not fit in a datagram. Rare, so each connection has
//! a thread.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::decision::{Decision, NEIGHBOUR_TTL_S, decide};
use super::message::{Question, ResponseCode, set_id};
use super::over_udp::random_id;
use super::upstream::{Upstreams, with_port};
use crate::address::Slot;
use crate::network::{Shared, lock};
use crate::sandbox::Sandbox;

/// Connections at a time, of all sandboxes and of one: each holds a thread.
const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_PER_SANDBOX_MAX: usize = 8;
/// How long a sandbox may be silent.
const IDLE: Duration = Duration::from_secs(10);
/// How long a server may take.
const UPSTREAM: Duration = Duration::from_secs(5);

/// The connections that are open, so that they can be counted and ended.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<HashMap<u64, (Slot, TcpStream)>>);

impl Connections {
    /// Ends all.
    pub(super) fn stop(&self) {
        for (_, stream) in lock(&self.0).values() {
            // Already closed is as good.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn add(&self, slot: Slot, stream: &TcpStream) -> Option<u64> {
        let mut open = lock(&self.0);
        let of_sandbox = open.values().filter(|(owner, _)| *owner == slot).count();
        if open.len() >= CONNECTIONS_MAX || of_sandbox >= CONNECTIONS_PER_SANDBOX_MAX {
            return None;
        }
        let number = (0..).find(|number| !open.contains_key(number))?;
        open.insert(number, (slot, stream.try_clone().ok()?));
        Some(number)
    }
}

/// Answers the queries of one connection, in a thread of its own. Above the limits the connection is closed.
pub(super) fn serve(shared: &Arc<Shared>, connections: &Arc<Connections>, sandbox: Arc<Sandbox>, stream: TcpStream) {
    let Some(number) = connections.add(sandbox.slot, &stream) else {
        return;
    };
    let shared = Arc::clone(shared);
    let open = Arc::clone(connections);
    let started = std::thread::Builder::new().name("network-names-tcp".to_owned()).spawn(move || {
        if let Err(error) = answer_all(&shared, &sandbox, stream) {
            tracing::debug!(%error, "a connection to the name server ended");
        }
        lock(&open.0).remove(&number);
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for a connection to the name server");
        lock(&connections.0).remove(&number);
    }
}

fn answer_all(shared: &Shared, sandbox: &Sandbox, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut upstreams = Upstreams::new(&shared.configuration.name_servers);
    loop {
        let query = read_message(&mut stream)?;
        let question = Question::of_query(&query).map_err(io::Error::other)?;
        let (decision, verdict) = decide(shared, sandbox, &question);
        let local = |code| question.answer(&query, code, &[], 0);
        let answer = match decision {
            Decision::Deny => local(ResponseCode::NoSuchName),
            Decision::Empty => local(ResponseCode::NoError),
            Decision::Neighbour(addresses) => {
                question.answer(&query, ResponseCode::NoError, &addresses, NEIGHBOUR_TTL_S)
            }
            Decision::Forward(servers) => {
                let servers = if servers.is_empty() { upstreams.current().to_vec() } else { with_port(&servers) };
                match servers.iter().find_map(|server| ask(*server, &query, &question).ok()) {
                    Some(answer) => {
                        super::finish(shared, sandbox, &question, &answer);
                        write_message(&mut stream, &answer)?;
                        continue;
                    }
                    None => local(ResponseCode::ServerFailure),
                }
            }
        };
        sandbox.log_look_up(&question.name, question.kind, verdict, Vec::new());
        write_message(&mut stream, &answer)?;
    }
}

fn ask(server: SocketAddr, query: &[u8], question: &Question) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, UPSTREAM)?;
    stream.set_read_timeout(Some(UPSTREAM))?;
    stream.set_write_timeout(Some(UPSTREAM))?;
    let id = random_id();
    let mut query = query.to_vec();
    set_id(&mut query, id);
    write_message(&mut stream, &query)?;
    let mut answer = read_message(&mut stream)?;
    let repeated = Question::of_answer(&answer).map_err(io::Error::other)?;
    if repeated.id != id || !question.is_same(&repeated) {
        return Err(io::Error::other("the answer is to another question"));
    }
    set_id(&mut answer, question.id);
    Ok(answer)
}

fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed)
}
