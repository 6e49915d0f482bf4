//! The name server of the sandboxes: a forwarder that listens on the gateway's address, knows who asks, keeps to that
//! sandbox's policy, and remembers what was looked up.

mod decision;
mod log;
mod message;
mod over_tcp;
mod over_udp;
mod upstream;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::configuration::NetworkConfiguration;
use crate::network::{NetworkError, Shared};
use crate::sandbox::Sandbox;

pub(crate) use log::LookUpLog;
pub use log::{LoggedVerdict, LookUp};

/// How often a port is tried that is free for UDP but not for TCP, or not for IPv6.
const BIND_TRIES: u32 = 16;

/// The name server's sockets, and its thread once it runs.
#[derive(Debug)]
pub(crate) struct NameServer {
    port: u16,
    sockets: Option<Sockets>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// One UDP and one TCP socket for each family; the same port everywhere.
#[derive(Debug)]
struct Sockets {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

impl NameServer {
    /// Binds a port on the gateway's addresses, which the loopback device must have already.
    pub(crate) fn bind(configuration: &NetworkConfiguration) -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Socket { action: "bind the name server to the gateway's address", source };
        let plan = &configuration.addresses;
        let mut addresses: Vec<IpAddr> = vec![plan.gateway_v4.into()];
        if configuration.with_ipv6 {
            addresses.push(plan.gateway_v6.into());
        }
        let mut tries = 0;
        let (port, sockets) = loop {
            tries += 1;
            match bind_all(&addresses) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < BIND_TRIES => {}
                result => break result.map_err(failed)?,
            }
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        Ok(Self { port, sockets: Some(sockets), stop: Arc::new(stop), thread: None })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts answering.
    pub(crate) fn start(mut self, shared: Arc<Shared>) -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Socket { action: "start the name server", source };
        let Some(sockets) = self.sockets.take() else {
            return Ok(self);
        };
        let server = over_udp::Server::new(shared, sockets, Arc::clone(&self.stop)).map_err(failed)?;
        let thread =
            std::thread::Builder::new().name("network-names".to_owned()).spawn(move || server.run()).map_err(failed)?;
        self.thread = Some(thread);
        Ok(self)
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        if let Err(error) = rustix::io::write(&self.stop, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "the name server cannot be told to stop");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the name server panicked");
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The name servers that the host names.
pub(crate) fn host_name_servers() -> Vec<SocketAddr> {
    upstream::Upstreams::new(&[]).current().to_vec()
}

fn bind_all(addresses: &[IpAddr]) -> io::Result<(u16, Sockets)> {
    let mut sockets = Sockets { udp: Vec::new(), tcp: Vec::new() };
    let mut port = 0;
    for address in addresses {
        let udp = UdpSocket::bind(SocketAddr::new(*address, port))?;
        port = udp.local_addr()?.port();
        udp.set_nonblocking(true)?;
        let tcp = TcpListener::bind(SocketAddr::new(*address, port))?;
        tcp.set_nonblocking(true)?;
        sockets.udp.push(udp);
        sockets.tcp.push(tcp);
    }
    Ok((port, sockets))
}

/// What is to be done with an answer before the sandbox gets it.
fn finish(shared: &Shared, sandbox: &Sandbox, question: &message::Question, answer: &[u8]) {
    let addresses = decision::pin_answer(shared, sandbox, question, answer);
    sandbox.log_look_up(&question.name, question.kind, LoggedVerdict::Allowed, addresses);
}
