//! The network of sandboxes that ask for one.
//!
//! It is started when the first sandbox wants out: a host whose sandboxes stay without network is
//! not touched. Two daemons on one host have different state directories, hence different names
//! and address ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use brood_network::{
    AddressPlan, Attachment, Destination, Forwarder, GroupError, Network, NetworkConfiguration, NetworkError,
    NetworkLimits, NetworkPolicy, Verdict,
};

use crate::error::{EngineError, ErrorKind, Result};
use crate::events::now_ms;
use crate::ids::SandboxId;
use crate::model::{GroupInfo, GroupMember, NetworkAccess, NetworkRequest};
use crate::process::lock;

/// Address plans besides the default one, for daemons with another state directory.
const PLANS: u8 = 63;
/// Most groups at a time: each has chains in the packet filter while it has members.
const GROUPS_MAX: usize = 1024;
/// `/etc/resolv.conf` of a sandbox without network.
const NO_RESOLVER: &str = "# this sandbox has no network\n";

/// What holds for all sandboxes of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkSettings {
    /// Bytes per second, each for what a sandbox sends and receives, unless its request says otherwise.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// Connections of one sandbox at a time, which no request exceeds; none is 4096.
    pub connections_max: Option<u32>,
    /// Whether sandboxes get IPv6, which needs forwarding switched on for the whole host.
    pub ipv6: bool,
}

/// The engine's network, once somebody needs it.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    configuration: NetworkConfiguration,
    settings: NetworkSettings,
    running: Mutex<Option<Arc<Network>>>,
    forwarder: Mutex<Option<Arc<Forwarder>>>,
    groups: Arc<Mutex<BTreeMap<String, Group>>>,
}

/// A group that may be joined. As private networks they live as long as the daemon, like the sandboxes in them.
#[derive(Debug)]
struct Group {
    created_ms: u64,
    members: BTreeMap<SandboxId, GroupMember>,
}

/// A place in a group, given up when dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    groups: Arc<Mutex<BTreeMap<String, Group>>>,
    group: String,
    sandbox: SandboxId,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(group) = lock(&self.groups).get_mut(&self.group) {
            group.members.remove(&self.sandbox);
        }
    }
}

/// What a sandbox may reach, checked.
#[derive(Debug)]
pub(crate) struct Access {
    policy: NetworkPolicy,
    network: Arc<Network>,
}

impl SandboxNetwork {
    /// `instance` is a hash of the state directory, or none for the default one.
    pub(crate) fn new(instance: Option<u32>, settings: NetworkSettings) -> Self {
        let mut configuration = NetworkConfiguration { with_ipv6: settings.ipv6, ..NetworkConfiguration::default() };
        configuration.connections_max = settings.connections_max.unwrap_or(configuration.connections_max);
        if let Some(instance) = instance {
            configuration.instance = format!("b{instance:08x}");
            // 100.64.0.0/10 is for addresses that are translated on their way out (RFC 6598).
            let number = (instance % u32::from(PLANS)) as u8 + 1;
            configuration.addresses = AddressPlan {
                inside_v4: Ipv4Addr::new(198, 18, number, 2),
                gateway_v4: Ipv4Addr::new(198, 18, number, 1),
                outside_v4: Ipv4Addr::new(100, 64 + number, 0, 0),
                ..AddressPlan::default()
            };
        }
        Self { configuration, settings, running: Mutex::default(), forwarder: Mutex::default(), groups: Arc::default() }
    }

    /// What the request comes to; none for a sandbox that stays without network, unless it is to be `connected` in any
    /// case.
    ///
    /// # Errors
    /// `Invalid` for a rule that cannot be read, `Unsupported` when the host cannot do it.
    pub(crate) fn access(&self, request: &NetworkRequest, connected: bool) -> Result<Option<Access>> {
        let policy = self.policy(request)?;
        if request.access == NetworkAccess::None && policy.allow.is_empty() && !connected {
            return Ok(None);
        }
        Ok(Some(Access { policy, network: self.network()? }))
    }

    /// Content of `/etc/resolv.conf` of a sandbox that is on the network, or not.
    pub(crate) fn resolver(&self, connected: bool) -> String {
        if connected { format!("nameserver {}\n", self.addresses().gateway_v4) } else { NO_RESOLVER.to_owned() }
    }

