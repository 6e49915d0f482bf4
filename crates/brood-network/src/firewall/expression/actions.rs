//! The part of a rule that says what happens to its packets.

use std::net::IpAddr;

use netlink_bindings::nftables::{
    CtKeys, MetaKeys, NatRangeFlags, PayloadBase, RejectInetCode, RejectTypes, VerdictCode,
};

use super::{FIRST, Family, Rule, SECOND, VERDICT, number, octets};

impl Rule {
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
}
