//! The network of sandboxes that ask for one.
//!
//! It is started when the first sandbox wants out: a host whose sandboxes stay without network is
//! not touched. Two daemons on one host have different state directories, hence different names
//! and address ranges.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use brood_network::{AddressPlan, Attachment, Destination, Network, NetworkConfiguration, NetworkPolicy};

use crate::error::{EngineError, ErrorKind, Result};
use crate::model::{NetworkAccess, NetworkRequest};

/// Address plans besides the default one, for daemons with another state directory.
const PLANS: u8 = 63;
/// `/etc/resolv.conf` of a sandbox without network.
const NO_RESOLVER: &str = "# this sandbox has no network\n";

/// The engine's network, once somebody needs it.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    configuration: NetworkConfiguration,
    running: Mutex<Option<Arc<Network>>>,
}

/// What a sandbox may reach, checked.
#[derive(Debug)]
pub(crate) struct Access {
    policy: NetworkPolicy,
    network: Arc<Network>,
}

impl SandboxNetwork {
    /// `instance` is a hash of the state directory, or none for the default one.
    pub(crate) fn new(instance: Option<u32>) -> Self {
        let mut configuration = NetworkConfiguration::default();
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
        Self { configuration, running: Mutex::default() }
    }

    /// What the request comes to; none for a sandbox that stays without network.
    ///
    /// # Errors
    /// `Invalid` for a rule that cannot be read, `Unsupported` when the host cannot do it.
    pub(crate) fn access(&self, request: &NetworkRequest) -> Result<Option<Access>> {
        let policy = policy(request)?;
        if request.access == NetworkAccess::None && policy.allow.is_empty() {
            return Ok(None);
        }
        Ok(Some(Access { policy, network: self.network()? }))
    }

    /// The addresses that every sandbox sees.
    pub(crate) fn addresses(&self) -> &AddressPlan {
        &self.configuration.addresses
    }

    fn network(&self) -> Result<Arc<Network>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
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
        drop(self.running.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Access {
    /// Connects the network namespace of a sandbox.
    pub(crate) fn attach(self, namespace: BorrowedFd<'_>) -> Result<Attachment> {
        self.network.attach(namespace, self.policy).map_err(network_error)
    }
}

/// Content of `/etc/resolv.conf`.
pub(crate) fn resolver(access: Option<&Access>) -> String {
    access.map_or_else(|| NO_RESOLVER.to_owned(), |access| access.network.resolv_conf())
}

/// What a request's texts mean.
pub(crate) fn policy(request: &NetworkRequest) -> Result<NetworkPolicy> {
    let parse = |rules: &[String]| -> Result<std::collections::BTreeSet<Destination>> {
        let parsed = rules.iter().map(|rule| {
            rule.parse::<Destination>().map_err(|error| {
                EngineError::caused_by(ErrorKind::Invalid, format!("network rule {rule:?} is not valid"), error)
            })
        });
        parsed.collect()
    };
    let policy = match request.access {
        NetworkAccess::None => NetworkPolicy::none(),
        NetworkAccess::All => NetworkPolicy::all(),
    };
    Ok(NetworkPolicy { allow: parse(&request.allow)?, deny: parse(&request.deny)?, ..policy })
}

/// The engine's view of a failure of the network.
pub(crate) fn network_error(error: brood_network::NetworkError) -> EngineError {
    EngineError::caused_by(ErrorKind::Internal, "the sandbox cannot be connected", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_bad_ones_named() {
        let request = NetworkRequest {
            access: NetworkAccess::None,
            allow: vec!["*.example.com".to_owned(), "10.0.0.0/8".to_owned()],
            deny: Vec::new(),
        };
        assert_eq!(policy(&request).unwrap().allow.len(), 2);
        let bad = NetworkRequest { allow: vec!["not a rule!".to_owned()], ..request };
        let error = policy(&bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("not a rule!"));
    }

    #[test]
    fn instances_have_addresses_of_their_own() {
        let default = SandboxNetwork::new(None).configuration;
        let other = SandboxNetwork::new(Some(0xabcd_1234)).configuration;
        default.check().unwrap();
        other.check().unwrap();
        assert_ne!(default.instance, other.instance);
        assert_ne!(default.addresses.outside_v4, other.addresses.outside_v4);
    }
}
