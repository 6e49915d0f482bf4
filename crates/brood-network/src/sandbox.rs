//! What is known of one sandbox on the network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use crate::address::Slot;
use crate::dns::{LoggedVerdict, LookUp, LookUpLog};
use crate::firewall::{AppliedPolicy, Port};
use crate::groups::Group;
use crate::network::lock;
use crate::policy::NetworkPolicy;

/// A sandbox with a policy in force.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) slot: Slot,
    pub(crate) port: Port,
    pub(crate) state: Mutex<SandboxState>,
    pub(crate) look_ups: Mutex<LookUpLog>,
}

impl Sandbox {
    /// Remembers a look-up.
    pub(crate) fn log_look_up(&self, name: &str, record_type: u16, verdict: LoggedVerdict, addresses: Vec<IpAddr>) {
        tracing::debug!(
            sandbox = %self.port.outside_v4,
            name,
            record_type,
            ?verdict,
            ?addresses,
            "name looked up"
        );
        lock(&self.look_ups).push(LookUp {
            at: SystemTime::now(),
            name: name.to_owned(),
            record_type,
            verdict,
            addresses,
        });
    }
}

/// What changes while it lives.
#[derive(Debug)]
pub(crate) struct SandboxState {
    pub(crate) policy: Arc<NetworkPolicy>,
    pub(crate) applied: AppliedPolicy,
    /// Addresses that allowed names led to, each with the time when the packet filter forgets it.
    pub(crate) pinned: HashMap<IpAddr, Instant>,
    /// The groups it is in.
    pub(crate) groups: Vec<Arc<Group>>,
}
