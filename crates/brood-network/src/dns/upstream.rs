//! Which name servers to ask.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime};

/// Where the host names its servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How long, in milliseconds, the file is trusted before its time stamp is looked at again.
const LOOK_AGAIN_MS: u128 = 1000;
/// Servers that are tried, as in the C library.
const SERVERS_MAX: usize = 3;
const PORT: u16 = 53;

/// The host's name servers, followed when the host changes them.
#[derive(Debug)]
pub(crate) struct Upstreams {
    fixed: bool,
    servers: Vec<SocketAddr>,
    looked: Option<Instant>,
    modified: Option<SystemTime>,
}

impl Upstreams {
    /// Always `servers`, or those of the host if there are none.
    pub(crate) fn new(servers: &[IpAddr]) -> Self {
        Self { fixed: !servers.is_empty(), servers: with_port(servers), looked: None, modified: None }
    }

    /// The servers to ask now.
    pub(crate) fn current(&mut self) -> &[SocketAddr] {
        let is_fresh = self.looked.is_some_and(|at| at.elapsed().as_millis() < LOOK_AGAIN_MS);
        if !self.fixed && !is_fresh {
            self.looked = Some(Instant::now());
            let modified = fs::metadata(RESOLV_CONF).and_then(|metadata| metadata.modified()).ok();
            if modified != self.modified || self.servers.is_empty() {
                self.modified = modified;
                let text = fs::read_to_string(RESOLV_CONF).unwrap_or_default();
                self.servers = with_port(&parse(&text));
            }
        }
        &self.servers
    }
}

/// Servers with the port of the protocol.
pub(crate) fn with_port(servers: &[IpAddr]) -> Vec<SocketAddr> {
    servers.iter().take(SERVERS_MAX).map(|address| SocketAddr::new(*address, PORT)).collect()
}

/// The name servers in the text of a `resolv.conf`. Scoped addresses (`fe80::1%eth0`) are left out.
fn parse(text: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then_some(())?;
            words.next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_found() {
        let text = "# c\nsearch x\nnameserver 10.0.0.1\nnameserver\t::1\nnameserver fe80::1%eth0\n";
        let expected: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        assert_eq!(parse(text), expected);
    }
}
