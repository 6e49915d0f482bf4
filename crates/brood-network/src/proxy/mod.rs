//! Looking at the names in TLS and HTTP connections of sandboxes whose policies are about names.
//!
//! The packet filter sends such connections here instead of where they wanted to go. The first bytes are read, judged
//! together with the address that the sandbox wanted, and either sent on or answered by a reset. TLS stays what it is:
//! it is neither ended nor changed here.

mod http;
mod judge;
mod tls;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::address::{Cidr, Slot};
use crate::configuration::NetworkConfiguration;
use crate::network::{NetworkError, Shared, lock};
use crate::policy::{NetworkPolicy, Verdict};
use crate::relay::{Pair, Reason, RelayHandle, reset_when_closed};
use crate::sandbox::Sandbox;
use tls::Greeting;

/// Most bytes read before a name is known. A ClientHello with post-quantum keys takes 2 KiB, an HTTP head rarely 16.
const GREETING_BYTES_MAX: usize = 64 * 1024;
/// How long a client may take to say what it wants.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How long a server may take to accept.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Connections that are being judged, of all sandboxes and of one: each holds a thread.
const JUDGED_MAX: usize = 256;
const JUDGED_PER_SANDBOX_MAX: usize = 32;
/// The port whose connections are TLS; the other one's are HTTP.
const TLS_PORT: u16 = 443;

/// The sockets, and the thread once it runs.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    listeners: Vec<TcpListener>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Binds a port on the gateway's addresses, which the loopback device must have already.
    pub(crate) fn bind(configuration: &NetworkConfiguration) -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Socket { action: "bind the proxy to the gateway's address", source };
        let plan = &configuration.addresses;
        let mut listeners = vec![TcpListener::bind((plan.gateway_v4, 0)).map_err(failed)?];
        let port = listeners[0].local_addr().map_err(failed)?.port();
        if configuration.with_ipv6 {
            listeners.push(TcpListener::bind((plan.gateway_v6, port)).map_err(failed)?);
        }
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(failed)?;
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        Ok(Self { port, listeners, stop: Arc::new(stop), thread: None })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts judging.
    pub(crate) fn start(mut self, shared: Arc<Shared>, relay: RelayHandle) -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Socket { action: "start the proxy", source };
        let listeners = std::mem::take(&mut self.listeners);
        let stop = Arc::clone(&self.stop);
        let gate = Arc::new(Gate { shared, relay, judged: Mutex::default() });
        let thread = std::thread::Builder::new()
            .name("network-proxy".to_owned())
            .spawn(move || accept_all(&gate, &listeners, &stop))
            .map_err(failed)?;
        self.thread = Some(thread);
        Ok(self)
    }

    /// Ends the thread. Connections being judged are refused when their time is over.
    pub(crate) fn stop(&mut self) {
        if let Err(error) = rustix::io::write(&self.stop, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "the proxy cannot be told to stop");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the proxy panicked");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the judging threads share.
#[derive(Debug)]
struct Gate {
    shared: Arc<Shared>,
    relay: RelayHandle,
    /// How many connections of each sandbox are being judged.
    judged: Mutex<HashMap<Slot, usize>>,
}

fn accept_all(gate: &Arc<Gate>, listeners: &[TcpListener], stop: &OwnedFd) {
    loop {
        let mut descriptors: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        descriptors.push(PollFd::new(stop, PollFlags::IN));
        match poll(&mut descriptors, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the proxy cannot wait for connections");
                return;
            }
        }
        if descriptors.last().is_some_and(|stop| !stop.revents().is_empty()) {
            return;
        }
        for listener in listeners {
            while let Ok((stream, client)) = listener.accept() {
                reset_when_closed(&stream);
                if let Err(error) = gate.admit(stream, client) {
                    tracing::warn!(%error, "no thread to judge a connection");
                }
            }
        }
    }
}

impl Gate {
    /// Judges a connection in a thread of its own; above the limits it is reset.
    fn admit(self: &Arc<Self>, stream: TcpStream, client: SocketAddr) -> io::Result<()> {
        let Some(sandbox) = self.shared.sandbox_at(client.ip()) else {
            return Ok(());
        };
        let slot = sandbox.slot;
        {
            let mut judged = lock(&self.judged);
            let all: usize = judged.values().sum();
            let of_sandbox = judged.entry(slot).or_default();
            if all >= JUDGED_MAX || *of_sandbox >= JUDGED_PER_SANDBOX_MAX {
                return Ok(());
            }
            *of_sandbox += 1;
        }
        let gate = Arc::clone(self);
        let started = std::thread::Builder::new().name("network-judge".to_owned()).spawn(move || {
            if let Err(error) = gate.serve(&sandbox, stream) {
                tracing::debug!(%error, "a connection was not sent on");
            }
            gate.leave(slot);
        });
        if let Err(error) = started {
            self.leave(slot);
            return Err(error);
        }
        Ok(())
    }

