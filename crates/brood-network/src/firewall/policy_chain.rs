//! The chain of one policy, and the chains of one sandbox's limits.

use super::expression::{Family, Rule, protocol, state};
use super::skeleton::{LIMITS_RECEIVED, LIMITS_SENT, REFUSE, pinned_set};
use super::transaction::{SetKind, Transaction};
use crate::netlink::link::InterfaceIndex;
use crate::policy::{NetworkLimits, NetworkPolicy, Verdict, joined_ranges};

/// Bytes that a rate limit lets pass at once, besides what the kernel always adds to it: the rate times one second. One
/// segment as big as the kernel hands it to a veth must fit, or nothing would ever pass.
const BURST_BYTES: u32 = 128 * 1024;

/// The number of a policy: the mark of the connections that it let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PolicyId(pub(crate) u32);

impl PolicyId {
    pub(super) fn chain(self) -> String {
        format!("policy_{:08x}", self.0)
    }

    fn set(self, kind: &str, family: Family) -> String {
        match family {
            Family::V4 => format!("{kind}_{:08x}_v4", self.0),
            Family::V6 => format!("{kind}_{:08x}_v6", self.0),
        }
    }
}

/// Creates the chain and its sets. Packets that it does not accept are refused, here or by its caller.
pub(super) fn write(change: &mut Transaction<'_>, id: PolicyId, policy: &NetworkPolicy, with_v6: bool) {
    let chain = id.chain();
    let accept = |rule: Rule| rule.mark(id.0).accept();
    change.add_chain(&chain);
    change.add_rule(&chain, &Rule::new().marked(id.0).accept());
    for family in families(with_v6) {
        if let Some(set) = write_ranges(change, id, policy, List::Allow, family) {
            let rule = Rule::new().family(family).destination_in(family, &set);
            change.add_rule(&chain, &accept(rule));
        }
    }
    if policy.has_domain_rules() {
        write_domain_rules(change, &chain);
        for family in families(with_v6) {
            let rule = Rule::new().family(family).interface_and_destination_in(family, pinned_set(family));
            change.add_rule(&chain, &accept(rule));
        }
    }
    for family in families(with_v6) {
        if let Some(set) = write_ranges(change, id, policy, List::Deny, family) {
            let rule = Rule::new().family(family).destination_in(family, &set);
            change.add_rule(&chain, &rule.jump(REFUSE));
        }
    }
    if policy.default == Verdict::Allow {
        change.add_rule(&chain, &accept(Rule::new()));
    }
}

/// What can carry a name must go through the proxy, which judges the name: TCP to these ports that comes here was not
/// redirected (it began under another policy), and QUIC cannot be looked into, so that programs must fall back to TCP.
fn write_domain_rules(change: &mut Transaction<'_>, chain: &str) {
    for (number, port) in [(protocol::TCP, 80), (protocol::TCP, 443), (protocol::UDP, 443)] {
        let rule = Rule::new().protocol(number).destination_port(port);
        change.add_rule(chain, &rule.jump(REFUSE));
    }
}

#[derive(Debug, Clone, Copy)]
enum List {
    Allow,
    Deny,
}

impl List {
    fn prefix(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    fn of(self, policy: &NetworkPolicy) -> &std::collections::BTreeSet<crate::policy::Destination> {
        match self {
            Self::Allow => &policy.allow,
            Self::Deny => &policy.deny,
        }
    }
}

fn families(with_v6: bool) -> impl Iterator<Item = Family> {
    Family::BOTH.into_iter().filter(move |family| with_v6 || *family == Family::V4)
}

/// Creates the set of one list's ranges, if there are any.
fn write_ranges(
    change: &mut Transaction<'_>,
    id: PolicyId,
    policy: &NetworkPolicy,
    list: List,
    family: Family,
) -> Option<String> {
    let ranges = joined_ranges(list.of(policy), |range| Family::of(range.network()) == family);
    if ranges.is_empty() {
        return None;
    }
    let set = id.set(list.prefix(), family);
    change.add_set(&set, SetKind::Ranges(family));
    change.add_ranges(&set, &ranges);
    Some(set)
}

/// Deletes what [`write`] created.
pub(super) fn delete(change: &mut Transaction<'_>, id: PolicyId, policy: &NetworkPolicy, with_v6: bool) {
    change.delete_chain(&id.chain());
    for list in [List::Allow, List::Deny] {
        for family in families(with_v6) {
            let ranges = joined_ranges(list.of(policy), |range| Family::of(range.network()) == family);
            if !ranges.is_empty() {
                change.delete_set(&id.set(list.prefix(), family));
            }
        }
    }
}

fn chain_of_sent(port: InterfaceIndex) -> String {
    format!("sent_{}", port.0)
}

fn chain_of_received(port: InterfaceIndex) -> String {
    format!("received_{}", port.0)
}

fn limits_sending(limits: &NetworkLimits) -> bool {
    limits.send_bytes_per_second.is_some()
        || limits.connections.is_some()
        || limits.new_connections_per_second.is_some()
}

/// Creates the chains of a sandbox's limits, if it has any.
pub(super) fn write_limits(change: &mut Transaction<'_>, port: InterfaceIndex, limits: &NetworkLimits) {
    if limits_sending(limits) {
        let chain = chain_of_sent(port);
        change.add_chain(&chain);
        if let Some(rate) = limits.send_bytes_per_second {
            change.add_rule(&chain, &over(rate).drop());
        }
        if let Some(rate) = limits.new_connections_per_second {
            let rule = Rule::new().state(state::NEW).over_packets_per_second(rate.into(), rate);
            change.add_rule(&chain, &rule.jump(REFUSE));
        }
        if let Some(count) = limits.connections {
            let rule = Rule::new().state(state::NEW).over_connections(count);
            change.add_rule(&chain, &rule.jump(REFUSE));
        }
        change.map_to_chain(LIMITS_SENT, port, &chain);
    }
    if let Some(rate) = limits.receive_bytes_per_second {
        let chain = chain_of_received(port);
        change.add_chain(&chain);
        change.add_rule(&chain, &over(rate).drop());
        change.map_to_chain(LIMITS_RECEIVED, port, &chain);
    }
}

fn over(bytes_per_second: u64) -> Rule {
    Rule::new().over_bytes_per_second(bytes_per_second, BURST_BYTES)
}

/// Deletes what [`write_limits`] created.
pub(super) fn delete_limits(change: &mut Transaction<'_>, port: InterfaceIndex, limits: &NetworkLimits) {
    if limits_sending(limits) {
        change.delete_interface(LIMITS_SENT, port);
        change.delete_chain(&chain_of_sent(port));
    }
    if limits.receive_bytes_per_second.is_some() {
        change.delete_interface(LIMITS_RECEIVED, port);
        change.delete_chain(&chain_of_received(port));
    }
}
