//! A stopped task that does what it is told: runs batches, receives descriptors.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use brood_kernel::injection::{Batch, BatchResults, EngineArea};
use brood_kernel::{process_memory, ptrace};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;

use crate::descriptors::table::duplicate;
use crate::engine_area::send_again;
use crate::error::{Error, Result, kernel};
use crate::words::{bytes_of_u64, u32_at};

/// Descriptors in one message; the kernel allows 253.
const DESCRIPTORS_PER_MESSAGE: usize = 250;
/// Bytes of the header in front of descriptors in a control message.
const CONTROL_HEADER_BYTES: usize = 16;
/// Bytes of `struct msghdr`.
const MESSAGE_HEADER_BYTES: usize = 56;

/// A stopped task in whose process code can be run.
#[derive(Debug)]
pub(crate) struct Puppet {
    /// Its process, as the host sees it.
    pub(crate) pid: Pid,
    /// The task, as the host sees it.
    pub(crate) tid: Pid,
    pub(crate) area: EngineArea,
    pub(crate) memory: File,
}

impl Puppet {
    /// Takes over a task that is stopped.
    pub(crate) fn new(pid: Pid, tid: Pid, area: EngineArea) -> Result<Self> {
        let memory = process_memory::open(pid).map_err(kernel(pid, "open the memory"))?;
        Ok(Self { pid, tid, area, memory })
    }

    /// An empty batch for it.
    pub(crate) fn batch(&self) -> Batch {
        Batch::new(self.area)
    }

    /// Runs a batch; nothing happens if it is empty.
    pub(crate) fn run(&self, batch: &Batch) -> Result<BatchResults> {
        let results = batch.run(self.tid, &self.memory)?;
        for signal in results.deferred_signals() {
            send_again(self.pid, self.tid, *signal);
        }
        Ok(results)
    }

    /// Runs the batch and starts a new one if less than `bytes` are free in it.
    pub(crate) fn run_if_full(&self, batch: &mut Batch, bytes: usize) -> Result<()> {
        if batch.free_bytes() < bytes {
            self.run(batch)?;
            *batch = self.batch();
        }
        Ok(())
    }

    /// Gives the process descriptors; returns their numbers, all closed on execution.
    pub(crate) fn give(&self, files: &[BorrowedFd<'_>]) -> Result<Vec<i32>> {
        let mut batch = self.batch();
        let pair = batch.output(8);
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        batch.call(libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind, 0, pair.address]);
        let results = self.run(&batch)?;
        let inside = u32_at(results.output(pair), 0);
        let outside = u32_at(results.output(pair), 4);
        let ours = duplicate(self.pid, outside.cast_signed());
        let numbers =
            ours.map_err(kernel(self.pid, "take over a socket")).and_then(|ours| self.send_all(&ours, inside, files));
        let mut batch = self.batch();
        batch.call(libc::SYS_close, &[u64::from(inside)]);
        batch.call(libc::SYS_close, &[u64::from(outside)]);
        self.run(&batch)?;
        numbers
    }

    fn send_all(&self, ours: &OwnedFd, inside: u32, files: &[BorrowedFd<'_>]) -> Result<Vec<i32>> {
        let mut numbers = Vec::with_capacity(files.len());
        for files in files.chunks(DESCRIPTORS_PER_MESSAGE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(files));
            sendmsg(ours.as_fd(), &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)
                .map_err(kernel(self.pid, "hand over descriptors"))?;
            numbers.extend(self.receive(inside, files.len())?);
        }
        Ok(numbers)
    }

    fn receive(&self, socket: u32, count: usize) -> Result<Vec<i32>> {
        let mut batch = self.batch();
        let byte = batch.output(1);
        let vector = batch.data(&bytes_of_u64(&[byte.address, 1]));
        let control = batch.output((CONTROL_HEADER_BYTES + count * 4).next_multiple_of(8));
        let control_bytes = (CONTROL_HEADER_BYTES + count * 4).next_multiple_of(8) as u64;
        let header = bytes_of_u64(&[0, 0, vector, 1, control.address, control_bytes, 0]);
        debug_assert_eq!(header.len(), MESSAGE_HEADER_BYTES);
        let header = batch.data(&header);
        batch.call(libc::SYS_recvmsg, &[u64::from(socket), header, libc::MSG_CMSG_CLOEXEC as u64]);
        let results = self.run(&batch)?;
        let received = results.output(control);
        let length = u32_at(received, 0) as usize;
        if length < CONTROL_HEADER_BYTES + count * 4 {
            return Err(Error::Kernel {
                pid: self.pid.as_raw_nonzero().get(),
                action: "hand over all descriptors",
                source: rustix::io::Errno::MFILE,
            });
        }
        let number = |index: usize| u32_at(received, CONTROL_HEADER_BYTES + index * 4).cast_signed();
        Ok((0..count).map(number).collect())
    }

    /// The task's registers, for tasks about to be let go as they are.
    pub(crate) fn registers(&self) -> Result<ptrace::Registers> {
        ptrace::registers(self.tid).map_err(kernel(self.tid, "read registers"))
    }
}