    fn leave(&self, slot: Slot) {
        let mut judged = lock(&self.judged);
        if let Some(count) = judged.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                judged.remove(&slot);
            }
        }
    }

    fn serve(&self, sandbox: &Sandbox, mut client: TcpStream) -> io::Result<()> {
        let target = original_target(&client)?;
        if target == client.local_addr()? {
            return Err(io::Error::other("the connection was not redirected here"));
        }
        client.set_nonblocking(false)?;
        let is_tls = target.port() == TLS_PORT;
        let read = if is_tls { tls::greeting } else { http::greeting };
        let (mut bytes, greeting) = listen(&mut client, read)?;
        let (name, is_understood) = match greeting {
            Greeting::Named(name) => (name, true),
            Greeting::Foreign | Greeting::Incomplete => (None, false),
        };
        let reason = Reason { address: target.ip(), name };
        let verdict = judge_now(&self.shared, sandbox, &reason, is_understood);
        tracing::debug!(sandbox = %sandbox.port.outside_v4, %target, name = reason.name, ?verdict, "connection judged");
        if verdict == Verdict::Deny {
            return Ok(());
        }
        if !is_tls {
            bytes = http::as_single_request(&bytes);
        }
        let server = TcpStream::connect_timeout(&target, CONNECT_TIME)?;
        // From here on an ordinary end is an ordinary end.
        rustix::net::sockopt::set_socket_linger(&client, None)?;
        let slot = sandbox.slot;
        self.relay.join(Pair { slot, first: client, second: server, to_second: bytes, reason: Some(reason.clone()) });
        // The policy may have changed since it was looked at; the relay cuts what it no longer allows.
        review(&self.shared, sandbox, &self.relay);
        Ok(())
    }
}

/// Has the relay judge the sandbox's connections again, by its present policy.
pub(crate) fn review(shared: &Shared, sandbox: &Sandbox, relay: &RelayHandle) {
    let policy = Arc::clone(&lock(&sandbox.state).policy);
    let pinned: Vec<IpAddr> = lock(&sandbox.state).pinned.keys().copied().collect();
    let never = shared.never.clone();
    let keep = move |reason: &Reason| {
        let is_pinned = || pinned.contains(&reason.address);
        judge::judge(&policy, &never, reason.address, reason.name.as_deref(), is_pinned) == Verdict::Allow
    };
    relay.review(sandbox.slot, Box::new(keep));
}

fn judge_now(shared: &Shared, sandbox: &Sandbox, reason: &Reason, is_understood: bool) -> Verdict {
    let policy = Arc::clone(&lock(&sandbox.state).policy);
    let is_pinned = || {
        let state = lock(&sandbox.state);
        state.pinned.get(&reason.address).is_some_and(|until| *until > Instant::now())
    };
    if !is_understood {
        return judge_unnamed(&policy, &shared.never, reason.address);
    }
    judge::judge(&policy, &shared.never, reason.address, reason.name.as_deref(), is_pinned)
}

/// What is not TLS or HTTP, or can be read in two ways, could hide any name: only its address can allow it.
fn judge_unnamed(policy: &NetworkPolicy, never: &[Cidr], address: IpAddr) -> Verdict {
    let is_never = never.iter().any(|range| range.contains(address));
    if !is_never && policy.verdict_on_address(address) == Some(Verdict::Allow) { Verdict::Allow } else { Verdict::Deny }
}

/// Reads until `greeting` has made up its mind.
fn listen(client: &mut TcpStream, greeting: fn(&[u8]) -> Greeting) -> io::Result<(Vec<u8>, Greeting)> {
    let deadline = Instant::now() + GREETING_TIME;
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while bytes.len() < GREETING_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        let count = client.read(&mut part)?;
        bytes.extend_from_slice(&part[..count]);
        match greeting(&bytes) {
            Greeting::Incomplete if count > 0 => {}
            made_up => return Ok((bytes, made_up)),
        }
    }
    Ok((bytes, Greeting::Foreign))
}

/// Where the sandbox wanted to go, before the packet filter sent it here.
fn original_target(client: &TcpStream) -> io::Result<SocketAddr> {
    let target = if client.local_addr()?.is_ipv4() {
        SocketAddr::V4(rustix::net::sockopt::ip_original_dst(client)?)
    } else {
        SocketAddr::V6(rustix::net::sockopt::ipv6_original_dst(client)?)
    };
    Ok(target)
}

impl Shared {
    /// The sandbox that has this address outside.
    pub(crate) fn sandbox_at(&self, address: IpAddr) -> Option<Arc<Sandbox>> {
        let slot = self.configuration.addresses.slot_of(address)?;
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }
}
