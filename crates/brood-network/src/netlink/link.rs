//! The requests for links, addresses and routes that an attachment consists of.

use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_link::{self, IfinfoFlags, Ifinfomsg};
use netlink_bindings::rt_route::{self, Rtmsg};
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::{finalize_nested_header, push_nested_header};
use rustix::io::Errno;

use super::batch::Batch;
use super::socket::{NetlinkError, Socket};

/// `VETH_INFO_PEER` of `linux/veth.h`; the kernel's machine-readable description lacks it.
const VETH_INFO_PEER: u16 = 1;
/// `IFLA_INFO_DATA` of `linux/if_link.h`.
const INFO_DATA: u16 = 2;
/// `IN6_ADDR_GEN_MODE_NONE`: no link-local address, so no neighbour or router messages either.
const ADDRESS_GENERATION_NONE: u8 = 1;
/// `RT_TABLE_MAIN`.
const TABLE_MAIN: u8 = 254;
/// `RTPROT_STATIC`: a route set by an administrator.
const PROTOCOL_STATIC: u8 = 4;
/// `RT_SCOPE_LINK` and `RT_SCOPE_UNIVERSE`.
const SCOPE_LINK: u8 = 253;
const SCOPE_UNIVERSE: u8 = 0;
/// `RT_SCOPE_HOST`: valid on this host only, so never chosen as the source of a packet that leaves it.
const SCOPE_HOST: u8 = 254;
/// `RTN_UNICAST` and `RTN_UNREACHABLE`.
const ROUTE_UNICAST: u8 = 1;
const ROUTE_UNREACHABLE: u8 = 7;
/// `IFA_F_NODAD`: use an IPv6 address at once.
const ADDRESS_NO_DAD: u8 = 2;
/// The length of an Ethernet address.
pub(crate) const MAC_BYTES: usize = 6;

/// An interface number. The kernel never gives a number twice before all 2^31 are used, so it names one pair for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct InterfaceIndex(pub(crate) u32);

impl InterfaceIndex {
    /// The loopback device, number 1 in every namespace.
    pub(crate) const LOOPBACK: Self = Self(1);

    fn signed(self) -> i32 {
        i32::try_from(self.0).expect("interface numbers are positive 32-bit integers")
    }
}

/// Both ends of a new veth pair.
#[derive(Debug)]
pub(crate) struct VethPair<'a> {
    pub(crate) host_name: &'a CStr,
    pub(crate) host_index: InterfaceIndex,
    pub(crate) host_group: u32,
    pub(crate) inside_name: &'a CStr,
    pub(crate) inside_index: InterfaceIndex,
    pub(crate) inside_namespace: BorrowedFd<'a>,
    /// Both ends have the same address: without ARP the kernel sends to its own address, which is then the peer's.
    pub(crate) mac: [u8; MAC_BYTES],
    pub(crate) mtu_bytes: u32,
}

/// Creates both ends, the inner one in its namespace. Both are down.
pub(crate) fn create_veth(batch: &mut Batch, pair: &VethPair<'_>) {
    let mut request = rt_link::Request::new().set_create().set_excl().op_newlink_do(&without_arp(pair.host_index));
    {
        let mut information = request
            .encode()
            .push_ifname(pair.host_name)
            .push_mtu(pair.mtu_bytes)
            .push_address(&pair.mac)
            .push_group(pair.host_group)
            .nested_linkinfo()
            .push_kind(c"veth");
        let buffer = information.as_vec_mut();
        let data = push_nested_header(buffer, INFO_DATA);
        let peer = push_nested_header(buffer, VETH_INFO_PEER);
        buffer.extend_from_slice(without_arp(pair.inside_index).as_slice());
        let namespace = u32::try_from(pair.inside_namespace.as_raw_fd()).expect("an open descriptor is not negative");
        rt_link::PushLinkAttrs::new(&mut *buffer)
            .push_ifname(pair.inside_name)
            .push_mtu(pair.mtu_bytes)
            .push_address(&pair.mac)
            .push_net_ns_fd(namespace);
        finalize_nested_header(buffer, peer);
        finalize_nested_header(buffer, data);
    }
    batch.push("create the veth pair", &request);
}

fn without_arp(index: InterfaceIndex) -> Ifinfomsg {
    let mut header = Ifinfomsg::new();
    header.ifi_index = index.signed();
    header.ifi_flags = IfinfoFlags::NoArp as u32;
    header.ifi_change = IfinfoFlags::NoArp as u32;
    header
}

/// Brings a link up.
pub(crate) fn up(batch: &mut Batch, index: InterfaceIndex) {
    batch.push("bring a link up", &rt_link::Request::new().op_setlink_do(&up_header(index)));
}

