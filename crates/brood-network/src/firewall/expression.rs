//! Packet filter expressions: a rule is a list of them, run from left to right until one does not match.

use std::fmt;
use std::net::IpAddr;

use netlink_bindings::nftables::{
    CmpOps, CtKeys, FibFlags, MetaKeys, NatRangeFlags, PayloadBase, PushExprListAttrs, RejectInetCode, RejectTypes,
    VerdictCode,
};
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

    // ---- matches ----

    /// The packet came in over one of our veths.
    pub(crate) fn entering_by(self, group: u32) -> Self {
        self.meta(MetaKeys::Iifgroup).compare(FIRST, CmpOps::Eq, &group.to_ne_bytes())
    }

    /// The packet did not come in over one of our veths.
    pub(crate) fn not_entering_by(self, group: u32) -> Self {
        self.meta(MetaKeys::Iifgroup).compare(FIRST, CmpOps::Neq, &group.to_ne_bytes())
    }

    /// The packet goes out over one of our veths.
    pub(crate) fn leaving_by(self, group: u32) -> Self {
        self.meta(MetaKeys::Oifgroup).compare(FIRST, CmpOps::Eq, &group.to_ne_bytes())
    }

    /// The packet does not go out over one of our veths.
    pub(crate) fn not_leaving_by(self, group: u32) -> Self {
        self.meta(MetaKeys::Oifgroup).compare(FIRST, CmpOps::Neq, &group.to_ne_bytes())
    }

    /// The packet came in over this interface.
    pub(crate) fn not_entering_by_loopback(self) -> Self {
        self.meta(MetaKeys::Iif).compare(FIRST, CmpOps::Neq, &1u32.to_ne_bytes())
    }

    pub(crate) fn family(self, family: Family) -> Self {
        self.meta(MetaKeys::Nfproto).compare(FIRST, CmpOps::Eq, &[family.number()])
    }

    pub(crate) fn protocol(self, number: u8) -> Self {
        self.meta(MetaKeys::L4Proto).compare(FIRST, CmpOps::Eq, &[number])
    }

    /// TCP or UDP to `port`, after [`Rule::protocol`].
    pub(crate) fn destination_port(self, port: u16) -> Self {
        self.load(PayloadBase::TransportHeader, 2, 2).compare(FIRST, CmpOps::Eq, &port.to_be_bytes())
    }

    pub(crate) fn source_is(self, address: IpAddr) -> Self {
        self.source(Family::of(address)).compare(FIRST, CmpOps::Eq, &octets(address))
    }

    pub(crate) fn destination_is(self, address: IpAddr) -> Self {
        self.destination(Family::of(address)).compare(FIRST, CmpOps::Eq, &octets(address))
    }

    pub(crate) fn destination_is_not(self, address: IpAddr) -> Self {
        self.destination(Family::of(address)).compare(FIRST, CmpOps::Neq, &octets(address))
    }

    /// The source lies in a range whose length is a whole number of bytes.
    pub(crate) fn source_begins(self, family: Family, leading: &[u8]) -> Self {
        let length = u32::try_from(leading.len()).expect("at most 16 bytes");
        self.load(PayloadBase::NetworkHeader, family.source_offset(), length).compare(FIRST, CmpOps::Eq, leading)
    }

    /// The destination lies in a range whose length is a whole number of bytes.
    pub(crate) fn destination_begins(self, family: Family, leading: &[u8]) -> Self {
        let length = u32::try_from(leading.len()).expect("at most 16 bytes");
        self.load(PayloadBase::NetworkHeader, family.destination_offset(), length).compare(FIRST, CmpOps::Eq, leading)
    }

    pub(crate) fn destination_in(self, family: Family, set: &str) -> Self {
        self.destination(family).lookup(set)
    }

    /// (incoming interface, destination) is in `set`.
    pub(crate) fn interface_and_destination_in(self, family: Family, set: &str) -> Self {
        let offset = family.destination_offset();
        let length = family.address_bytes();
        self.meta(MetaKeys::Iif).load_into(FIRST_PLUS_4, PayloadBase::NetworkHeader, offset, length).lookup(set)
    }

    pub(crate) fn incoming_in(self, set: &str) -> Self {
        self.meta(MetaKeys::Iif).lookup(set)
    }

    pub(crate) fn outgoing_in(self, set: &str) -> Self {
        self.meta(MetaKeys::Oif).lookup(set)
    }

    /// The destination is an address of the host itself.
    pub(crate) fn destination_is_local(mut self) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_fib()
            .push_dreg(FIRST)
            .push_result(number::FIB_ADDRESS_TYPE)
            .push_flags(FibFlags::Daddr as u32)
            .end_nested()
            .end_nested();
        self.compare(FIRST, CmpOps::Eq, &ADDRESS_TYPE_LOCAL.to_ne_bytes())
    }

    /// The connection is in one of these states.
    pub(crate) fn state(self, bits: u32) -> Self {
        self.connection(CtKeys::State).any_bit(bits)
    }

    /// Somebody's rule rewrote the destination of the connection.
    pub(crate) fn destination_was_rewritten(self) -> Self {
        self.connection(CtKeys::Status).any_bit(STATUS_DESTINATION_NAT)
    }

    /// The connection carries this mark.
    pub(crate) fn marked(self, mark: u32) -> Self {
        self.connection(CtKeys::Mark).compare(FIRST, CmpOps::Eq, &mark.to_ne_bytes())
    }

    /// An ICMP message of this type, after [`Rule::protocol`].
    pub(crate) fn icmp_type_at_most(self, kind: u8) -> Self {
        self.load(PayloadBase::TransportHeader, 0, 1).compare(FIRST, CmpOps::Lte, &[kind])
    }

    /// An ICMP message of this type, after [`Rule::protocol`].
    pub(crate) fn icmp_type(self, kind: u8) -> Self {
        self.load(PayloadBase::TransportHeader, 0, 1).compare(FIRST, CmpOps::Eq, &[kind])
    }

    /// More than this passes: `burst_bytes` at once, `bytes_per_second` on average.
    pub(crate) fn over_bytes_per_second(self, bytes_per_second: u64, burst_bytes: u32) -> Self {
        self.limit(number::LIMIT_TYPE_BYTES, bytes_per_second, burst_bytes)
    }

    /// More packets pass than this.
    pub(crate) fn over_packets_per_second(self, packets_per_second: u64, burst: u32) -> Self {
        self.limit(number::LIMIT_TYPE_PACKETS, packets_per_second, burst)
    }

    /// More connections than this exist among those counted by this rule.
    pub(crate) fn over_connections(self, count: u32) -> Self {
        self.raw("connlimit", |buffer| {
            push_u32(buffer, number::CONNECTIONS_COUNT, count);
            push_u32(buffer, number::CONNECTIONS_FLAGS, number::CONNECTIONS_OVER);
        })
    }

    // ---- actions ----

    /// Replaces the source by the map's value for the incoming interface; no match where the map has none.
    pub(crate) fn rewrite_source_by_interface(self, family: Family, map: &str) -> Self {
        self.meta(MetaKeys::Iif).lookup_value(map).store_address(family, family.source_offset())
    }

    /// Replaces the destination.
    pub(crate) fn rewrite_destination(self, address: IpAddr) -> Self {
        let family = Family::of(address);
        self.immediate(SECOND, &octets(address)).store_address(family, family.destination_offset())
    }

    /// Replaces the source in the IPv4 header that an ICMP error quotes, and that header's checksum. The ICMP checksum
    /// stays right: the quoted header sums up to the same value as before.
    pub(crate) fn rewrite_quoted_source_v4(mut self, address: IpAddr) -> Self {
        const QUOTED: u32 = 8;
        self = self.immediate(SECOND, &octets(address));
        self.0 = self
            .0
            .nested_elem()
            .nested_data_payload()
            .push_sreg(SECOND)
            .push_base(PayloadBase::TransportHeader as u32)
            .push_offset(QUOTED + Family::V4.source_offset())
            .push_len(4)
            .push_csum_type(number::CHECKSUM_INTERNET)
            .push_csum_offset(QUOTED + 10)
            .end_nested()
            .end_nested();
        self
    }

    /// The same for ICMPv6, whose quoted header has no checksum, so the message's own is adjusted.
    pub(crate) fn rewrite_quoted_source_v6(mut self, address: IpAddr) -> Self {
        const QUOTED: u32 = 8;
        self = self.immediate(SECOND, &octets(address));
        self.0 = self
            .0
            .nested_elem()
            .nested_data_payload()
            .push_sreg(SECOND)
            .push_base(PayloadBase::TransportHeader as u32)
            .push_offset(QUOTED + Family::V6.source_offset())
            .push_len(16)
            .push_csum_type(number::CHECKSUM_INTERNET)
            .push_csum_offset(2)
            .end_nested()
            .end_nested();
        self
    }

    /// Marks the connection.
    pub(crate) fn mark(mut self, mark: u32) -> Self {
        self = self.immediate(SECOND, &mark.to_ne_bytes());
        self.0 = self
            .0
            .nested_elem()
            .nested_data_ct()
            .push_key(CtKeys::Mark as u32)
            .push_sreg(SECOND)
            .end_nested()
            .end_nested();
        self
    }

    /// Sends the connection to `address` and `port` of the host instead.
    pub(crate) fn redirect_to(mut self, address: IpAddr, port: u16) -> Self {
        let family = Family::of(address);
        self = self.immediate(FIRST, &octets(address)).immediate(SECOND, &port.to_be_bytes());
        self.0 = self
            .0
            .nested_elem()
            .nested_data_nat()
            .push_type(number::NAT_DESTINATION)
            .push_family(u32::from(family.number()))
            .push_reg_addr_min(FIRST)
            .push_reg_proto_min(SECOND)
            .push_flags(NatRangeFlags::MapIps as u32 | NatRangeFlags::ProtoSpecified as u32)
            .end_nested()
            .end_nested();
        self
    }

    /// Gives the connection the address of the interface that it leaves by.
    pub(crate) fn masquerade(mut self) -> Self {
        self.0 = self.0.nested_elem().push_name(c"masq").end_nested();
        self
    }

    /// Goes on in the chain that the map names for the incoming interface, if it names one.
    pub(crate) fn jump_by_incoming(self, map: &str) -> Self {
        self.meta(MetaKeys::Iif).lookup_verdict(map)
    }

    /// Goes on in the chain that the map names for the outgoing interface, if it names one.
    pub(crate) fn jump_by_outgoing(self, map: &str) -> Self {
        self.meta(MetaKeys::Oif).lookup_verdict(map)
    }

    pub(crate) fn jump(mut self, chain: &str) -> Self {
        self.0 = self
            .0
            .nested_elem()
            .nested_data_immediate()
            .push_dreg(VERDICT)
            .nested_data()
            .nested_verdict()
            .push_code(VerdictCode::Jump as u32)
            .push_chain_bytes(chain.as_bytes())
            .end_nested()
            .end_nested()
            .end_nested()
            .end_nested();
        self
    }

    pub(crate) fn accept(self) -> Self {
        self.verdict(VerdictCode::Accept)
    }

    pub(crate) fn drop(self) -> Self {
        self.verdict(VerdictCode::Drop)
    }

    /// Refuses a TCP connection with a reset; after [`Rule::protocol`].
    pub(crate) fn reset(mut self) -> Self {
        self.0 =
            self.0.nested_elem().nested_data_reject().push_type(RejectTypes::TcpRst as u32).end_nested().end_nested();
        self
    }

    /// Refuses a packet with "administratively prohibited".
    pub(crate) fn prohibit(mut self) -> Self {
        let code = u8::try_from(RejectInetCode::IcmpxAdminProhibited as u32).expect("reject codes are small");
        self.0 = self
            .0
            .nested_elem()
            .nested_data_reject()
            .push_type(RejectTypes::IcmpxUnreach as u32)
            .push_icmp_code(code)
            .end_nested()
            .end_nested();
        self
    }

    // ---- parts ----

    fn source(self, family: Family) -> Self {
        self.load(PayloadBase::NetworkHeader, family.source_offset(), family.address_bytes())
    }

    fn destination(self, family: Family) -> Self {
        self.load(PayloadBase::NetworkHeader, family.destination_offset(), family.address_bytes())
    }

    fn meta(mut self, key: MetaKeys) -> Self {
        self.0 =
            self.0.nested_elem().nested_data_meta().push_dreg(FIRST).push_key(key as u32).end_nested().end_nested();
        self
    }

    fn connection(mut self, key: CtKeys) -> Self {
        self.0 = self.0.nested_elem().nested_data_ct().push_dreg(FIRST).push_key(key as u32).end_nested().end_nested();
        self
    }

    fn load(self, base: PayloadBase, offset: u32, length: u32) -> Self {
        self.load_into(FIRST, base, offset, length)
    }

    fn load_into(mut self, register: u32, base: PayloadBase, offset: u32, length: u32) -> Self {
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
    fn store_address(mut self, family: Family, offset: u32) -> Self {
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

    fn compare(mut self, register: u32, operation: CmpOps, value: &[u8]) -> Self {
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

    fn any_bit(mut self, bits: u32) -> Self {
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

    fn lookup(self, set: &str) -> Self {
        self.lookup_into(set, None)
    }

    fn lookup_value(self, map: &str) -> Self {
        self.lookup_into(map, Some(SECOND))
    }

    fn lookup_verdict(self, map: &str) -> Self {
        self.lookup_into(map, Some(VERDICT))
    }

    /// By hand: the kernel's machine-readable description, and so the bindings, number these attributes wrongly.
    fn lookup_into(self, set: &str, register: Option<u32>) -> Self {
        self.raw("lookup", |buffer| {
            push_text(buffer, number::LOOKUP_SET, set);
            push_u32(buffer, number::LOOKUP_SOURCE, FIRST);
            if let Some(register) = register {
                push_u32(buffer, number::LOOKUP_DESTINATION, register);
            }
        })
    }

    fn immediate(mut self, register: u32, value: &[u8]) -> Self {
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

    fn verdict(mut self, code: VerdictCode) -> Self {
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

    fn limit(self, kind: u32, rate_per_second: u64, burst: u32) -> Self {
        self.raw("limit", |buffer| {
            push_u64(buffer, number::LIMIT_RATE, rate_per_second);
            push_u64(buffer, number::LIMIT_UNIT, 1);
            push_u32(buffer, number::LIMIT_BURST, burst);
            push_u32(buffer, number::LIMIT_TYPE, kind);
            push_u32(buffer, number::LIMIT_FLAGS, number::LIMIT_OVER);
        })
    }

    /// An expression that the bindings do not know.
    fn raw(mut self, name: &str, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        let buffer = self.0.as_vec_mut();
        let element = push_nested_header(buffer, number::ELEMENT);
        push_text(buffer, number::NAME, name);
        let data = push_nested_header(buffer, number::DATA);
        fill(buffer);
        finalize_nested_header(buffer, data);
        finalize_nested_header(buffer, element);
        self
    }
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
