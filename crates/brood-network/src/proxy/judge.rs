//! Whether a sandbox may have a connection to an address under a name.

use std::net::IpAddr;

use crate::address::Cidr;
use crate::policy::{NetworkPolicy, Verdict};

/// Judges a connection to `address` in which the client names `name`.
///
/// `is_pinned` tells whether an allowed name led to the address. Without it a name proves nothing: whoever sends the
/// bytes can write any name into them.
pub(crate) fn judge(
    policy: &NetworkPolicy,
    never: &[Cidr],
    address: IpAddr,
    name: Option<&str>,
    is_pinned: impl FnOnce() -> bool,
) -> Verdict {
    if never.iter().any(|range| range.contains(address)) {
        return Verdict::Deny;
    }
    let on_address = policy.verdict_on_address(address);
    if on_address == Some(Verdict::Allow) {
        return Verdict::Allow;
    }
    let otherwise = on_address.unwrap_or(policy.default);
    match name.and_then(|name| policy.verdict_on_name(name)) {
        Some(Verdict::Deny) => Verdict::Deny,
        Some(Verdict::Allow) if is_pinned() => Verdict::Allow,
        Some(Verdict::Allow) | None => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(policy: &NetworkPolicy, address: &str, name: Option<&str>, is_pinned: bool) -> Verdict {
        let never = ["169.254.0.0/16".parse().unwrap()];
        judge(policy, &never, address.parse().unwrap(), name, || is_pinned)
    }

    #[test]
    fn allow_lists() {
        let policy = NetworkPolicy::only(["good.com".parse().unwrap(), "9.9.9.0/24".parse().unwrap()]);
        let on = |address, name, is_pinned| verdict(&policy, address, name, is_pinned);
        assert_eq!(on("1.1.1.1", Some("good.com"), true), Verdict::Allow);
        assert_eq!(on("1.1.1.1", Some("good.com"), false), Verdict::Deny, "a name alone proves nothing");
        assert_eq!(on("1.1.1.1", Some("evil.com"), true), Verdict::Deny, "a shared address is not enough");
        assert_eq!(on("1.1.1.1", None, true), Verdict::Deny);
        assert_eq!(on("9.9.9.9", None, false), Verdict::Allow);
        assert_eq!(on("169.254.169.254", Some("good.com"), true), Verdict::Deny);
    }

    #[test]
    fn deny_lists() {
        let policy = NetworkPolicy::all_but(["evil.com".parse().unwrap(), "9.9.9.0/24".parse().unwrap()]);
        let on = |address, name| verdict(&policy, address, name, false);
        assert_eq!(on("1.1.1.1", Some("evil.com")), Verdict::Deny);
        assert_eq!(on("1.1.1.1", Some("other.com")), Verdict::Allow);
        assert_eq!(on("1.1.1.1", None), Verdict::Allow);
        assert_eq!(on("9.9.9.9", Some("other.com")), Verdict::Deny);
    }
}
