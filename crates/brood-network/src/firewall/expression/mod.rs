//! Packet filter expressions: a rule is a list of them, run from left to right until one does not match.

mod actions;
mod matches;

use std::fmt;
use std::net::IpAddr;

use netlink_bindings::nftables::{CmpOps, CtKeys, MetaKeys, PayloadBase, PushExprListAttrs, VerdictCode};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::{finalize_nested_header, push_header, push_nested_header};

/// The verdict register, and two 16-byte ones. Every rule of ours needs at most two values at a time.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;
/// The 4-byte register behind the first four bytes of [`FIRST`]: the second field of a concatenation.
const FIRST_PLUS_4: u32 = 9;

/// Numbers that the generated bindings lack or have wrong, from `linux/netfilter/nf_tables.h`.
mod number {
    pub(super) const ELEMENT: u16 = 1;
    pub(super) const NAME: u16 = 1;
    pub(super) const DATA: u16 = 2;
    /// `NFT_FIB_RESULT_ADDRTYPE`; the bindings count from 0 what the kernel counts from 1.
    pub(super) const FIB_ADDRESS_TYPE: u32 = 3;
    pub(super) const DYNAMIC_SET: u16 = 1;
    pub(super) const DYNAMIC_OPERATION: u16 = 3;
    pub(super) const DYNAMIC_KEY: u16 = 4;
    pub(super) const DYNAMIC_EXPRESSION: u16 = 7;
    /// `NFT_DYNSET_OP_ADD`: find the element, or make it.
    pub(super) const DYNAMIC_ADD: u32 = 0;
    pub(super) const LOOKUP_SET: u16 = 1;
    pub(super) const LOOKUP_SOURCE: u16 = 2;
    pub(super) const LOOKUP_DESTINATION: u16 = 3;
    pub(super) const LIMIT_RATE: u16 = 1;
    pub(super) const LIMIT_UNIT: u16 = 2;
    pub(super) const LIMIT_BURST: u16 = 3;
    pub(super) const LIMIT_TYPE: u16 = 4;
    pub(super) const LIMIT_FLAGS: u16 = 5;
    pub(super) const LIMIT_TYPE_PACKETS: u32 = 0;
    pub(super) const LIMIT_TYPE_BYTES: u32 = 1;
    /// `NFT_LIMIT_F_INV`: match what is over the limit.
    pub(super) const LIMIT_OVER: u32 = 1;
    pub(super) const CONNECTIONS_COUNT: u16 = 1;
    pub(super) const CONNECTIONS_FLAGS: u16 = 2;
    /// `NFT_CONNLIMIT_F_INV`: match what is over the limit.
    pub(super) const CONNECTIONS_OVER: u32 = 1;
    /// `NFT_PAYLOAD_CSUM_INET` and `NFT_PAYLOAD_L4CSUM_PSEUDOHDR`.
    pub(super) const CHECKSUM_INTERNET: u32 = 1;
    pub(super) const CHECKSUM_PSEUDO_HEADER: u32 = 1;
    /// `NFT_NAT_DNAT`.
    pub(super) const NAT_DESTINATION: u32 = 1;
}

/// Bits of `ct state` (`linux/netfilter/nf_conntrack_common.h`, as nf_tables numbers them).
pub(crate) mod state {
    pub(crate) const INVALID: u32 = 1;
    pub(crate) const ESTABLISHED: u32 = 2;
    pub(crate) const RELATED: u32 = 4;
    pub(crate) const NEW: u32 = 8;
}

/// `IPS_DST_NAT`: something rewrote where this connection goes.
const STATUS_DESTINATION_NAT: u32 = 1 << 5;
/// `RTN_LOCAL`: the address is one of the host's own.
const ADDRESS_TYPE_LOCAL: u32 = 2;

/// The two families of packets that the table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
    fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    fn address_bytes(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    fn source_offset(self) -> u32 {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    fn destination_offset(self) -> u32 {
        self.source_offset() + self.address_bytes()
    }

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Protocol numbers in `meta l4proto`.
pub(crate) mod protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMP_V6: u8 = 58;
}

/// The expressions of one rule, encoded.
pub(crate) struct Rule(PushExprListAttrs<Vec<u8>>);

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Rule").field(&self.encoded()).finish()
    }
}

impl Rule {
    pub(crate) fn new() -> Self {
        Self(PushExprListAttrs::new(Vec::with_capacity(256)))
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        self.0.as_vec()
    }

    pub(super) fn source(self, family: Family) -> Self {
        self.load(PayloadBase::NetworkHeader, family.source_offset(), family.address_bytes())
    }

    pub(super) fn destination(self, family: Family) -> Self {
        self.load(PayloadBase::NetworkHeader, family.destination_offset(), family.address_bytes())
    }

    pub(super) fn meta(mut self, key: MetaKeys) -> Self {
        self.0 =
            self.0.nested_elem().nested_data_meta().push_dreg(FIRST).push_key(key as u32).end_nested().end_nested();
        self
    }

    pub(super) fn connection(mut self, key: CtKeys) -> Self {
        self.0 = self.0.nested_elem().nested_data_ct().push_dreg(FIRST).push_key(key as u32).end_nested().end_nested();
        self
    }

