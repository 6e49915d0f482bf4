//! A sandbox's connection to the network, from preparation to removal.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::Slot;
use crate::dns::LookUp;
use crate::firewall::{AppliedPolicy, Port};
use crate::inward::{self, ConnectError};
use crate::janitor::{JanitorHandle, Removal};
use crate::netlink::{connections, link};
use crate::network::{Filter, NetworkError, Shared, lock};
use crate::policy::NetworkPolicy;
use crate::port_forward::{PortForward, Target};
use crate::proxy;
use crate::sandbox::{Sandbox, SandboxState};

/// A namespace that is connected but under no policy: nothing gets through.
#[derive(Debug)]
pub struct Prepared {
    connection: Connection,
}

/// The veth pair and its place in the packet filter; removed when dropped.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    janitor: JanitorHandle,
    slot: Slot,
    port: Port,
    namespace: Arc<OwnedFd>,
}

impl Prepared {
    pub(crate) fn new(shared: Arc<Shared>, janitor: JanitorHandle, slot: Slot, port: Port, namespace: OwnedFd) -> Self {
        Self { connection: Connection { shared, janitor, slot, port, namespace: Arc::new(namespace) } }
    }

    /// Puts `policy` in force.
    ///
    /// # Errors
    /// A policy that cannot be carried out, or a kernel that refuses; the namespace is then disconnected.
    pub fn attach(self, policy: NetworkPolicy) -> Result<Attachment, NetworkError> {
        policy.check()?;
        let connection = self.connection;
        let applied = connection.put_in_force(&policy)?;
        let sandbox = Arc::new(Sandbox {
            slot: connection.slot,
            port: connection.port,
            state: Mutex::new(SandboxState {
                policy: Arc::new(policy),
                applied,
                pinned: HashMap::new(),
                groups: Vec::new(),
            }),
            look_ups: Mutex::default(),
        });
        connection
            .shared
            .sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(connection.slot, Arc::clone(&sandbox));
        Ok(Attachment { connection, sandbox })
    }
}

impl Connection {
    fn put_in_force(&self, policy: &NetworkPolicy) -> Result<AppliedPolicy, NetworkError> {
        let mut filter = lock(&self.shared.filter);
        let Filter { firewall, policies, .. } = &mut *filter;
        let applied = policies.acquire(firewall, policy)?;
        match firewall.set_policy(self.port.interface, None, Some(&applied)) {
            Ok(()) => Ok(applied),
            Err(error) => {
                policies.release(firewall, policy, &applied)?;
                Err(error.into())
            }
        }
    }
}

/// What went over a sandbox's connection, as the sandbox sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes that the sandbox sent.
    pub sent_bytes: u64,
    /// Packets that the sandbox sent.
    pub sent_packets: u64,
    /// Bytes that reached the sandbox.
    pub received_bytes: u64,
    /// Packets that reached the sandbox.
    pub received_packets: u64,
}

/// A sandbox on the network. Dropping it disconnects the sandbox, a moment later; [`Attachment::detach`] waits for it.
#[derive(Debug)]
pub struct Attachment {
    connection: Connection,
    sandbox: Arc<Sandbox>,
}

impl Attachment {
    /// Replaces the policy. Connections that the new one would not allow are cut at their next packet; the others go on.
    ///
    /// # Errors
    /// A policy that cannot be carried out, or a kernel that refuses; the old policy then stays in force.
    pub fn set_policy(&self, policy: NetworkPolicy) -> Result<(), NetworkError> {
        policy.check()?;
        let shared = &self.connection.shared;
        {
            let mut filter = lock(&shared.filter);
            let Filter { firewall, policies, .. } = &mut *filter;
            let mut state = lock(&self.sandbox.state);
            let applied = policies.acquire(firewall, &policy)?;
            let interface = self.connection.port.interface;
            if let Err(error) = firewall.set_policy(interface, Some(&state.applied), Some(&applied)) {
                policies.release(firewall, &policy, &applied)?;
                return Err(error.into());
            }
            let old_policy = std::mem::replace(&mut state.policy, Arc::new(policy));
            let old_applied = std::mem::replace(&mut state.applied, applied);
            policies.release(firewall, &old_policy, &old_applied)?;
        }
        proxy::review(shared, &self.sandbox, &shared.relay);
        Ok(())
    }

