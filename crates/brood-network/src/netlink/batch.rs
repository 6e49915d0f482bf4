//! Several netlink requests in one buffer.

use netlink_bindings::builtin::Nlmsghdr;
use netlink_bindings::consts::{NLM_F_ACK, NLM_F_REQUEST};
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_bindings::utils::nla_align_up;

/// Where in a message header the flags stand (`struct nlmsghdr`).
const FLAGS_OFFSET: usize = 6;
/// Where in a message header the sequence number stands.
const SEQUENCE_OFFSET: usize = 8;

/// Requests that go to the kernel in one write, in this order.
///
/// Only the last request marked by [`Batch::acknowledge_last`] is answered when all goes well; a request that fails is
/// always answered.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    messages: Vec<Message>,
    acknowledged: Option<usize>,
}

#[derive(Debug)]
struct Message {
    offset: usize,
    purpose: &'static str,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Appends `request`; `purpose` names it in errors ("create the veth pair").
    pub(crate) fn push(&mut self, purpose: &'static str, request: &impl NetlinkRequest) {
        let kind = match request.protocol() {
            Protocol::Raw { request_type, .. } => request_type,
            Protocol::Generic(_) => unreachable!("this crate sends no generic netlink"),
        };
        let payload = request.payload();
        let offset = self.bytes.len();
        let length = Nlmsghdr::len() + payload.len();
        let header = Nlmsghdr {
            len: u32::try_from(length).expect("requests are far below 4 GiB"),
            r#type: kind,
            flags: request.flags() | flag(NLM_F_REQUEST),
            seq: 0,
            pid: 0,
        };
        self.bytes.extend_from_slice(header.as_slice());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(offset + nla_align_up(length), 0);
        self.messages.push(Message { offset, purpose });
    }

    /// Asks for an answer to the request pushed last.
    pub(crate) fn acknowledge_last(&mut self) {
        let Some(last) = self.messages.last() else {
            return;
        };
        let at = last.offset + FLAGS_OFFSET;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | flag(NLM_F_ACK);
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        self.acknowledged = Some(self.messages.len() - 1);
    }

    /// Numbers the requests `first`, `first + 1`, ... and returns the buffer.
    pub(crate) fn number(&mut self, first: u32) -> &[u8] {
        let mut sequence = first;
        for message in &self.messages {
            let at = message.offset + SEQUENCE_OFFSET;
            self.bytes[at..at + 4].copy_from_slice(&sequence.to_ne_bytes());
            sequence = sequence.wrapping_add(1);
        }
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The position of the request whose answer ends the batch.
    pub(crate) fn acknowledged(&self) -> Option<usize> {
        self.acknowledged
    }

    pub(crate) fn purpose(&self, position: usize) -> &'static str {
        self.messages.get(position).map_or("unknown request", |message| message.purpose)
    }
}

/// Netlink flags are 16 bits wide on the wire, the generated constants 32.
fn flag(constant: i32) -> u16 {
    u16::try_from(constant).expect("netlink flags fit in 16 bits")
}
