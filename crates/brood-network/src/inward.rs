//! Getting into a sandbox: connections to ports inside, without any port being published.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::address::AddressPlan;
use crate::namespace::{NamespaceError, run_inside};

/// How long an address inside may take. Everything is on one machine: what does not answer at once has a full backlog.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// A port inside that cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The sandbox's network namespace could not be entered.
    #[error("the sandbox's network namespace cannot be used")]
    Namespace(#[from] NamespaceError),
    /// Nothing accepts connections there.
    #[error("nothing inside the sandbox accepts connections on port {port}")]
    Refused {
        /// The port.
        port: u16,
        /// What the first address tried answered.
        source: io::Error,
    },
}

/// Connects to `port` in `namespace`, as a program inside would: over the loopback device, so that services are reached
/// that listen on 127.0.0.1 only; then over `::1`; then at the sandbox's own address. The policy does not matter.
/// May be called by several threads at once.
///
/// # Errors
/// The namespace cannot be entered, or nothing accepts connections there.
pub fn connect_inside(namespace: BorrowedFd<'_>, plan: &AddressPlan, port: u16) -> Result<TcpStream, ConnectError> {
    let addresses: [SocketAddr; 3] =
        [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into(), (plan.inside_v4, port).into()];
    let connected = run_inside(namespace, || {
        let mut first = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(stream) => return Ok(stream),
                // Without a network the later ones say only that there is none.
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
    })?;
    connected.map_err(|source| ConnectError::Refused { port, source })
}