    /// Puts the sandbox on the private network `group`, created with its first member: members reach each other, and find
    /// each other as `name` or `name.group`, whatever their policies say about the outside.
    ///
    /// # Errors
    /// A name that is no host name or taken, a full group, or a kernel that refuses.
    pub fn join_group(&self, group: &str, name: &str) -> Result<(), NetworkError> {
        let mut filter = lock(&self.connection.shared.filter);
        let Filter { firewall, groups, .. } = &mut *filter;
        let mut state = lock(&self.sandbox.state);
        let slot = self.connection.slot;
        let (joined, is_new) = groups.join(group, name, slot)?;
        if state.groups.iter().any(|group| group.id == joined.id) {
            // One more name in a group that it is in already.
            return Ok(());
        }
        let is_first = state.groups.is_empty();
        if let Err(error) = firewall.join_group(self.connection.port.interface, joined.id, is_new, is_first) {
            groups.leave(&joined, slot);
            return Err(error.into());
        }
        state.groups.push(joined);
        Ok(())
    }

    /// Ends all connections to the outside, as it must be when the sandbox is put back to an earlier state: what the other
    /// sides still send is answered by a reset.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn reset_connections(&self) -> Result<(), NetworkError> {
        let Connection { shared, port, slot, .. } = &self.connection;
        shared.relay.cut(*slot);
        let mut tracked = lock(&shared.tracked);
        connections::forget(&mut tracked, &[port.outside_v4])?;
        if shared.configuration.with_ipv6 {
            connections::forget(&mut tracked, &[port.outside_v6])?;
        }
        Ok(())
    }

    /// Connects to a port inside, published or not, whatever the policy says: over the sandbox's loopback device.
    ///
    /// # Errors
    /// Nothing accepts connections there, or the namespace cannot be entered.
    pub fn connect(&self, port: u16) -> Result<TcpStream, ConnectError> {
        inward::connect_inside(self.connection.namespace.as_fd(), &self.connection.shared.configuration.addresses, port)
    }

    /// Leads connections to `local` (an address of the host; port 0 lets the kernel choose) to `port` inside. With
    /// 127.0.0.1 it is a forwarded port, with 0.0.0.0 a published one.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn forward_port(&self, local: SocketAddr, port: u16) -> Result<PortForward, NetworkError> {
        let shared = &self.connection.shared;
        let target = Target {
            slot: self.connection.slot,
            namespace: Arc::downgrade(&self.connection.namespace),
            plan: shared.configuration.addresses,
            port,
        };
        PortForward::start(local, target, shared.relay.clone())
            .map_err(|source| NetworkError::Socket { action: "listen on the forwarded address", source })
    }

    /// What the sandbox has sent and received since it was connected, headers included. What its limits or its policy
    /// stopped counts as sent.
    ///
    /// # Errors
    /// The kernel refuses, or the sandbox has deleted its interface.
    pub fn traffic(&self) -> Result<Traffic, NetworkError> {
        let mut links = lock(&self.connection.shared.links);
        let counters = link::counters(&mut links, self.connection.port.interface)?;
        // What the host's end of the veth receives is what the sandbox sent.
        Ok(Traffic {
            sent_bytes: counters.received_bytes,
            sent_packets: counters.received_packets,
            received_bytes: counters.sent_bytes,
            received_packets: counters.sent_packets,
        })
    }

    /// The sandbox's IPv4 address outside: what tells it apart in logs and to the members of its groups.
    #[must_use]
    pub fn outside_address(&self) -> IpAddr {
        self.connection.port.outside_v4
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<NetworkPolicy> {
        Arc::clone(&lock(&self.sandbox.state).policy)
    }

    /// The last names that the sandbox looked up, oldest first.
    #[must_use]
    pub fn look_ups(&self) -> Vec<LookUp> {
        lock(&self.sandbox.look_ups).entries()
    }

    /// Disconnects the sandbox and returns when it is done.
    pub fn detach(self) {
        let janitor = self.connection.janitor.clone();
        drop(self);
        janitor.wait_until_idle();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let sandbox = self.shared.sandboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&self.slot);
        self.shared.relay.cut(self.slot);
        self.janitor.remove(Removal { slot: self.slot, port: self.port, sandbox });
    }
}
