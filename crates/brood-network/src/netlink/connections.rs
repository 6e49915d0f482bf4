//! The kernel's table of tracked connections.

use std::collections::HashSet;
use std::net::IpAddr;

use netlink_bindings::conntrack::{self, Nfgenmsg};
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_bindings::utils::{finalize_nested_header, find_attr, push_nested_header};
use rustix::io::Errno;

use super::batch::Batch;
use super::link::{family, ignoring};
use super::socket::{NetlinkError, Socket};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE`; the bindings have no deletion.
const MESSAGE_DELETE: u16 = 1 << 8 | 2;
/// `NETLINK_NETFILTER`.
const PROTOCOL_NETFILTER: u16 = 12;
/// `CTA_TUPLE_ORIG`: addresses and ports of the first packet.
const ORIGINAL_TUPLE: u16 = 1;
/// `CTA_FILTER_F_CTA_IP_SRC`: only the source of the tuple is compared.
const FILTER_SOURCE: u32 = 1;
/// Up to so many addresses, the kernel is asked for the connections of each; above, for all connections at once.
const ASKED_SINGLY_MAX: usize = 4;
/// Connections deleted in one write.
const DELETED_AT_ONCE_MAX: usize = 512;

/// Forgets the connections that began at one of `sources`: what still comes for them from outside is then nobody's, and
/// an address that is used again inherits nothing. All addresses are of one family.
pub(crate) fn forget(socket: &mut Socket, sources: &[IpAddr]) -> Result<(), NetlinkError> {
    let Some(first) = sources.first() else {
        return Ok(());
    };
    let family = family(*first);
    let mut tuples = Vec::new();
    if sources.len() <= ASKED_SINGLY_MAX {
        for source in sources {
            list(socket, family, Some(*source), |_, tuple| tuples.push(tuple.to_vec()))?;
        }
    } else {
        let wanted: HashSet<IpAddr> = sources.iter().copied().collect();
        list(socket, family, None, |source, tuple| {
            if wanted.contains(&source) {
                tuples.push(tuple.to_vec());
            }
        })?;
    }
    for part in tuples.chunks(DELETED_AT_ONCE_MAX) {
        let mut batch = Batch::new();
        for tuple in part {
            batch.push("forget a connection", &Deletion::new(family, tuple));
        }
        batch.acknowledge_last();
        // It may have ended meanwhile.
        ignoring(socket.execute(&mut batch), &[Errno::NOENT])?;
    }
    Ok(())
}

/// Hands the source and the whole first tuple of each connection to `each`.
fn list(
    socket: &mut Socket,
    family: u8,
    source: Option<IpAddr>,
    mut each: impl FnMut(IpAddr, &[u8]),
) -> Result<(), NetlinkError> {
    let mut header = Nfgenmsg::new();
    header.nfgen_family = family;
    let mut request = conntrack::Request::new().op_get_dump(&header);
    if let Some(source) = source {
        let tuple = request.encode().nested_tuple_orig().nested_tuple_ip();
        let tuple = match source {
            IpAddr::V4(source) => tuple.push_ip_v4_src(source),
            IpAddr::V6(source) => tuple.push_ip_v6_src(source),
        };
        tuple.end_nested().end_nested().nested_filter().push_orig_flags(FILTER_SOURCE);
    }
    socket.dump("list connections", &request, |payload| {
        let (_, attributes) = <conntrack::OpGetDump<'_> as NetlinkRequest>::decode_reply(payload);
        let tuple = payload.get(Nfgenmsg::len()..).and_then(|bytes| find_attr(bytes, ORIGINAL_TUPLE));
        let began_at = attributes
            .get_tuple_orig()
            .and_then(|tuple| tuple.get_tuple_ip())
            .ok()
            .and_then(|ip| ip.get_ip_v4_src().map(IpAddr::V4).or_else(|_| ip.get_ip_v6_src().map(IpAddr::V6)).ok());
        if let (Some(began_at), Some(tuple)) = (began_at, tuple) {
            each(began_at, tuple);
        }
    })
}

/// The request to delete one connection.
#[derive(Debug)]
struct Deletion(Vec<u8>);

impl Deletion {
    fn new(family: u8, tuple: &[u8]) -> Self {
        let mut header = Nfgenmsg::new();
        header.nfgen_family = family;
        let mut payload = header.as_slice().to_vec();
        let nested = push_nested_header(&mut payload, ORIGINAL_TUPLE);
        payload.extend_from_slice(tuple);
        finalize_nested_header(&mut payload, nested);
        Self(payload)
    }
}

impl NetlinkRequest for Deletion {
    type ReplyType<'buf> = ();

    fn protocol(&self) -> Protocol {
        Protocol::Raw { protonum: PROTOCOL_NETFILTER, request_type: MESSAGE_DELETE }
    }

    fn flags(&self) -> u16 {
        0
    }

    fn payload(&self) -> &[u8] {
        &self.0
    }

    fn decode_reply(_: &[u8]) -> Self::ReplyType<'_> {}
}
