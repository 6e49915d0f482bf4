//! The one packet filter table of ours: what is in it, and how it changes.
//!
//! ```text
//!  from a sandbox                                                            to a sandbox
//!  --------------                                                            ------------
//!  edge_in    (prerouting -300)  source must be the inside address;          edge_out (postrouting 300)
//!                                it becomes the sandbox's outside address      destination becomes the inside
//!  -- connection tracking --                                                   address again, also in what
//!  guard      (prerouting -150)  the host's own addresses are refused          ICMP errors quote
//!  redirect   (prerouting -100)  name server; TLS and HTTP of sandboxes      -- connection tracking --
//!                                with domain rules                           to_sandbox
//!  input                         name server and proxy only                    limits; answers only
//!  forward -> from_sandbox       limits; groups; never-allowed ranges;
//!                                then the sandbox's policy chain
//!  masquerade (postrouting 100)  the host's address towards the outside
//! ```
//!
//! A policy is a chain that all sandboxes with the same rules share. It has a number, and what it accepts is marked with
//! that number; only connections that carry the number of the *present* policy pass without being judged again. So a
//! change of policy cuts exactly the connections that the new one would not have let through.

mod expression;
mod group_chain;
mod policy_chain;
mod skeleton;
mod transaction;

use std::net::IpAddr;
use std::time::Duration;

use crate::address::{AddressPlan, Cidr};
use crate::host::SwitchedOn;
use crate::netlink::NetlinkError;
use crate::netlink::batch::Batch;
use crate::netlink::link::{self, InterfaceIndex};
use crate::netlink::socket::Socket;
use crate::policy::{NetworkLimits, NetworkPolicy};

use expression::Family;
pub(crate) use group_chain::GroupId;
pub(crate) use policy_chain::PolicyId;
pub(crate) use skeleton::never;
pub(crate) use transaction::Hook;
use transaction::Transaction;

pub(crate) use expression::octets;

/// How rules tell our veths from all other interfaces of the host: by a number that the kernel keeps for each interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceGroup(u32);

impl DeviceGroup {
    /// The numbers of an instance: "BR" in ASCII, then 15 bits of its name's hash (FNV-1a), then the state. Numbers that
    /// nobody picks by hand, and different ones for instances side by side.
    pub(crate) fn of(instance: &str) -> Self {
        let hash =
            instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self(0x4252_0000 | (hash >> 17) << 1)
    }

    /// Veths in use.
    pub(crate) fn living(self) -> u32 {
        self.0
    }

    /// Veths about to be deleted: nothing passes.
    pub(crate) fn doomed(self) -> u32 {
        self.0 | 1
    }
}

/// What the table needs to know once.
#[derive(Debug, Clone)]
pub(crate) struct FirewallConfiguration {
    pub(crate) table: String,
    pub(crate) group: DeviceGroup,
    pub(crate) plan: AddressPlan,
    pub(crate) with_v6: bool,
    /// Connections that any one sandbox may have.
    pub(crate) connections_max: u32,
    /// Ranges never reachable, besides the built-in ones.
    pub(crate) never: Vec<Cidr>,
    /// Where the name server listens on the gateway's address.
    pub(crate) name_server_port: u16,
    /// Where the proxy that looks at names listens on the gateway's address.
    pub(crate) proxy_port: u16,
    /// Forwarding was off before: packets that have nothing to do with sandboxes stay unforwarded.
    pub(crate) switched_on: SwitchedOn,
}

/// The table, from creation to deletion.
#[derive(Debug)]
pub(crate) struct Firewall {
    socket: Socket,
    configuration: FirewallConfiguration,
}

/// A sandbox as the table knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub(crate) interface: InterfaceIndex,
    pub(crate) outside_v4: IpAddr,
    pub(crate) outside_v6: IpAddr,
}

/// What a crashed process had switched on, as its table tells; nothing if it left none.
pub(crate) fn switched_on_by_predecessor(table: &str) -> Result<SwitchedOn, NetlinkError> {
    let mut socket = Socket::netfilter()?;
    let mut is_there = |chain| {
        let mut batch = Batch::new();
        transaction::get_chain(&mut batch, table, chain);
        match socket.execute(&mut batch) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    };
    Ok(SwitchedOn { forwarding_v4: is_there(skeleton::OTHERS_V4)?, forwarding_v6: is_there(skeleton::OTHERS_V6)? })
}

/// Deletes the table, if there is one.
pub(crate) fn delete_table(table: &str) -> Result<(), NetlinkError> {
    let mut change = Transaction::new(table);
    change.delete_table();
    link::ignoring(Socket::netfilter()?.execute(&mut change.finish()), &[rustix::io::Errno::NOENT])
}

/// The chains of all tables in the namespace that are run at `hook` and drop what they do not accept, with their tables.
pub(crate) fn dropping_chains(hook: Hook) -> Result<Vec<(String, String)>, NetlinkError> {
    let mut found = Vec::new();
    let (purpose, request) = transaction::list_chains();
    Socket::netfilter()?.dump(purpose, &request, |payload| {
        found.extend(transaction::dropping_chain(payload, hook));
    })?;
    Ok(found)
}

impl Firewall {
    /// Removes a table of the same name that a crashed process left, and creates a new one, in one transaction.
    pub(crate) fn create(configuration: FirewallConfiguration) -> Result<Self, NetlinkError> {
        let mut firewall = Self { socket: Socket::netfilter()?, configuration };
        let configuration = firewall.configuration.clone();
        firewall.change(|change| skeleton::write(change, &configuration))?;
        Ok(firewall)
    }

