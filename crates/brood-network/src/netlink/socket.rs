//! A netlink socket. It belongs for ever to the network namespace of the thread that opened it.

use std::io;
use std::os::fd::OwnedFd;

use netlink_bindings::builtin::Nlmsghdr;
use netlink_bindings::traits::NetlinkRequest;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::batch::Batch;

/// Largest answer read at once. The kernel sizes dump answers by the reader's buffer, up to 32 KiB.
const RECEIVE_BUFFER_BYTES: usize = 32 * 1024;
/// Room for the biggest batch: a policy of [`crate::policy::RULES_MAX`] ranges is about 100 KiB.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// `NLMSG_ERROR`: an acknowledgement (0) or a negated error number.
const MESSAGE_ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const MESSAGE_DONE: u16 = 3;

/// A request that the kernel refused, or a socket that failed.
#[derive(Debug, thiserror::Error)]
#[error("netlink: could not {purpose}")]
pub struct NetlinkError {
    purpose: &'static str,
    source: io::Error,
}

impl NetlinkError {
    pub(crate) fn new(purpose: &'static str, source: impl Into<io::Error>) -> Self {
        Self { purpose, source: source.into() }
    }

    /// The kernel's error number, for callers that treat one of them as success.
    #[must_use]
    pub fn errno(&self) -> Option<rustix::io::Errno> {
        rustix::io::Errno::from_io_error(&self.source)
    }
}

/// One open netlink socket with its receive buffer.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// A socket for links, addresses and routes of the calling thread's namespace.
    pub(crate) fn route() -> Result<Self, NetlinkError> {
        // The routing family is protocol 0, which is what "none" means here.
        Self::open("open a routing socket", None)
    }

    /// A socket for the packet filter of the calling thread's namespace.
    pub(crate) fn netfilter() -> Result<Self, NetlinkError> {
        let protocol = net::netlink::NETFILTER;
        Self::open("open a packet filter socket", Some(protocol))
    }

    fn open(purpose: &'static str, protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let failed = |error| NetlinkError::new(purpose, error);
        let descriptor = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(failed)?;
        net::sockopt::set_socket_send_buffer_size(&descriptor, SEND_BUFFER_BYTES).map_err(failed)?;
        Ok(Self { descriptor, sequence: 1, buffer: vec![0; RECEIVE_BUFFER_BYTES] })
    }

    /// Sends `batch` and waits for its acknowledged request. The first error that any request met is returned; in the
    /// packet filter that means nothing was changed, elsewhere that the other requests may have been carried out.
    pub(crate) fn execute(&mut self, batch: &mut Batch) -> Result<(), NetlinkError> {
        let Some(last) = batch.acknowledged() else {
            return Ok(());
        };
        let first = self.reserve(batch.len());
        let purpose = batch.purpose(last);
        self.send(purpose, batch.number(first))?;
        let mut failure = None;
        loop {
            let received = self.receive(purpose)?;
            for (header, payload) in Messages(&self.buffer[..received]) {
                let position = header.seq.wrapping_sub(first) as usize;
                if header.r#type != MESSAGE_ERROR || position >= batch.len() {
                    continue;
                }
                if let Some(error) = error_of(payload) {
                    let error = NetlinkError::new(batch.purpose(position), error);
                    // A batch that fails as a whole is answered by its first message alone.
                    if position == 0 && last != 0 {
                        return Err(failure.unwrap_or(error));
                    }
                    failure.get_or_insert(error);
                }
                if position == last {
                    return failure.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Sends one dump request and hands the payload of each answer to `each`.
    pub(crate) fn dump(
        &mut self,
        purpose: &'static str,
        request: &impl NetlinkRequest,
        each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        let mut batch = Batch::new();
        batch.push(purpose, request);
        self.answers(purpose, batch, each)
    }

    /// Sends a request that has one answer, and hands its payload to `take`.
    pub(crate) fn query(
        &mut self,
        purpose: &'static str,
        request: &impl NetlinkRequest,
        take: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        let mut batch = Batch::new();
        batch.push(purpose, request);
        // Unlike a dump, a single answer does not say that it is the last one.
        batch.acknowledge_last();
        self.answers(purpose, batch, take)
    }

    fn answers(
        &mut self,
        purpose: &'static str,
        mut batch: Batch,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        let first = self.reserve(1);
        self.send(purpose, batch.number(first))?;
        loop {
            let received = self.receive(purpose)?;
            for (header, payload) in Messages(&self.buffer[..received]) {
                if header.seq != first {
                    continue;
                }
                match header.r#type {
                    MESSAGE_DONE => return Ok(()),
                    MESSAGE_ERROR => {
                        return error_of(payload).map_or(Ok(()), |error| Err(NetlinkError::new(purpose, error)));
                    }
                    _ => each(payload),
                }
            }
        }
    }

    fn reserve(&mut self, count: usize) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(u32::try_from(count).expect("batches are small"));
        first
    }

    fn send(&self, purpose: &'static str, bytes: &[u8]) -> Result<(), NetlinkError> {
        let sent = rustix::io::retry_on_intr(|| net::send(&self.descriptor, bytes, SendFlags::empty()))
            .map_err(|error| NetlinkError::new(purpose, error))?;
        assert_eq!(sent, bytes.len(), "netlink sends are all or nothing");
        Ok(())
    }

    fn receive(&mut self, purpose: &'static str) -> Result<usize, NetlinkError> {
        let (received, _) =
            rustix::io::retry_on_intr(|| net::recv(&self.descriptor, self.buffer.as_mut_slice(), RecvFlags::empty()))
                .map_err(|error| NetlinkError::new(purpose, error))?;
        Ok(received)
    }
}

/// The messages of one receive buffer.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (Nlmsghdr, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = Nlmsghdr::new_from_slice(self.0.get(..Nlmsghdr::len())?)?;
        let length = header.len as usize;
        let payload = self.0.get(Nlmsghdr::len()..length)?;
        let next = length.next_multiple_of(4).min(self.0.len());
        self.0 = &self.0[next..];
        Some((header, payload))
    }
}

/// The error of an `NLMSG_ERROR` payload; `None` is an acknowledgement.
fn error_of(payload: &[u8]) -> Option<io::Error> {
    let code = payload.first_chunk::<4>().map_or(-TRUNCATED.raw_os_error(), |bytes| i32::from_ne_bytes(*bytes));
    (code != 0).then(|| io::Error::from_raw_os_error(-code))
}

/// What an answer too short to hold its error number counts as.
const TRUNCATED: rustix::io::Errno = rustix::io::Errno::INVAL;