/// Brings a link up that gets no IPv6 link-local address, on a kernel that has IPv6. Two requests: in one, the link would be
/// up before it is told.
pub(crate) fn up_without_link_local(batch: &mut Batch, index: InterfaceIndex, kernel_has_v6: bool) {
    if kernel_has_v6 {
        let mut header = Ifinfomsg::new();
        header.ifi_index = index.signed();
        let mut request = rt_link::Request::new().op_setlink_do(&header);
        request.encode().nested_af_spec().nested_inet6().push_addr_gen_mode(ADDRESS_GENERATION_NONE);
        batch.push("keep a link from making addresses", &request);
    }
    up(batch, index);
}

fn up_header(index: InterfaceIndex) -> Ifinfomsg {
    let mut header = Ifinfomsg::new();
    header.ifi_index = index.signed();
    header.ifi_flags = IfinfoFlags::Up as u32;
    header.ifi_change = IfinfoFlags::Up as u32;
    header
}

/// Makes the kernel notice at once that a link has a carrier. Otherwise a work queue does it a moment later, and until
/// then what is sent over the link is dropped, which costs a TCP connection a second.
///
/// Asking for a link does it since Linux 6.8: the answer must not claim more than is so.
pub(crate) fn settle(batch: &mut Batch, index: InterfaceIndex) {
    let mut header = Ifinfomsg::new();
    header.ifi_index = index.signed();
    batch.push("ask for a link", &rt_link::Request::new().op_getlink_do(&header));
}

/// Deletes links, all at once: for each one by itself the kernel would wait until no processor can be using it any more.
/// Veth pairs go with either of their ends, and ends that are gone already are no error.
///
/// The way to delete many links in one request is to put them into a device group of their own, `doomed`.
pub(crate) fn delete_all(socket: &mut Socket, links: &[InterfaceIndex], doomed: u32) -> Result<(), NetlinkError> {
    for part in links.chunks(DELETED_AT_ONCE_MAX) {
        let mut batch = Batch::new();
        for index in part {
            let mut header = Ifinfomsg::new();
            header.ifi_index = index.signed();
            let mut request = rt_link::Request::new().op_setlink_do(&header);
            request.encode().push_group(doomed);
            batch.push("doom a link", &request);
        }
        batch.acknowledge_last();
        ignoring(socket.execute(&mut batch), &[Errno::NODEV])?;
        let mut batch = Batch::new();
        let mut request = rt_link::Request::new().op_dellink_do(&Ifinfomsg::new());
        request.encode().push_group(doomed);
        batch.push("delete links", &request);
        batch.acknowledge_last();
        // No such device: there is none in the group.
        ignoring(socket.execute(&mut batch), &[Errno::NODEV])?;
    }
    Ok(())
}

/// Links deleted in one request: the kernel holds its lock on all interfaces for a fraction of a millisecond for each.
const DELETED_AT_ONCE_MAX: usize = 64;

/// Success also where the error is one of `ignored`: what was to be removed was gone already.
pub(crate) fn ignoring(result: Result<(), NetlinkError>, ignored: &[Errno]) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.errno().is_some_and(|errno| ignored.contains(&errno)) => Ok(()),
        other => other,
    }
}

/// Gives `index` an address. Host scope if `prefix_bits` covers the address alone.
pub(crate) fn add_address(batch: &mut Batch, index: InterfaceIndex, address: IpAddr, prefix_bits: u8) {
    let mut request = rt_addr::Request::new().set_change().op_newaddr_do(&address_header(index, address, prefix_bits));
    let attributes = request.encode().push_local(address);
    attributes.push_address(address);
    batch.push("add an address", &request);
}

/// Takes an address away again.
pub(crate) fn delete_address(batch: &mut Batch, index: InterfaceIndex, address: IpAddr, prefix_bits: u8) {
    let mut request = rt_addr::Request::new().op_deladdr_do(&address_header(index, address, prefix_bits));
    request.encode().push_local(address);
    batch.push("delete an address", &request);
}

fn address_header(index: InterfaceIndex, address: IpAddr, prefix_bits: u8) -> Ifaddrmsg {
    let mut header = Ifaddrmsg::new();
    header.ifa_family = family(address);
    header.ifa_prefixlen = prefix_bits;
    header.ifa_index = index.0;
    if address.is_ipv6() {
        header.ifa_flags = ADDRESS_NO_DAD;
    }
    if prefix_bits == bits(address) {
        header.ifa_scope = SCOPE_HOST;
    }
    header
}

/// A route to one address over `index`, which has no other addresses behind it.
pub(crate) fn add_host_route(batch: &mut Batch, index: InterfaceIndex, to: IpAddr, from: IpAddr) {
    let mut request =
        rt_route::Request::new().set_change().op_newroute_do(&route_header(to, bits(to), SCOPE_LINK, ROUTE_UNICAST));
    request.encode().push_dst(to).push_oif(index.0).push_prefsrc(from);
    batch.push("add the route to a sandbox", &request);
}

/// The route to everything else.
pub(crate) fn add_default_route(batch: &mut Batch, index: InterfaceIndex, gateway: IpAddr) {
    let mut request =
        rt_route::Request::new().set_change().op_newroute_do(&route_header(gateway, 0, SCOPE_UNIVERSE, ROUTE_UNICAST));
    request.encode().push_gateway(gateway).push_oif(index.0);
    batch.push("add the default route", &request);
}