    /// Makes `port` known: its packets get their outside address. It has no policy yet, so everything is refused.
    pub(crate) fn add_port(&mut self, port: &Port) -> Result<(), NetlinkError> {
        let with_v6 = self.configuration.with_v6;
        self.change(|change| {
            change.map_to_address(skeleton::OUTSIDE_V4, port.interface, port.outside_v4);
            if with_v6 {
                change.map_to_address(skeleton::OUTSIDE_V6, port.interface, port.outside_v6);
            }
        })
    }

    /// Replaces what `port` may do. `before` is what it had.
    pub(crate) fn set_policy(
        &mut self,
        port: InterfaceIndex,
        before: Option<&AppliedPolicy>,
        after: Option<&AppliedPolicy>,
    ) -> Result<(), NetlinkError> {
        self.change(|change| {
            if let Some(before) = before {
                before.take_from(change, port);
            }
            if let Some(after) = after {
                after.give_to(change, port);
            }
        })
    }

    /// Forgets everything about these ports.
    pub(crate) fn remove_ports(&mut self, ports: &[RemovedPort]) -> Result<(), NetlinkError> {
        let with_v6 = self.configuration.with_v6;
        self.change(|change| {
            for port in ports {
                if let Some(policy) = &port.policy {
                    policy.take_from(change, port.interface);
                }
                for address in &port.pinned {
                    let set = skeleton::pinned_set(Family::of(*address));
                    change.delete_interface_and_address(set, port.interface, *address);
                }
                group_chain::leave_all(change, port.interface, &port.groups);
                change.delete_interface(skeleton::COUNTED, port.interface);
                change.delete_interface(skeleton::OUTSIDE_V4, port.interface);
                if with_v6 {
                    change.delete_interface(skeleton::OUTSIDE_V6, port.interface);
                }
            }
        })
    }

    /// Creates the chain of a policy.
    pub(crate) fn add_policy(&mut self, id: PolicyId, policy: &NetworkPolicy) -> Result<(), NetlinkError> {
        let with_v6 = self.configuration.with_v6;
        self.change(|change| policy_chain::write(change, id, policy, with_v6))
    }

    /// Deletes the chain of a policy that no port has any more.
    pub(crate) fn remove_policy(&mut self, id: PolicyId, policy: &NetworkPolicy) -> Result<(), NetlinkError> {
        let with_v6 = self.configuration.with_v6;
        self.change(|change| policy_chain::delete(change, id, policy, with_v6))
    }

    /// Lets `port` reach an address that an allowed name had, for a time.
    pub(crate) fn pin(&mut self, port: InterfaceIndex, addresses: &[Pin]) -> Result<(), NetlinkError> {
        self.change(|change| {
            for pin in addresses {
                let set = skeleton::pinned_set(Family::of(pin.address));
                let timeout_ms = u64::try_from(pin.time.as_millis()).unwrap_or(u64::MAX);
                change.add_timed(set, port, pin.address, timeout_ms);
            }
        })
    }

    /// Lets `port` and the other members of a group reach each other.
    pub(crate) fn join_group(
        &mut self,
        port: InterfaceIndex,
        group: GroupId,
        is_new: bool,
        is_first_of_port: bool,
    ) -> Result<(), NetlinkError> {
        self.change(|change| group_chain::join(change, port, group, is_new, is_first_of_port))
    }

    fn change(&mut self, fill: impl FnOnce(&mut Transaction<'_>)) -> Result<(), NetlinkError> {
        let mut change = Transaction::new(&self.configuration.table);
        fill(&mut change);
        if change.is_empty() {
            return Ok(());
        }
        self.socket.execute(&mut change.finish())
    }
}

/// What is to be forgotten about a sandbox.
#[derive(Debug)]
pub(crate) struct RemovedPort {
    pub(crate) interface: InterfaceIndex,
    pub(crate) policy: Option<AppliedPolicy>,
    pub(crate) pinned: Vec<IpAddr>,
    /// Its groups, and whether each is empty without it.
    pub(crate) groups: Vec<(GroupId, bool)>,
}

/// An address that a sandbox may reach for a time because an allowed name led to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    pub(crate) address: IpAddr,
    pub(crate) time: Duration,
}

/// A policy as it is in force for one port.
#[derive(Debug, Clone)]
pub(crate) struct AppliedPolicy {
    pub(crate) id: PolicyId,
    pub(crate) limits: NetworkLimits,
    pub(crate) has_domain_rules: bool,
    /// Addresses open to the port against the rule.
    pub(crate) open: Vec<IpAddr>,
}

impl AppliedPolicy {
    fn give_to(&self, change: &mut Transaction<'_>, port: InterfaceIndex) {
        policy_chain::write_limits(change, port, &self.limits);
        if self.has_domain_rules {
            change.add_interface(skeleton::NAMED, port);
        }
        for address in &self.open {
            change.add_interface_and_address(skeleton::open_set(Family::of(*address)), port, *address);
        }
        change.map_to_chain(skeleton::POLICIES, port, &self.id.chain());
    }

    fn take_from(&self, change: &mut Transaction<'_>, port: InterfaceIndex) {
        change.delete_interface(skeleton::POLICIES, port);
        if self.has_domain_rules {
            change.delete_interface(skeleton::NAMED, port);
        }
        for address in &self.open {
            change.delete_interface_and_address(skeleton::open_set(Family::of(*address)), port, *address);
        }
        policy_chain::delete_limits(change, port, &self.limits);
    }
}
