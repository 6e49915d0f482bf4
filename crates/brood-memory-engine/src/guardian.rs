//! The guardian: a tiny process that outlives the one that keeps the pool.
//!
//! When the daemon dies, however it dies, the kernel closes its userfaultfds. The last descriptor of a userfaultfd that is
//! closed turns every page that is still owed into zeros. So the guardian has a copy of each. When its connection ends, it
//! kills the sandboxes that depend on the daemon, waits until none of their processes is left, and only then ends itself:
//! until then, whoever touches an absent page waits.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use brood_pager::{Custodian, SpaceId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Signal, pidfd_send_signal};

/// How long one sandbox' end is waited for.
const END_SECONDS: i64 = 60;
/// Descriptors of a daemon that has many; the kernel's table grows with the highest number.
const NUMBERS_MAX: u64 = 1 << 16;
/// Numbers left above for others who want a high one.
const NUMBERS_LEFT: i32 = 64;
/// Kind and number.
const MESSAGE_BYTES: usize = 9;

/// What a message says.
const KEEP: u8 = b'k';
const FORGET: u8 = b'f';
const SANDBOX: u8 = b's';

/// The daemon's end.
#[derive(Debug)]
pub struct Guardian {
    socket: Option<OwnedFd>,
    process: Mutex<Child>,
}

impl Guardian {
    /// Starts a guardian. `command` is a program that calls [`run`] on its standard input.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(mut command: Command) -> io::Result<Arc<Self>> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // In a group of its own: an interrupt from a terminal is meant for the daemon.
        let process = command.process_group(0).stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        let ours = rustix::io::fcntl_dupfd_cloexec(&ours, high_number()).unwrap_or(ours);
        Ok(Arc::new(Self { socket: Some(ours), process: Mutex::new(process) }))
    }

    /// Has a sandbox killed if this process dies. `init` is a pidfd of its PID 1.
    pub fn watch_sandbox(&self, init: BorrowedFd<'_>) {
        self.send(SANDBOX, 0, Some(init));
    }

    fn send(&self, kind: u8, number: u64, descriptor: Option<BorrowedFd<'_>>) {
        let mut message = [kind; MESSAGE_BYTES];
        message[1..].copy_from_slice(&number.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let Some(socket) = &self.socket else { return };
        if let Err(error) = sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL) {
            tracing::error!(%error, "the guardian is gone: should this process die, squeezed memory is lost");
        }
    }
}

impl Custodian for Guardian {
    fn keep(&self, space: SpaceId, userfaultfd: BorrowedFd<'_>) {
        self.send(KEEP, space.get(), Some(userfaultfd));
    }

    fn forget(&self, space: SpaceId) {
        self.send(FORGET, space.get(), None);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.lock().unwrap_or_else(PoisonError::into_inner).wait() {
            tracing::warn!(%error, "the guardian could not be collected");
        }
    }
}

/// A high number for a descriptor. What a dying process has open is let go of from the highest number down, and letting go
/// of a pipe waits for a reader inside it, which may itself wait for a squeezed page: the guardian has to hear of the
/// death first.
fn high_number() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    i32::try_from(limit.min(NUMBERS_MAX)).unwrap_or(0).saturating_sub(NUMBERS_LEFT).max(0)
}

/// The guardian's whole life: holds what it is given until the other end of `socket` is closed, then kills all sandboxes
/// and returns when none of their processes is left.
pub fn run(socket: impl AsFd) {
    let mut kept: HashMap<u64, OwnedFd> = HashMap::new();
    let mut sandboxes: Vec<OwnedFd> = Vec::new();
    while let Some((kind, number, descriptor)) = receive(socket.as_fd()) {
        match (kind, descriptor) {
            (KEEP, Some(descriptor)) => {
                kept.insert(number, descriptor);
            }
            (FORGET, _) => {
                kept.remove(&number);
            }
            (SANDBOX, Some(descriptor)) => {
                sandboxes.retain(|sandbox| !has_ended(sandbox, 0));
                sandboxes.push(descriptor);
            }
            _ => {}
        }
    }
    for sandbox in &sandboxes {
        // One that has ended needs none.
        let _gone = pidfd_send_signal(sandbox, Signal::KILL);
    }
    for sandbox in &sandboxes {
        has_ended(sandbox, END_SECONDS);
    }
    drop(kept);
}

/// Whether a process has ended, waiting for it for so many seconds. A PID 1 ends after all others of its namespace.
fn has_ended(process: &OwnedFd, seconds: i64) -> bool {
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&timeout)), Ok(count) if count > 0)
}

fn receive(socket: BorrowedFd<'_>) -> Option<(u8, u64, Option<OwnedFd>)> {
    let mut message = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
            Ok(received) => break received.bytes,
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let (kind, number) = message.split_first()?;
    let number = u64::from_le_bytes(*number.first_chunk()?);
    (received == MESSAGE_BYTES).then_some((*kind, number, descriptor))
}
