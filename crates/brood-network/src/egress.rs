//! The network options of the E2B protocol, as a policy.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::Cidr;
use crate::policy::{Destination, NetworkPolicy, ParseDestinationError, PolicyError, Verdict};

/// The options of a create request or a network update, as they come. What an update leaves out is cleared, so the policy
/// is made from one set of options alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressOptions {
    /// `allow_internet_access`; `false` denies everything that `allow_out` does not name.
    pub allow_internet_access: Option<bool>,
    /// `allowOut`: addresses, ranges, names and `*.names`.
    pub allow_out: Vec<String>,
    /// `denyOut`: addresses and ranges.
    pub deny_out: Vec<String>,
    /// `dnsServers`.
    pub dns_servers: Vec<String>,
}

/// Options that make no policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EgressError {
    /// Text that is no destination.
    #[error("the {option} option holds something that is no destination")]
    Destination {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        source: ParseDestinationError,
    },
    /// A name where only addresses may stand.
    #[error(
        "denyOut takes addresses and ranges only, and {text:?} is a name; name what is allowed in allowOut instead"
    )]
    NameDenied {
        /// The name.
        text: String,
    },
    /// Names are allowed although everything is.
    #[error("names in allowOut have no effect unless denyOut holds 0.0.0.0/0")]
    NamesWithoutDenyAll,
    /// A name server that is no address.
    #[error("{text:?} in dnsServers is not an address")]
    NameServer {
        /// The text.
        text: String,
    },
    /// A policy that cannot be carried out.
    #[error("the options make a policy that cannot be carried out")]
    Policy(#[from] PolicyError),
}

impl EgressOptions {
    /// The policy that these options mean. Allowed wins over denied.
    ///
    /// # Errors
    /// Malformed or contradicting options.
    pub fn to_policy(&self) -> Result<NetworkPolicy, EgressError> {
        let allow = destinations("allowOut", &self.allow_out)?;
        let mut deny = destinations("denyOut", &self.deny_out)?;
        if let Some(Destination::Domain(pattern)) = deny.iter().find(|rule| matches!(rule, Destination::Domain(_))) {
            return Err(EgressError::NameDenied { text: pattern.to_string() });
        }
        // "Everything" is meant for both families: an IPv6 way round it would be a surprise.
        let before = deny.len();
        deny.retain(|rule| !is_everything(rule));
        let denies_all = deny.len() < before || self.allow_internet_access == Some(false);
        let names_allowed = allow.iter().any(|rule| matches!(rule, Destination::Domain(_)));
        if names_allowed && !denies_all {
            return Err(EgressError::NamesWithoutDenyAll);
        }
        let name_servers = self
            .dns_servers
            .iter()
            .map(|text| text.parse::<IpAddr>().map_err(|_| EgressError::NameServer { text: text.clone() }))
            .collect::<Result<_, _>>()?;
        let policy = NetworkPolicy {
            default: if denies_all { Verdict::Deny } else { Verdict::Allow },
            allow,
            deny,
            name_servers,
            ..NetworkPolicy::default()
        };
        policy.check()?;
        Ok(policy)
    }
}

fn destinations(option: &'static str, texts: &[String]) -> Result<BTreeSet<Destination>, EgressError> {
    texts.iter().map(|text| text.parse().map_err(|source| EgressError::Destination { option, source })).collect()
}

fn is_everything(rule: &Destination) -> bool {
    let prefix_bits = |range: &Cidr| range.prefix_bits();
    matches!(rule, Destination::Addresses(range) if prefix_bits(range) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn no_options_allow_everything() {
        assert_eq!(EgressOptions::default().to_policy().unwrap(), NetworkPolicy::all());
    }

    #[test]
    fn no_internet_is_the_same_as_denying_everything() {
        let switch = EgressOptions { allow_internet_access: Some(false), ..EgressOptions::default() };
        let list = EgressOptions { deny_out: texts(&["0.0.0.0/0"]), ..EgressOptions::default() };
        assert_eq!(switch.to_policy().unwrap(), NetworkPolicy::none());
        assert_eq!(list.to_policy().unwrap(), NetworkPolicy::none());
    }

    #[test]
    fn names_need_everything_else_denied() {
        let mut options = EgressOptions { allow_out: texts(&["*.example.com", "8.8.8.8"]), ..EgressOptions::default() };
        assert_eq!(options.to_policy(), Err(EgressError::NamesWithoutDenyAll));
        options.deny_out = texts(&["0.0.0.0/0", "10.0.0.0/8"]);
        let policy = options.to_policy().unwrap();
        assert_eq!(policy.default, Verdict::Deny);
        assert_eq!((policy.allow.len(), policy.deny.len()), (2, 1));
        assert!(policy.may_resolve("a.example.com"));
        assert!(!policy.may_resolve("example.org"));
    }

    #[test]
    fn wrong_options_are_named() {
        let denied = EgressOptions { deny_out: texts(&["example.com"]), ..EgressOptions::default() };
        assert!(matches!(denied.to_policy(), Err(EgressError::NameDenied { .. })));
        let server = EgressOptions { dns_servers: texts(&["dns.example"]), ..EgressOptions::default() };
        assert!(matches!(server.to_policy(), Err(EgressError::NameServer { .. })));
        let garbage = EgressOptions { allow_out: texts(&["a b"]), ..EgressOptions::default() };
        assert!(matches!(garbage.to_policy(), Err(EgressError::Destination { option: "allowOut", .. })));
    }
}
