//! What a sandbox may reach: the policy, and the one function that decides about a name or an address.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::address::Cidr;

/// Most rules in one policy, allowed and denied together: keeps the packet filter transaction below its send buffer.
pub const RULES_MAX: usize = 1024;
/// Most bytes of a domain name in text form (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// What happens to a destination that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Verdict {
    /// The sandbox may reach it.
    Allow,
    /// The sandbox may not reach it.
    #[default]
    Deny,
}

/// One destination or a set of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// Addresses.
    Addresses(Cidr),
    /// Names, by DNS answer, TLS server name and HTTP host.
    Domain(DomainPattern),
}

impl From<Cidr> for Destination {
    fn from(range: Cidr) -> Self {
        Self::Addresses(range)
    }
}

impl From<DomainPattern> for Destination {
    fn from(pattern: DomainPattern) -> Self {
        Self::Domain(pattern)
    }
}

/// Text that is neither an address range nor a domain pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an address, an address range nor a domain name (example.com, *.example.com)")]
pub struct ParseDestinationError {
    text: String,
}

impl FromStr for Destination {
    type Err = ParseDestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(range) = text.parse::<Cidr>() {
            return Ok(range.into());
        }
        text.parse::<DomainPattern>().map(Self::from).map_err(|_| ParseDestinationError { text: text.to_owned() })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses(range) => range.fmt(formatter),
            Self::Domain(pattern) => pattern.fmt(formatter),
        }
    }
}

/// `example.com` (this name only), `*.example.com` (every name below it, not itself) or `*` (every name).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainPattern {
    /// Lower case, without a final dot; what stands behind `*.` if `below`.
    name: String,
    below: bool,
}

impl DomainPattern {
    /// Whether `name` (any case, with or without a final dot) is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !self.below {
            return name.eq_ignore_ascii_case(&self.name);
        }
        if self.name.is_empty() {
            return !name.is_empty();
        }
        let Some(split) = name.len().checked_sub(self.name.len()) else {
            return false;
        };
        match (name.get(..split), name.get(split..)) {
            (Some(front), Some(back)) => {
                front.len() > 1 && front.ends_with('.') && back.eq_ignore_ascii_case(&self.name)
            }
            _ => false,
        }
    }
}

impl FromStr for DomainPattern {
    type Err = ParseDestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDestinationError { text: text.to_owned() };
        if text == "*" {
            return Ok(Self { name: String::new(), below: true });
        }
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let numeric = name.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        // A last label of digits alone is an IPv4 address that was mistyped, never a name.
        if numeric || !is_domain_name(name) {
            return Err(error());
        }
        Ok(Self { name: name.to_ascii_lowercase(), below })
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.below, self.name.is_empty()) {
            (true, true) => formatter.write_str("*"),
            (true, false) => write!(formatter, "*.{}", self.name),
            (false, _) => formatter.write_str(&self.name),
        }
    }
}

/// Whether `name` is written as a host name: labels of letters, digits, `-` and `_`.
pub(crate) fn is_domain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// Which names a sandbox may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum NameResolution {
    /// Names that the rules allow. With [`Verdict::Deny`] and rules of addresses only, that is none: a name that is
    /// looked up carries data out of the sandbox.
    #[default]
    ByRules,
    /// Every name that no rule denies.
    Always,
}

/// How much a sandbox may do on the network at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NetworkLimits {
    /// Bytes per second that the sandbox may send, after a burst of one second's worth. What is above is dropped, which
    /// makes TCP slow down.
    pub send_bytes_per_second: Option<u64>,
    /// Bytes per second that the sandbox may receive.
    pub receive_bytes_per_second: Option<u64>,
    /// Connections to the outside that may exist at one time, in all protocols.
    pub connections: Option<u32>,
    /// New connections per second.
    pub new_connections_per_second: Option<u32>,
}

