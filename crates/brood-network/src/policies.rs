//! Which policies have a chain in the packet filter, and how many sandboxes use each.

use std::collections::{BTreeSet, HashMap};

use crate::firewall::{AppliedPolicy, Firewall, PolicyId};
use crate::netlink::NetlinkError;
use crate::policy::{NetworkLimits, NetworkPolicy};
use crate::slots::random_u32;

/// Chains kept although no sandbox uses them: the next sandbox of the same template will.
const UNUSED_MAX: usize = 32;

/// Chains by policy. Limits are no part of a chain, and neither is anything about names besides the rules.
#[derive(Debug)]
pub(crate) struct Policies {
    chains: HashMap<NetworkPolicy, Chain>,
    next: u32,
}

#[derive(Debug)]
struct Chain {
    id: PolicyId,
    users: usize,
}

impl Policies {
    /// With the two policies that most sandboxes have.
    pub(crate) fn create(firewall: &mut Firewall) -> Result<Self, NetlinkError> {
        let mut policies = Self {
            chains: HashMap::new(),
            // Connections of sandboxes of an earlier daemon may still be tracked, with its marks.
            next: random_u32() | 1,
        };
        for policy in [NetworkPolicy::none(), NetworkPolicy::all()] {
            let applied = policies.acquire(firewall, &policy)?;
            policies.release(firewall, &policy, &applied)?;
        }
        Ok(policies)
    }

    /// A chain for `policy`, to be given back by [`Policies::release`].
    pub(crate) fn acquire(
        &mut self,
        firewall: &mut Firewall,
        policy: &NetworkPolicy,
    ) -> Result<AppliedPolicy, NetlinkError> {
        let key = rules_of(policy);
        let id = if let Some(chain) = self.chains.get_mut(&key) {
            chain.users += 1;
            chain.id
        } else {
            let id = PolicyId(self.next);
            firewall.add_policy(id, &key)?;
            // Zero is the mark of connections that nobody marked.
            self.next = self.next.checked_add(1).unwrap_or(1);
            self.chains.insert(key, Chain { id, users: 1 });
            id
        };
        Ok(AppliedPolicy {
            id,
            limits: policy.limits,
            has_domain_rules: policy.has_domain_rules(),
            open: policy.open.iter().copied().collect(),
        })
    }

    /// Gives back what [`Policies::acquire`] returned. No sandbox may have the chain in force any more by it.
    pub(crate) fn release(
        &mut self,
        firewall: &mut Firewall,
        policy: &NetworkPolicy,
        applied: &AppliedPolicy,
    ) -> Result<(), NetlinkError> {
        if let Some(chain) = self.chains.get_mut(&rules_of(policy)) {
            debug_assert_eq!(chain.id, applied.id);
            chain.users -= 1;
        }
        let unused = self.chains.values().filter(|chain| chain.users == 0).count();
        if unused <= UNUSED_MAX {
            return Ok(());
        }
        let oldest = self
            .chains
            .iter()
            .filter(|(_, chain)| chain.users == 0)
            .min_by_key(|(_, chain)| chain.id.0)
            .map(|(policy, chain)| (policy.clone(), chain.id));
        if let Some((policy, id)) = oldest {
            firewall.remove_policy(id, &policy)?;
            self.chains.remove(&policy);
        }
        Ok(())
    }
}

/// The part of a policy that makes its chain.
fn rules_of(policy: &NetworkPolicy) -> NetworkPolicy {
    NetworkPolicy {
        default: policy.default,
        allow: policy.allow.clone(),
        deny: policy.deny.clone(),
        names: crate::policy::NameResolution::default(),
        name_servers: Vec::new(),
        limits: NetworkLimits::default(),
        open: BTreeSet::new(),
    }
}
