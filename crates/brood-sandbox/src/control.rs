//! The daemon's end of the control socket of a PID 1.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use brood_init_protocol::{BODY_BYTES_MAX, DESCRIPTORS_MAX, Failed, Header, Kind};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::error::{EngineError, ErrorKind, Result};

/// What PID 1 sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// PID 1's answer to a request.
pub(crate) type Answer = std::result::Result<Message, Failed>;

/// Requests out, messages in.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UnixStream,
    sending: Mutex<()>,
    next_request: AtomicU64,
    waiting: Mutex<HashMap<u64, mpsc::SyncSender<Answer>>>,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    answer: mpsc::Receiver<Answer>,
}

impl Control {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, sending: Mutex::default(), next_request: AtomicU64::new(1), waiting: Mutex::default() }
    }

    /// A number for the next request.
    pub(crate) fn reserve(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request whose answer is waited for.
    pub(crate) fn send(
        &self,
        request: u64,
        kind: Kind,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Pending> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(request, sender);
        if let Err(error) = self.write(request, kind, body, descriptors) {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&request);
            return Err(EngineError::system("the sandbox's PID 1 does not listen any more", error));
        }
        Ok(Pending { answer })
    }

    fn write(&self, request: u64, kind: Kind, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let too_long = || std::io::Error::from(rustix::io::Errno::TOOBIG);
        let body_bytes = u32::try_from(body.len()).map_err(|_error| too_long())?;
        if body.len() > BODY_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(too_long());
        }
        let count = u16::try_from(descriptors.len()).map_err(|_error| too_long())?;
        let header = Header { kind, descriptors: count, body_bytes, request }.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(too_long());
        }
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = [IoSlice::new(&header), IoSlice::new(body)];
        let mut sent = sendmsg(&self.socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL)?;
        while sent < header.len() + body.len() {
            let rest = if sent < header.len() { &header[sent..] } else { &body[sent - header.len()..] };
            sent += rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Reads one whole message. PID 1 writes each in one go, so once its first byte is there the
    /// rest follows at once. `None` when PID 1 is gone.
    ///
    /// # Errors
    /// `WouldBlock` when there is none yet and `wait` is not asked for.
    pub(crate) fn receive(&self, wait: bool) -> std::io::Result<Option<Message>> {
        let mut bytes = [0; Header::BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
        let mut pieces = [std::io::IoSliceMut::new(&mut bytes)];
        let first = recvmsg(&self.socket, &mut pieces, &mut ancillary, flags)?.bytes;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if first == 0 || !self.read_exactly(&mut bytes[first..])? {
            return Ok(None);
        }
        let malformed = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        let header = Header::decode(&bytes).ok_or_else(malformed)?;
        let mut body = vec![0; header.body_bytes as usize];
        if !self.read_exactly(&mut body)? {
            return Ok(None);
        }
        Ok(Some(Message { header, body, descriptors }))
    }

    fn read_exactly(&self, mut buffer: &mut [u8]) -> std::io::Result<bool> {
        while !buffer.is_empty() {
            match std::io::Read::read(&mut &self.socket, buffer)? {
                0 => return Ok(false),
                count => buffer = &mut buffer[count..],
            }
        }
        Ok(true)
    }

    /// Gives an answer to whoever waits for it.
    pub(crate) fn deliver(&self, message: Message) {
        let request = message.header.request;
        let sender = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&request);
        let Some(sender) = sender else { return };
        let answer = match message.header.kind {
            Kind::Failed => match Failed::decode(&message.body) {
                Some(failed) => Err(failed),
                None => return,
            },
            _ => Ok(message),
        };
        // A waiter that has given up does not need it.
        let _unused = sender.try_send(answer);
    }

    /// PID 1 is gone: nobody waits any longer.
    pub(crate) fn abandon(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Pending {
    /// Waits for the answer.
    pub(crate) fn wait(self, timeout: Duration) -> Result<Answer> {
        self.answer.recv_timeout(timeout).map_err(|error| match error {
            mpsc::RecvTimeoutError::Disconnected => {
                EngineError::new(ErrorKind::NotFound, "the sandbox ended before it answered")
            }
            mpsc::RecvTimeoutError::Timeout => {
                EngineError::new(ErrorKind::Internal, "the sandbox's PID 1 does not answer")
            }
        })
    }
}