    /// What a request means.
    ///
    /// # Errors
    /// `Invalid` for a rule that cannot be read or a limit of zero.
    pub(crate) fn policy(&self, request: &NetworkRequest) -> Result<NetworkPolicy> {
        let parse = |rules: &[String]| -> Result<BTreeSet<Destination>> {
            let parsed = rules.iter().map(|rule| {
                rule.parse::<Destination>().map_err(|error| {
                    EngineError::caused_by(ErrorKind::Invalid, format!("network rule {rule:?} is not valid"), error)
                })
            });
            parsed.collect()
        };
        let default = match request.access {
            NetworkAccess::None => Verdict::Deny,
            NetworkAccess::All => Verdict::Allow,
        };
        let bandwidth = request.bandwidth_bytes_per_second.or(self.settings.bandwidth_bytes_per_second);
        let policy = NetworkPolicy {
            default,
            allow: parse(&request.allow)?,
            deny: parse(&request.deny)?,
            name_servers: request.name_servers.clone(),
            limits: NetworkLimits {
                send_bytes_per_second: bandwidth,
                receive_bytes_per_second: bandwidth,
                connections: request.connections,
                ..NetworkLimits::default()
            },
            ..NetworkPolicy::default()
        };
        policy.check().map_err(|error| {
            EngineError::caused_by(ErrorKind::Invalid, "the network policy cannot be carried out", error)
        })?;
        Ok(policy)
    }

    /// What leads ports of the host inside, started when the first one is published.
    pub(crate) fn forwarder(&self) -> Result<Arc<Forwarder>> {
        let mut forwarder = lock(&self.forwarder);
        if let Some(forwarder) = forwarder.as_ref() {
            return Ok(Arc::clone(forwarder));
        }
        let started = Forwarder::start(self.configuration.addresses)
            .map_err(|error| EngineError::system("cannot start the thread that forwards ports", error))?;
        Ok(Arc::clone(forwarder.insert(Arc::new(started))))
    }

    pub(crate) fn create_group(&self, name: &str) -> Result<GroupInfo> {
        brood_network::check_group_name(name).map_err(|error| {
            EngineError::caused_by(ErrorKind::Invalid, format!("{name:?} cannot be the name of a group"), error)
        })?;
        let name = name.to_ascii_lowercase();
        let mut groups = lock(&self.groups);
        if groups.contains_key(&name) {
            return Err(EngineError::new(ErrorKind::Conflict, format!("group {name} exists already")));
        }
        if groups.len() >= GROUPS_MAX {
            let message = format!("there are {GROUPS_MAX} groups: remove some (`brood network rm`)");
            return Err(EngineError::new(ErrorKind::Exhausted, message));
        }
        let created_ms = now_ms();
        groups.insert(name.clone(), Group { created_ms, members: BTreeMap::new() });
        Ok(GroupInfo { name, created_ms, members: Vec::new() })
    }

    pub(crate) fn groups(&self) -> Vec<GroupInfo> {
        let groups = lock(&self.groups);
        let info = |(name, group): (&String, &Group)| {
            let mut members: Vec<_> = group.members.values().cloned().collect();
            members.sort_by(|left, right| left.alias.cmp(&right.alias));
            GroupInfo { name: name.clone(), created_ms: group.created_ms, members }
        };
        groups.iter().map(info).collect()
    }

    pub(crate) fn remove_group(&self, name: &str) -> Result<()> {
        let mut groups = lock(&self.groups);
        let name = name.to_ascii_lowercase();
        let members = groups.get(&name).ok_or_else(|| no_group(&name))?.members.len();
        if members > 0 {
            let message = format!("group {name} has {members} members: kill them first (`brood network ls`)");
            return Err(EngineError::new(ErrorKind::Conflict, message));
        }
        groups.remove(&name);
        Ok(())
    }