/// What a sandbox may reach outside.
///
/// Never reachable, whatever the rules say, unless [`NetworkPolicy::open`] names them: services of the host (all of its addresses, the gateway's too, except the
/// name server there), link-local addresses, and other sandboxes that share no group with it.
///
/// What a rule allows wins over what a rule denies, and both win over the default.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NetworkPolicy {
    /// What happens to destinations that no rule names.
    pub default: Verdict,
    /// Destinations that may be reached.
    pub allow: BTreeSet<Destination>,
    /// Destinations that may not be reached.
    pub deny: BTreeSet<Destination>,
    /// Which names may be looked up.
    pub names: NameResolution,
    /// Name servers to ask instead of the host's, in this order.
    pub name_servers: Vec<IpAddr>,
    /// Limits on traffic and connections.
    pub limits: NetworkLimits,
    /// Addresses that are reachable although they are of the kind that never is: the host's own (the gateway's means
    /// what listens on all addresses of the host), or a metadata service. Whatever the rules say.
    pub open: BTreeSet<IpAddr>,
}

/// A policy that cannot be carried out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyError {
    /// More rules than [`RULES_MAX`].
    #[error("a policy has at most {RULES_MAX} rules, this one has {count}")]
    TooManyRules {
        /// How many it has.
        count: usize,
    },
    /// A limit of zero, which would be no network at all.
    #[error("the network limit `{limit}` is zero; to cut a sandbox off, deny by default")]
    ZeroLimit {
        /// The field of [`NetworkLimits`].
        limit: &'static str,
    },
}

impl NetworkPolicy {
    /// Nothing outside can be reached, and no name is resolved.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Everything outside can be reached.
    #[must_use]
    pub fn all() -> Self {
        Self { default: Verdict::Allow, ..Self::default() }
    }

    /// Only these destinations can be reached.
    #[must_use]
    pub fn only(allow: impl IntoIterator<Item = Destination>) -> Self {
        Self { allow: allow.into_iter().collect(), ..Self::default() }
    }

    /// Everything but these destinations can be reached.
    #[must_use]
    pub fn all_but(deny: impl IntoIterator<Item = Destination>) -> Self {
        Self { default: Verdict::Allow, deny: deny.into_iter().collect(), ..Self::default() }
    }

    /// Whether the policy can be carried out.
    ///
    /// # Errors
    /// Too many rules, or a limit of zero.
    pub fn check(&self) -> Result<(), PolicyError> {
        let count = self.allow.len() + self.deny.len() + self.open.len();
        if count > RULES_MAX {
            return Err(PolicyError::TooManyRules { count });
        }
        let limits = &self.limits;
        let zero = [
            ("send_bytes_per_second", limits.send_bytes_per_second == Some(0)),
            ("receive_bytes_per_second", limits.receive_bytes_per_second == Some(0)),
            ("connections", limits.connections == Some(0)),
            ("new_connections_per_second", limits.new_connections_per_second == Some(0)),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((limit, _)) => Err(PolicyError::ZeroLimit { limit }),
            None => Ok(()),
        }
    }

    /// Whether any rule is about names, so that TLS and HTTP connections must be looked into.
    pub(crate) fn has_domain_rules(&self) -> bool {
        self.allow.iter().chain(&self.deny).any(|rule| matches!(rule, Destination::Domain(_)))
    }

    /// Whether the sandbox may look `name` up.
    pub(crate) fn may_resolve(&self, name: &str) -> bool {
        match self.verdict_on_name(name) {
            Some(verdict) => verdict == Verdict::Allow,
            None => self.default == Verdict::Allow || self.names == NameResolution::Always,
        }
    }

    /// What the rules say about `name`; `None` if no rule names it.
    pub(crate) fn verdict_on_name(&self, name: &str) -> Option<Verdict> {
        let names = |rules: &BTreeSet<Destination>| {
            rules.iter().any(|rule| matches!(rule, Destination::Domain(pattern) if pattern.matches(name)))
        };
        if names(&self.allow) {
            Some(Verdict::Allow)
        } else if names(&self.deny) {
            Some(Verdict::Deny)
        } else {
            None
        }
    }

