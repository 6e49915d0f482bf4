//! The part of a rule that says which packets it is about.

use std::net::IpAddr;

use netlink_bindings::nftables::{CmpOps, CtKeys, FibFlags, MetaKeys, PayloadBase};

use super::{
    ADDRESS_TYPE_LOCAL, FIRST, FIRST_PLUS_4, Family, Rule, STATUS_DESTINATION_NAT, number, octets, push_expression,
    push_text, push_u32,
};

impl Rule {
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
        self.raw("connlimit", |buffer| push_connection_limit(buffer, count))
    }

    /// More connections than this exist among those that came in over the same interface; `set` holds the counts.
    pub(crate) fn over_connections_of_interface(self, set: &str, count: u32) -> Self {
        self.meta(MetaKeys::Iif).raw("dynset", |buffer| {
            push_text(buffer, number::DYNAMIC_SET, set);
            push_u32(buffer, number::DYNAMIC_OPERATION, number::DYNAMIC_ADD);
            push_u32(buffer, number::DYNAMIC_KEY, FIRST);
            push_expression(buffer, number::DYNAMIC_EXPRESSION, "connlimit", |buffer| {
                push_connection_limit(buffer, count);
            });
        })
    }
}

fn push_connection_limit(buffer: &mut Vec<u8>, count: u32) {
    push_u32(buffer, number::CONNECTIONS_COUNT, count);
    push_u32(buffer, number::CONNECTIONS_FLAGS, number::CONNECTIONS_OVER);
}