    /// Puts a sandbox on the private network of a group.
    ///
    /// # Errors
    /// `NotFound` for the group, `Conflict` for a name that another member has.
    pub(crate) fn join(
        &self,
        attachment: &Attachment,
        sandbox: &SandboxId,
        group: &str,
        alias: &str,
    ) -> Result<Membership> {
        let group = group.to_ascii_lowercase();
        // Held until it is in both tables, so that the group cannot be removed in between.
        let mut groups = lock(&self.groups);
        let entry = groups.get_mut(&group).ok_or_else(|| no_group(&group))?;
        attachment.join_group(&group, alias).map_err(|error| {
            let kind = match &error {
                NetworkError::Group(GroupError::Name { .. }) => ErrorKind::Invalid,
                NetworkError::Group(GroupError::NameTaken { .. }) => ErrorKind::Conflict,
                NetworkError::Group(GroupError::Full { .. }) => ErrorKind::Exhausted,
                _ => ErrorKind::Internal,
            };
            EngineError::caused_by(kind, format!("the sandbox cannot join group {group}"), error)
        })?;
        let member = GroupMember {
            sandbox: sandbox.clone(),
            alias: alias.to_ascii_lowercase(),
            address: attachment.outside_address(),
        };
        entry.members.insert(sandbox.clone(), member);
        Ok(Membership { groups: Arc::clone(&self.groups), group, sandbox: sandbox.clone() })
    }

    /// The addresses that every sandbox sees.
    pub(crate) fn addresses(&self) -> &AddressPlan {
        &self.configuration.addresses
    }

    fn network(&self) -> Result<Arc<Network>> {
        let mut running = lock(&self.running);
        if let Some(network) = running.as_ref() {
            return Ok(Arc::clone(network));
        }
        let network = Network::start(self.configuration.clone()).map_err(|error| {
            EngineError::caused_by(ErrorKind::Unsupported, "the network of sandboxes cannot be started", error)
        })?;
        let network = Arc::new(network);
        *running = Some(Arc::clone(&network));
        Ok(network)
    }

    /// Removes everything from the host, once the last sandbox is gone.
    pub(crate) fn stop(&self) {
        drop(lock(&self.forwarder).take());
        drop(lock(&self.running).take());
    }
}

impl Access {
    /// Connects the network namespace of a sandbox.
    pub(crate) fn attach(self, namespace: BorrowedFd<'_>) -> Result<Attachment> {
        self.network.attach(namespace, self.policy).map_err(network_error)
    }
}

fn no_group(name: &str) -> EngineError {
    let message = format!("no group {name}: `brood network create {name}` makes it, `brood network ls` lists them");
    EngineError::new(ErrorKind::NotFound, message)
}

/// The engine's view of a failure of the network.
pub(crate) fn network_error(error: NetworkError) -> EngineError {
    EngineError::caused_by(ErrorKind::Internal, "the sandbox cannot be connected", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(settings: NetworkSettings) -> SandboxNetwork {
        SandboxNetwork::new(None, settings)
    }

    #[test]
    fn rules_are_read_and_bad_ones_named() {
        let request = NetworkRequest {
            allow: vec!["*.example.com".to_owned(), "10.0.0.0/8".to_owned()],
            ..NetworkRequest::default()
        };
        let network = network(NetworkSettings::default());
        assert_eq!(network.policy(&request).unwrap().allow.len(), 2);
        let bad = NetworkRequest { allow: vec!["not a rule!".to_owned()], ..request.clone() };
        let error = network.policy(&bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("not a rule!"));
        let nothing = NetworkRequest { connections: Some(0), ..request };
        assert_eq!(network.policy(&nothing).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn limits_come_from_the_request_or_the_daemon() {
        let settings = NetworkSettings { bandwidth_bytes_per_second: Some(1000), ..NetworkSettings::default() };
        let network = network(settings);
        let limits = |bandwidth_bytes_per_second| {
            let request = NetworkRequest { bandwidth_bytes_per_second, ..NetworkRequest::default() };
            network.policy(&request).unwrap().limits
        };
        assert_eq!(limits(None).send_bytes_per_second, Some(1000));
        assert_eq!(limits(Some(7)).receive_bytes_per_second, Some(7));
    }

    #[test]
    fn instances_have_addresses_of_their_own() {
        let default = network(NetworkSettings::default()).configuration;
        let other = SandboxNetwork::new(Some(0xabcd_1234), NetworkSettings::default()).configuration;
        default.check().unwrap();
        other.check().unwrap();
        assert_ne!(default.instance, other.instance);
        assert_ne!(default.addresses.outside_v4, other.addresses.outside_v4);
    }

    #[test]
    fn groups_are_made_once_and_named_properly() {
        let network = network(NetworkSettings::default());
        network.create_group("Task-1").unwrap();
        assert_eq!(network.create_group("task-1").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(network.create_group("a.b").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(network.groups().len(), 1);
        network.remove_group("task-1").unwrap();
        assert_eq!(network.remove_group("task-1").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
