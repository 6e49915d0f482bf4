//! Address ranges, and the plan of which address a sandbox has inside and outside.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, `10.0.0.0/8` or `fe80::/10`. Host bits are always zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    network: IpAddr,
    prefix_bits: u8,
}

/// Text that is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address or an address range such as 10.0.0.0/8")]
pub struct ParseCidrError {
    text: String,
}

impl Cidr {
    /// The range of all addresses that share `prefix_bits` leading bits with `address`; `None` if there are not so many.
    #[must_use]
    pub const fn new(address: IpAddr, prefix_bits: u8) -> Option<Self> {
        let network = match address {
            IpAddr::V4(address) if prefix_bits <= 32 => {
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix_bits)))
            }
            IpAddr::V6(address) if prefix_bits <= 128 => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask_v6(prefix_bits)))
            }
            _ => return None,
        };
        Some(Self { network, prefix_bits })
    }

    /// The range of this one address.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
        Self { network: address, prefix_bits }
    }

    /// The lowest address.
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// How many leading bits all addresses of the range share.
    #[must_use]
    pub const fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// The highest address.
    #[must_use]
    pub const fn last(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(network) => IpAddr::V4(Ipv4Addr::from_bits(network.to_bits() | !mask_v4(self.prefix_bits))),
            IpAddr::V6(network) => IpAddr::V6(Ipv6Addr::from_bits(network.to_bits() | !mask_v6(self.prefix_bits))),
        }
    }

    /// Whether `address` is in the range. An IPv4 address is never in an IPv6 range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::new(address, self.prefix_bits).is_some_and(|range| range == *self)
            && address.is_ipv4() == self.network.is_ipv4()
    }
}

const fn mask_v4(prefix_bits: u8) -> u32 {
    match prefix_bits {
        0 => 0,
        bits => u32::MAX << (32 - bits),
    }
}

const fn mask_v6(prefix_bits: u8) -> u128 {
    match prefix_bits {
        0 => 0,
        bits => u128::MAX << (128 - bits),
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.prefix_bits)
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    /// Reads `10.1.2.3/8` (host bits are dropped) or a single address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once('/') {
            None => text.parse().ok().map(Self::host),
            Some((address, bits)) => {
                address.parse().ok().zip(bits.parse().ok()).and_then(|(address, bits)| Self::new(address, bits))
            }
        };
        parsed.ok_or_else(|| ParseCidrError { text: text.to_owned() })
    }
}

/// The number of a sandbox in the outer ranges: what tells sandboxes apart outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u16);

/// Which addresses are used.
///
/// Every sandbox sees the same three addresses: its own, its gateway's (which is also its name server's), and nothing
/// else. On the host side of its veth the sandbox's address is replaced by one that no other sandbox has, without
/// connection tracking and in both directions; from there on the host tells sandboxes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressPlan {
    /// The sandbox's own IPv4 address, the same in every sandbox.
    pub inside_v4: Ipv4Addr,
    /// The gateway and name server, the same in every sandbox, and on the host an address of its loopback device.
    pub gateway_v4: Ipv4Addr,
    /// The range that holds both.
    pub inside_prefix_bits_v4: u8,
    /// The /16 from which each sandbox gets its address outside.
    pub outside_v4: Ipv4Addr,
    /// The sandbox's own IPv6 address.
    pub inside_v6: Ipv6Addr,
    /// The IPv6 gateway and name server.
    pub gateway_v6: Ipv6Addr,
    /// The range that holds both.
    pub inside_prefix_bits_v6: u8,
    /// The /112 from which each sandbox gets its IPv6 address outside.
    pub outside_v6: Ipv6Addr,
}

/// Prefix length of [`AddressPlan::outside_v4`]: one address for each value of a slot's 16 bits.
pub(crate) const OUTSIDE_PREFIX_BITS_V4: u8 = 16;
/// Prefix length of [`AddressPlan::outside_v6`].
pub(crate) const OUTSIDE_PREFIX_BITS_V6: u8 = 112;

impl Default for AddressPlan {
    /// 198.18.0.0/15, the range of RFC 2544: never routed on the Internet, rarely used inside, and unlike 169.254.0.0/16
    /// taken for an ordinary address by every program. For IPv6 a unique local prefix of RFC 4193.
    fn default() -> Self {
        Self {
            inside_v4: Ipv4Addr::new(198, 18, 0, 2),
            gateway_v4: Ipv4Addr::new(198, 18, 0, 1),
            inside_prefix_bits_v4: 30,
            outside_v4: Ipv4Addr::new(198, 19, 0, 0),
            inside_v6: Ipv6Addr::new(0xfd62, 0x726f, 0x6f64, 0, 0, 0, 0, 2),
            gateway_v6: Ipv6Addr::new(0xfd62, 0x726f, 0x6f64, 0, 0, 0, 0, 1),
            inside_prefix_bits_v6: 64,
            outside_v6: Ipv6Addr::new(0xfd62, 0x726f, 0x6f64, 1, 0, 0, 0, 0),
        }
    }
}

