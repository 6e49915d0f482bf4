//! Ports of the host that lead to ports inside a sandbox.
//!
//! A [`PortForward`] of an attachment shares the relay of its network. A [`Forwarder`] has one of its own, for sandboxes
//! that are on no network: the way in needs neither a veth nor the packet filter.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::address::{AddressPlan, Slot};
use crate::inward::connect_inside;
use crate::network::lock;
use crate::relay::{Pair, Relay, RelayHandle, reset_when_closed};
use crate::slots::Slots;

/// A port of the host that leads into a sandbox, as long as the value exists. When the sandbox is gone, connections are
/// reset.
#[derive(Debug)]
pub struct PortForward {
    local: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    owned: Option<Owned>,
}

/// What a forward of a [`Forwarder`] gives back at its end.
#[derive(Debug)]
struct Owned {
    slot: Slot,
    slots: Arc<Mutex<Slots>>,
    relay: RelayHandle,
}

/// Leads ports of the host into sandboxes, whether or not they are on a [`Network`](crate::Network). Forwards that
/// outlive it accept connections and reset them.
#[derive(Debug)]
pub struct Forwarder {
    relay: Relay,
    slots: Arc<Mutex<Slots>>,
    plan: AddressPlan,
}

impl Forwarder {
    /// Starts the thread that copies. `addresses` are those that every sandbox sees.
    ///
    /// # Errors
    /// The thread or its descriptors cannot be had.
    pub fn start(addresses: AddressPlan) -> io::Result<Self> {
        Ok(Self { relay: Relay::start()?, slots: Arc::new(Mutex::new(Slots::new())), plan: addresses })
    }

    /// Leads connections to `local` (port 0 lets the kernel choose) to `port` in `namespace`, until the value is dropped,
    /// which resets them. The namespace is not kept alive.
    ///
    /// # Errors
    /// The address cannot be listened on, or there are 65,534 forwards already.
    pub fn forward(&self, local: SocketAddr, namespace: &Arc<OwnedFd>, port: u16) -> io::Result<PortForward> {
        let slot = lock(&self.slots).take().ok_or_else(|| io::Error::other("65534 ports are forwarded already"))?;
        let owned = Owned { slot, slots: Arc::clone(&self.slots), relay: self.relay.handle() };
        let target = Target { slot, namespace: Arc::downgrade(namespace), plan: self.plan, port };
        let mut forward = PortForward::start(local, target, self.relay.handle())?;
        forward.owned = Some(owned);
        Ok(forward)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.relay.cut(self.slot);
        lock(&self.slots).give_back(self.slot);
    }
}

/// Where connections to a forwarded port go.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    /// Gone when the sandbox is detached: a forwarded port must not keep its namespace alive.
    pub(crate) namespace: Weak<OwnedFd>,
    pub(crate) plan: AddressPlan,
    pub(crate) port: u16,
}

impl PortForward {
    pub(crate) fn start(local: SocketAddr, target: Target, relay: RelayHandle) -> io::Result<Self> {
        let listener = TcpListener::bind(local)?;
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("network-forward".to_owned())
            .spawn(move || accept_all(&listener, &target, &relay, &stopped))?;
        Ok(Self { local, stop, thread: Some(thread), owned: None })
    }

    /// The address on the host. Its port is the one that the kernel chose, if 0 was asked for.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Resets the connections that were led in, as it must be when the sandbox is put back to an earlier state. Those of
    /// an attachment's forward are reset with the attachment's own.
    pub fn reset_connections(&self) {
        if let Some(owned) = &self.owned {
            owned.relay.cut(owned.slot);
        }
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        if let Err(error) = rustix::io::write(&self.stop, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "a forwarded port cannot be closed");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a forwarded port panicked");
        }
    }
}

fn accept_all(listener: &TcpListener, target: &Target, relay: &RelayHandle, stop: &OwnedFd) {
    loop {
        let mut descriptors = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut descriptors, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "a forwarded port cannot wait for connections");
                return;
            }
        }
        if !descriptors[1].revents().is_empty() {
            return;
        }
        while let Ok((stream, _)) = listener.accept() {
            lead_in(stream, target, relay);
        }
    }
}

fn lead_in(outside: TcpStream, target: &Target, relay: &RelayHandle) {
    let Some(namespace) = target.namespace.upgrade() else {
        reset_when_closed(&outside);
        return;
    };
    match connect_inside(namespace.as_fd(), &target.plan, target.port) {
        Ok(inside) => {
            relay.join(Pair { slot: target.slot, first: outside, second: inside, to_second: Vec::new(), reason: None })
        }
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "a forwarded connection was refused");
            reset_when_closed(&outside);
        }
    }
}
