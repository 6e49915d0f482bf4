//! What becomes of a query and of its answer, by the asking sandbox's policy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::log::LoggedVerdict;
use super::message::{AddressRecord, Question, addresses, kind};
use crate::firewall::Pin;
use crate::netlink::NetlinkError;
use crate::network::{Shared, lock};
use crate::policy::{NetworkPolicy, Verdict};
use crate::sandbox::Sandbox;

/// A pinned address holds at least this long, in seconds: programs look up once and connect later and again.
const PIN_S_MIN: u32 = 60;
/// And at most this long.
const PIN_S_MAX: u32 = 24 * 3600;
/// Most addresses pinned for one sandbox at a time; further ones are not reachable.
pub(crate) const PINS_MAX: usize = 4096;

/// What to do with a query.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Ask upstream: these servers, or the host's if none are named.
    Forward(Vec<IpAddr>),
    /// Answer that there is no such name.
    Deny,
    /// Answer that the name has no such record.
    Empty,
    /// Answer with the addresses of a neighbour in a group.
    Neighbour(Vec<IpAddr>),
}

/// Judges a query.
pub(crate) fn decide(shared: &Shared, sandbox: &Sandbox, question: &Question) -> (Decision, LoggedVerdict) {
    if let Some(addresses) = neighbour(shared, sandbox, &question.name) {
        return (Decision::Neighbour(addresses), LoggedVerdict::Allowed);
    }
    let policy = Arc::clone(&lock(&sandbox.state).policy);
    if !policy.may_resolve(&question.name) {
        return (Decision::Deny, LoggedVerdict::Denied);
    }
    // Service bindings carry keys that hide the name in TLS, and addresses that nobody would pin.
    let is_binding = matches!(question.kind, kind::SVCB | kind::HTTPS);
    let is_unusable = question.kind == kind::AAAA && !shared.configuration.with_ipv6;
    if is_unusable || is_binding && policy.has_domain_rules() {
        return (Decision::Empty, LoggedVerdict::Allowed);
    }
    (Decision::Forward(policy.name_servers.clone()), LoggedVerdict::Allowed)
}

/// The addresses of the group member called `name`, as the asking sandbox must use them.
fn neighbour(shared: &Shared, sandbox: &Sandbox, name: &str) -> Option<Vec<IpAddr>> {
    let slot = lock(&sandbox.state).groups.iter().find_map(|group| group.find(name))?;
    let plan = &shared.configuration.addresses;
    let (v4, v6) = if slot == sandbox.slot {
        (plan.inside_v4, plan.inside_v6)
    } else {
        (plan.outside_v4_of(slot), plan.outside_v6_of(slot))
    };
    let mut addresses = vec![v4.into()];
    if shared.configuration.with_ipv6 {
        addresses.push(v6.into());
    }
    Some(addresses)
}

/// How long, in seconds, a neighbour's address may be kept: members come and go.
pub(crate) const NEIGHBOUR_TTL_S: u32 = 5;

/// Makes the addresses in an answer reachable where the name, and not the default, is what allows it. Must be done before
/// the sandbox sees the answer, or its first packet would come too early.
pub(crate) fn pin_answer(shared: &Shared, sandbox: &Sandbox, question: &Question, answer: &[u8]) -> Vec<IpAddr> {
    let records = addresses(answer, question).unwrap_or_default();
    let policy = Arc::clone(&lock(&sandbox.state).policy);
    if needs_pins(&policy, &question.name)
        && let Err(error) = pin(shared, sandbox, &records)
    {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            name = question.name,
            "an allowed name could not be made reachable"
        );
    }
    records.iter().map(|record| record.address).collect()
}

fn needs_pins(policy: &NetworkPolicy, name: &str) -> bool {
    policy.verdict_on_name(name) == Some(Verdict::Allow)
}

fn pin(shared: &Shared, sandbox: &Sandbox, records: &[AddressRecord]) -> Result<(), NetlinkError> {
    let now = Instant::now();
    let mut filter = lock(&shared.filter);
    let mut state = lock(&sandbox.state);
    if state.pinned.len() + records.len() > PINS_MAX {
        state.pinned.retain(|_, until| *until > now);
    }
    let mut pins = Vec::new();
    for record in records {
        let is_new = !state.pinned.contains_key(&record.address);
        let is_never = shared.never.iter().any(|range| range.contains(record.address));
        let is_refused = !shared.configuration.private_answers && is_private(record.address);
        if is_never || is_refused || is_new && state.pinned.len() >= PINS_MAX {
            continue;
        }
        let time = Duration::from_secs(record.ttl_s.clamp(PIN_S_MIN, PIN_S_MAX).into());
        state.pinned.insert(record.address, now + time);
        pins.push(Pin { address: record.address, time });
    }
    filter.firewall.pin(sandbox.port.interface, &pins)
}

/// Whether `address` belongs to somebody's inner network (RFC 1918, 6598, 4193): a name that leads there from outside is
/// an attempt to rebind it.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}