/// Makes a whole range answer "unreachable" where no longer route exists, so that nothing meant for a sandbox that is
/// gone ever leaves the host.
pub(crate) fn add_unreachable_route(batch: &mut Batch, to: IpAddr, prefix_bits: u8) {
    let header = route_header(to, prefix_bits, SCOPE_UNIVERSE, ROUTE_UNREACHABLE);
    let mut request = rt_route::Request::new().set_change().op_newroute_do(&header);
    request.encode().push_dst(to);
    batch.push("add the unreachable route of the sandbox range", &request);
}

/// Takes the route of [`add_unreachable_route`] away.
pub(crate) fn delete_unreachable_route(batch: &mut Batch, to: IpAddr, prefix_bits: u8) {
    let header = route_header(to, prefix_bits, SCOPE_UNIVERSE, ROUTE_UNREACHABLE);
    let mut request = rt_route::Request::new().op_delroute_do(&header);
    request.encode().push_dst(to);
    batch.push("delete the unreachable route of the sandbox range", &request);
}

fn route_header(to: IpAddr, prefix_bits: u8, scope: u8, kind: u8) -> Rtmsg {
    let mut header = Rtmsg::new();
    header.rtm_family = family(to);
    header.rtm_dst_len = prefix_bits;
    header.rtm_table = TABLE_MAIN;
    header.rtm_protocol = PROTOCOL_STATIC;
    header.rtm_scope = scope;
    header.rtm_type = kind;
    header
}

/// The interfaces of the socket's namespace whose name begins with `prefix`.
pub(crate) fn list_by_prefix(socket: &mut Socket, prefix: &str) -> Result<Vec<InterfaceIndex>, NetlinkError> {
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
    let mut found = Vec::new();
    socket.dump("list the links", &request, |payload| {
        let (header, attributes) = <rt_link::OpGetlinkDump<'_> as NetlinkRequest>::decode_reply(payload);
        let named = attributes.get_ifname().is_ok_and(|name| name.to_bytes().starts_with(prefix.as_bytes()));
        if let (true, Ok(index)) = (named, u32::try_from(header.ifi_index)) {
            found.push(InterfaceIndex(index));
        }
    })?;
    Ok(found)
}

/// The address family as netlink headers hold it.
pub(crate) fn family(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => rustix::net::AddressFamily::INET,
        IpAddr::V6(_) => rustix::net::AddressFamily::INET6,
    };
    u8::try_from(family.as_raw()).expect("address families are small numbers")
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What went over a link since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LinkCounters {
    pub(crate) received_bytes: u64,
    pub(crate) received_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) sent_packets: u64,
}

/// The counters of a link.
pub(crate) fn counters(socket: &mut Socket, index: InterfaceIndex) -> Result<LinkCounters, NetlinkError> {
    let mut header = Ifinfomsg::new();
    header.ifi_index = index.signed();
    let mut counters = LinkCounters::default();
    let request = rt_link::Request::new().op_getlink_do(&header);
    socket.query("read the counters of a link", &request, |payload| {
        let (_, attributes) = <rt_link::OpGetlinkDo<'_> as NetlinkRequest>::decode_reply(payload);
        if let Ok(stats) = attributes.get_stats64() {
            counters = LinkCounters {
                received_bytes: stats.rx_bytes,
                received_packets: stats.rx_packets,
                sent_bytes: stats.tx_bytes,
                sent_packets: stats.tx_packets,
            };
        }
    })?;
    Ok(counters)
}

/// The MTU, in bytes, of the interface with the IPv4 default route; `None` without such a route.
pub(crate) fn default_route_mtu(socket: &mut Socket) -> Result<Option<u32>, NetlinkError> {
    let mut header = Rtmsg::new();
    header.rtm_family = family(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    let request = rt_route::Request::new().op_getroute_dump(&header);
    let mut best: Option<(u32, u32)> = None;
    socket.dump("list the routes", &request, |payload| {
        let (header, attributes) = <rt_route::OpGetrouteDump<'_> as NetlinkRequest>::decode_reply(payload);
        let is_default = header.rtm_dst_len == 0 && header.rtm_table == TABLE_MAIN;
        if let (true, Ok(interface)) = (is_default, attributes.get_oif()) {
            let candidate = (attributes.get_priority().unwrap_or(0), interface);
            best = Some(best.map_or(candidate, |found| found.min(candidate)));
        }
    })?;
    let Some((_, interface)) = best else {
        return Ok(None);
    };
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
    let mut mtu_bytes = None;
    socket.dump("list the links", &request, |payload| {
        let (header, attributes) = <rt_link::OpGetlinkDump<'_> as NetlinkRequest>::decode_reply(payload);
        if u32::try_from(header.ifi_index) == Ok(interface) {
            mtu_bytes = attributes.get_mtu().ok();
        }
    })?;
    Ok(mtu_bytes)
}