    pub(super) fn load(self, base: PayloadBase, offset: u32, length: u32) -> Self {
        self.load_into(FIRST, base, offset, length)
    }

    pub(super) fn load_into(mut self, register: u32, base: PayloadBase, offset: u32, length: u32) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_payload()
            .push_dreg(register)
            .push_base(base as u32)
            .push_offset(offset)
            .push_len(length)
            .end_nested()
            .end_nested();
        self
    }

    /// Writes the address in [`SECOND`] into the network header, and corrects the checksums that cover it.
    pub(super) fn store_address(mut self, family: Family, offset: u32) -> Self {
        let payload = self
            .0
            .nested_elem()
            .nested_data_payload()
            .push_sreg(SECOND)
            .push_base(PayloadBase::NetworkHeader as u32)
            .push_offset(offset)
            .push_len(family.address_bytes());
        let payload = match family {
            Family::V4 => payload.push_csum_type(number::CHECKSUM_INTERNET).push_csum_offset(10),
            Family::V6 => payload,
        };
        self.0 = payload.push_csum_flags(number::CHECKSUM_PSEUDO_HEADER).end_nested().end_nested();
        self
    }

    pub(super) fn compare(mut self, register: u32, operation: CmpOps, value: &[u8]) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_cmp()
            .push_sreg(register)
            .push_op(operation as u32)
            .nested_data()
            .push_value(value)
            .end_nested()
            .end_nested()
            .end_nested();
        self
    }

    pub(super) fn any_bit(mut self, bits: u32) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_bitwise()
            .push_sreg(FIRST)
            .push_dreg(FIRST)
            .push_len(4)
            .nested_mask()
            .push_value(&bits.to_ne_bytes())
            .end_nested()
            .nested_xor()
            .push_value(&[0; 4])
            .end_nested()
            .end_nested()
            .end_nested();
        self.compare(FIRST, CmpOps::Neq, &[0; 4])
    }

    pub(super) fn lookup(self, set: &str) -> Self {
        self.lookup_into(set, None)
    }

    pub(super) fn lookup_value(self, map: &str) -> Self {
        self.lookup_into(map, Some(SECOND))
    }

    pub(super) fn lookup_verdict(self, map: &str) -> Self {
        self.lookup_into(map, Some(VERDICT))
    }

    /// By hand: the kernel's machine-readable description, and so the bindings, number these attributes wrongly.
    pub(super) fn lookup_into(self, set: &str, register: Option<u32>) -> Self {
        self.raw("lookup", |buffer| {
            push_text(buffer, number::LOOKUP_SET, set);
            push_u32(buffer, number::LOOKUP_SOURCE, FIRST);
            if let Some(register) = register {
                push_u32(buffer, number::LOOKUP_DESTINATION, register);
            }
        })
    }

    pub(super) fn immediate(mut self, register: u32, value: &[u8]) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_immediate()
            .push_dreg(register)
            .nested_data()
            .push_value(value)
            .end_nested()
            .end_nested()
            .end_nested();
        self
    }

    pub(super) fn verdict(mut self, code: VerdictCode) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_immediate()
            .push_dreg(VERDICT)
            .nested_data()
            .nested_verdict()
            .push_code(code as u32)
            .end_nested()
            .end_nested()
            .end_nested()
            .end_nested();
        self
    }

    pub(super) fn limit(self, kind: u32, rate_per_second: u64, burst: u32) -> Self {
        self.raw("limit", |buffer| {
            push_u64(buffer, number::LIMIT_RATE, rate_per_second);
            push_u64(buffer, number::LIMIT_UNIT, 1);
            push_u32(buffer, number::LIMIT_BURST, burst);
            push_u32(buffer, number::LIMIT_TYPE, kind);
            push_u32(buffer, number::LIMIT_FLAGS, number::LIMIT_OVER);
        })
    }

    /// An expression that the bindings do not know.
    pub(super) fn raw(mut self, name: &str, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        let buffer = self.0.as_vec_mut();
        push_expression(buffer, number::ELEMENT, name, fill);
        self
    }
}

fn push_expression(buffer: &mut Vec<u8>, kind: u16, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    let expression = push_nested_header(buffer, kind);
    push_text(buffer, number::NAME, name);
    let data = push_nested_header(buffer, number::DATA);
    fill(buffer);
    finalize_nested_header(buffer, data);
    finalize_nested_header(buffer, expression);
}

fn push_text(buffer: &mut Vec<u8>, kind: u16, text: &str) {
    let length = u16::try_from(text.len() + 1).expect("names in the packet filter are short");
    push_header(buffer, kind, length);
    buffer.extend_from_slice(text.as_bytes());
    buffer.push(0);
}

fn push_u32(buffer: &mut Vec<u8>, kind: u16, value: u32) {
    push_header(buffer, kind, 4);
    buffer.extend_from_slice(&value.to_be_bytes());
}

fn push_u64(buffer: &mut Vec<u8>, kind: u16, value: u64) {
    push_header(buffer, kind, 8);
    buffer.extend_from_slice(&value.to_be_bytes());
}

/// The address as it stands in a packet.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