    /// What the rules say about `address`; `None` if no rule names it.
    pub(crate) fn verdict_on_address(&self, address: IpAddr) -> Option<Verdict> {
        let names = |rules: &BTreeSet<Destination>| {
            rules.iter().any(|rule| matches!(rule, Destination::Addresses(range) if range.contains(address)))
        };
        if names(&self.allow) {
            Some(Verdict::Allow)
        } else if names(&self.deny) {
            Some(Verdict::Deny)
        } else {
            None
        }
    }
}

/// The address ranges among `rules`, sorted, with overlapping and touching ones joined.
pub(crate) fn joined_ranges(rules: &BTreeSet<Destination>, is_wanted: impl Fn(&Cidr) -> bool) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> = rules
        .iter()
        .filter_map(|rule| match rule {
            Destination::Addresses(range) if is_wanted(range) => Some((range.network(), range.last())),
            _ => None,
        })
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if touches(*end, first) => *end = (*end).max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// Whether a range that ends at `end` and one that begins at `first`, not before it, make one.
fn touches(end: IpAddr, first: IpAddr) -> bool {
    match (end, first) {
        (IpAddr::V4(end), IpAddr::V4(first)) => first.to_bits() <= end.to_bits().saturating_add(1),
        (IpAddr::V6(end), IpAddr::V6(first)) => first.to_bits() <= end.to_bits().saturating_add(1),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> BTreeSet<Destination> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn patterns_match_whole_labels_only() {
        let exact: DomainPattern = "Example.com.".parse().unwrap();
        assert!(exact.matches("EXAMPLE.com"));
        assert!(exact.matches("example.com."));
        assert!(!exact.matches("www.example.com"));
        assert!(!exact.matches("badexample.com"));
        let below: DomainPattern = "*.example.com".parse().unwrap();
        assert!(below.matches("a.b.example.com"));
        assert!(!below.matches("example.com"));
        assert!(!below.matches(".example.com"));
        assert!(!below.matches("badexample.com"));
        assert!(!below.matches("example.com.evil.net"));
        assert!("*".parse::<DomainPattern>().unwrap().matches("anything"));
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for wrong in
            ["", "*.", "a..b", "-a.com", "a.*.com", "a b.com", "exämple.com", "1.2.3.400", "http://a.com", "a.com/x"]
        {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn allowed_wins_over_denied_wins_over_default() {
        let policy = NetworkPolicy {
            default: Verdict::Allow,
            allow: rules(&["10.1.0.0/16", "good.example.com"]),
            deny: rules(&["10.0.0.0/8", "*.example.com"]),
            ..NetworkPolicy::default()
        };
        let on = |text: &str| policy.verdict_on_address(text.parse().unwrap());
        assert_eq!(on("10.1.2.3"), Some(Verdict::Allow));
        assert_eq!(on("10.2.2.3"), Some(Verdict::Deny));
        assert_eq!(on("8.8.8.8"), None);
        assert!(policy.may_resolve("good.example.com"));
        assert!(!policy.may_resolve("bad.example.com"));
        assert!(policy.may_resolve("other.net"));
        assert!(!NetworkPolicy::none().may_resolve("other.net"));
    }

    #[test]
    fn ranges_are_joined() {
        let all =
            rules(&["10.0.0.0/9", "10.128.0.0/9", "10.3.0.0/16", "11.0.0.0/8", "255.255.255.255", "8.8.8.8", "::/0"]);
        let joined = joined_ranges(&all, |range| range.network().is_ipv4());
        let expected: Vec<(IpAddr, IpAddr)> =
            [("8.8.8.8", "8.8.8.8"), ("10.0.0.0", "11.255.255.255"), ("255.255.255.255", "255.255.255.255")]
                .map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()))
                .to_vec();
        assert_eq!(joined, expected);
    }

    #[test]
    fn limits_of_zero_are_refused() {
        let mut policy = NetworkPolicy::all();
        policy.limits.connections = Some(0);
        assert_eq!(policy.check(), Err(PolicyError::ZeroLimit { limit: "connections" }));
    }
}
