//! Ports of the host that lead to ports inside a sandbox.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::address::{AddressPlan, Slot};
use crate::inward::connect_inside;
use crate::relay::{Pair, RelayHandle, reset_when_closed};

/// A port of the host that leads into a sandbox, as long as the value exists. When the sandbox is gone, connections are
/// reset.
#[derive(Debug)]
pub struct PortForward {
    local: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
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
        Ok(Self { local, stop, thread: Some(thread) })
    }

    /// The address on the host. Its port is the one that the kernel chose, if 0 was asked for.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
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
