//! What the host offers and lacks, for whoever sets it up.

use std::fmt;

use crate::dns::host_name_servers;
use crate::firewall::{Hook, dropping_chains};
use crate::netlink::NetlinkError;
use crate::netlink::link;
use crate::netlink::socket::Socket;

/// Something on the host that keeps sandboxes from getting out.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// No request to the kernel is possible.
    NotPermitted {
        /// What the kernel said.
        reason: String,
    },
    /// There is no default route, so there is no outside.
    NoDefaultRoute,
    /// `/etc/resolv.conf` names no server.
    NoNameServer,
    /// Another table drops what it does not know: every table must let a packet through.
    Dropping {
        /// The table.
        table: String,
        /// Its chain.
        chain: String,
        /// Whether the chain is about packets to the host itself (name lookups) or through it (everything else).
        is_input: bool,
    },
}

impl fmt::Display for Finding {
    /// What is wrong, and how to mend it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted { reason } => {
                write!(
                    formatter,
                    "the packet filter cannot be asked ({reason}): run as root, with CAP_NET_ADMIN and CAP_SYS_ADMIN"
                )
            }
            Self::NoDefaultRoute => {
                formatter.write_str("there is no default route: sandboxes reach only this host's own subnets")
            }
            Self::NoNameServer => formatter.write_str(
                "/etc/resolv.conf names no server: names cannot be resolved; set the network's name servers",
            ),
            Self::Dropping { table, chain, is_input } => {
                let direction = if *is_input { "iifname" } else { "iifname and oifname" };
                write!(
                    formatter,
                    "the chain {chain:?} of the table {table:?} drops what it does not accept: add rules to it that accept \
                     packets whose {direction} begins with the network's instance name and a dash"
                )
            }
        }
    }
}

/// Looks at the network namespace of the calling thread. An empty answer means that nothing is known to be missing.
#[must_use]
pub fn examine(instance: &str) -> Vec<Finding> {
    match look(instance) {
        Ok(findings) => findings,
        Err(error) => {
            let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            vec![Finding::NotPermitted { reason }]
        }
    }
}

fn look(instance: &str) -> Result<Vec<Finding>, NetlinkError> {
    let mut findings = Vec::new();
    if link::default_route_mtu(&mut Socket::route()?)?.is_none() {
        findings.push(Finding::NoDefaultRoute);
    }
    if host_name_servers().is_empty() {
        findings.push(Finding::NoNameServer);
    }
    for (hook, is_input) in [(Hook::Input, true), (Hook::Forward, false)] {
        for (table, chain) in dropping_chains(hook)? {
            if table != instance {
                findings.push(Finding::Dropping { table, chain, is_input });
            }
        }
    }
    Ok(findings)
}