impl AddressPlan {
    pub(crate) fn outside_v4_of(&self, slot: Slot) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.outside_v4.to_bits() | u32::from(slot.0))
    }

    pub(crate) fn outside_v6_of(&self, slot: Slot) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.outside_v6.to_bits() | u128::from(slot.0))
    }

    /// The sandbox that a packet with this outer address came from.
    pub(crate) fn slot_of(&self, address: IpAddr) -> Option<Slot> {
        if !self.outside_range_of(address).contains(address) {
            return None;
        }
        let bits = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        u16::try_from(bits & u128::from(u16::MAX)).ok().map(Slot)
    }

    fn outside_range_of(&self, address: IpAddr) -> Cidr {
        if address.is_ipv4() { self.outside_range_v4() } else { self.outside_range_v6() }
    }

    pub(crate) fn outside_range_v4(&self) -> Cidr {
        Cidr::new(self.outside_v4.into(), OUTSIDE_PREFIX_BITS_V4).expect("16 bits fit in 32")
    }

    pub(crate) fn outside_range_v6(&self) -> Cidr {
        Cidr::new(self.outside_v6.into(), OUTSIDE_PREFIX_BITS_V6).expect("112 bits fit in 128")
    }

    pub(crate) fn inside_range_v4(&self) -> Cidr {
        Cidr::new(self.inside_v4.into(), self.inside_prefix_bits_v4).expect("checked at start")
    }

    pub(crate) fn inside_range_v6(&self) -> Cidr {
        Cidr::new(self.inside_v6.into(), self.inside_prefix_bits_v6).expect("checked at start")
    }

    /// Whether the plan holds together: host bits zero, gateway and sandbox in one range and different.
    pub(crate) fn is_sound(&self) -> bool {
        let inside_v4 = Cidr::new(self.inside_v4.into(), self.inside_prefix_bits_v4);
        let inside_v6 = Cidr::new(self.inside_v6.into(), self.inside_prefix_bits_v6);
        inside_v4.is_some_and(|range| range.contains(self.gateway_v4.into()))
            && inside_v6.is_some_and(|range| range.contains(self.gateway_v6.into()))
            && self.inside_v4 != self.gateway_v4
            && self.inside_v6 != self.gateway_v6
            && self.outside_range_v4().network() == IpAddr::V4(self.outside_v4)
            && self.outside_range_v6().network() == IpAddr::V6(self.outside_v6)
            && !self.outside_range_v4().contains(self.inside_v4.into())
            && !self.outside_range_v6().contains(self.inside_v6.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_printed() {
        let range: Cidr = "10.1.2.3/8".parse().unwrap();
        assert_eq!(range.to_string(), "10.0.0.0/8");
        assert_eq!(range.last(), "10.255.255.255".parse::<IpAddr>().unwrap());
        assert_eq!("::1".parse::<Cidr>().unwrap().prefix_bits(), 128);
        assert_eq!("0.0.0.0/0".parse::<Cidr>().unwrap().prefix_bits(), 0);
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "a/8", "1.2.3.4/-1"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn containment_keeps_the_families_apart() {
        let all_v4: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all_v4.contains("8.8.8.8".parse().unwrap()));
        assert!(!all_v4.contains("::1".parse().unwrap()));
        let all_v6: Cidr = "::/0".parse().unwrap();
        assert!(!all_v6.contains("8.8.8.8".parse().unwrap()));
    }

    #[test]
    fn slots_map_to_addresses_and_back() {
        let plan = AddressPlan::default();
        assert!(plan.is_sound());
        for slot in [0, 1, 255, 256, u16::MAX].map(Slot) {
            assert_eq!(plan.slot_of(plan.outside_v4_of(slot).into()), Some(slot));
            assert_eq!(plan.slot_of(plan.outside_v6_of(slot).into()), Some(slot));
        }
        assert_eq!(plan.slot_of(plan.inside_v4.into()), None);
        assert_eq!(plan.slot_of("8.8.8.8".parse().unwrap()), None);
    }
}
