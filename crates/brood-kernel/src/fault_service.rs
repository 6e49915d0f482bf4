//! Serving the page faults of another process: reading what a userfaultfd reports, answering.
//!
//! The order of things in the kernel, which a server has to follow (fs/userfaultfd.c):
//!
//! - A task that changes its address space (fork, mremap, munmap, madvise) announces it before it
//!   begins. From then until it goes on after its report was read, every answer gets EAGAIN.
//! - Faults are reported before events that are older. So what one read brings has its events
//!   applied first, and its faults answered after them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;
use linux_raw_sys::ioctl;
use rustix::io::{Errno, Result};

use crate::shared_pages::PAGE_BYTES;
use crate::userfaultfd::{Features, Userfaultfd};

/// Reports fetched by one call.
const MESSAGES_PER_READ: usize = 16;
const MESSAGE_BYTES: usize = size_of::<raw::uffd_msg>();
/// `_IO(0xAA, 0x00)`: makes a userfaultfd through the device; the bindings lack it.
pub const USERFAULTFD_IOC_NEW: u32 = raw::UFFDIO << 8;
/// `_IOWR(0xAA, 0x08, struct uffdio_poison)`; the bindings lack it.
const UFFDIO_POISON: u32 = read_write_request(raw::_UFFDIO_POISON, size_of::<raw::uffdio_poison>());
const _: () = {
    assert!(MESSAGE_BYTES == 32);
    // The same formula gives a number that the bindings do have.
    assert!(read_write_request(raw::_UFFDIO_COPY, size_of::<raw::uffdio_copy>()) == ioctl::UFFDIO_COPY);
};

const fn read_write_request(number: u32, bytes: usize) -> u32 {
    (3 << 30) | ((bytes as u32) << 16) | (raw::UFFDIO << 8) | number
}

/// A touch of a page that isn't there. The task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Address of the page.
    pub address: u64,
    /// The task wants to write.
    pub write: bool,
}

/// What a userfaultfd reports.
#[derive(Debug)]
pub enum Report {
    /// A task waits for a page.
    Fault(Fault),
    /// The process forked; this serves the child.
    Forked(Userfaultfd),
    /// Memory was moved.
    Moved {
        /// Address before.
        from: u64,
        /// Address now.
        to: u64,
        /// Length, in bytes.
        bytes: u64,
    },
    /// Contents are given up.
    Removed {
        /// First address.
        start: u64,
        /// First address behind.
        end: u64,
    },
    /// Mappings were removed.
    Unmapped {
        /// First address.
        start: u64,
        /// First address behind.
        end: u64,
    },
}

/// How an answer went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// All pages were put in place and those waiting for them go on.
    Done,
    /// That many bytes were put in place, before a page that is there already.
    Exists {
        /// Bytes in front of that page.
        done: u64,
    },
    /// That many bytes were put in place; the address space is being changed, or memory is
    /// short. To be tried again later.
    Later {
        /// Bytes put in place.
        done: u64,
    },
    /// Nothing that is watched is mapped there any more.
    Unmapped,
    /// The address space is gone.
    Ended,
}

/// Page contents to be copied into a process, in a buffer that is aligned as the kernel wants.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub struct PageBuffer<const PAGES: usize> {
    pages: [[u8; PAGE_BYTES]; PAGES],
}

impl<const PAGES: usize> PageBuffer<PAGES> {
    /// Zeros, on the heap.
    #[must_use]
    pub fn new() -> Box<Self> {
        Box::new(Self { pages: [[0; PAGE_BYTES]; PAGES] })
    }

    /// A page of the buffer.
    #[must_use]
    pub fn page_mut(&mut self, index: usize) -> Option<&mut [u8; PAGE_BYTES]> {
        self.pages.get_mut(index)
    }
}

impl Userfaultfd {
    /// Makes one by way of `/dev/userfaultfd` for this process; it also serves faults that occur
    /// inside system calls.
    ///
    /// # Errors
    /// ENOENT if the device is missing, EACCES if it may not be used.
    pub fn through_device(features: Features) -> Result<Self> {
        let device = open_device()?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: this request takes only a number.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW.into(), flags) };
        if result < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(result) };
        Self::start(descriptor, features)
    }

    /// Appends what is reported at present; nothing if there is nothing.
    ///
    /// The descriptor must not block. Events are complete for those who caused them when this
    /// returns: they go on.
    ///
    /// # Errors
    /// EMFILE if a child's descriptor can't be received, ENOMEM.
    pub fn read_reports(&self, reports: &mut Vec<Report>) -> Result<()> {
        let mut buffer = [0_u8; MESSAGES_PER_READ * MESSAGE_BYTES];
        let read = match rustix::io::read(self, &mut buffer[..]) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        };
        reports.extend(buffer[..read].chunks_exact(MESSAGE_BYTES).filter_map(decode));
        Ok(())
    }

    /// Copies the first `count` pages of a buffer to `address`; with `protect` the next write to
    /// them is noted (the range must be watched for writes).
    ///
    /// # Errors
    /// EINVAL for a range that can't be, or more pages than the buffer has.
    pub fn supply<const PAGES: usize>(
        &self,
        address: u64,
        buffer: &PageBuffer<PAGES>,
        first: usize,
        count: usize,
        protect: bool,
    ) -> Result<Answer> {
        let pages = buffer.pages.get(first..first + count).ok_or(Errno::INVAL)?;
        let mut argument = raw::uffdio_copy {
            dst: address,
            src: pages.as_ptr().expose_provenance() as u64,
            len: (count * PAGE_BYTES) as u64,
            mode: if protect { u64::from(raw::UFFDIO_COPY_MODE_WP) } else { 0 },
            copy: 0,
        };
        // SAFETY: the argument is of the type that the request takes; the kernel reads `len`
        // bytes from `src`, which is a slice of that length borrowed for the call.
        let result = unsafe { self.control(ioctl::UFFDIO_COPY, &mut argument) };
        answer(result, argument.copy)
    }

    /// Puts the shared page of zeros in place, for reading.
    ///
    /// # Errors
    /// EINVAL for a range that can't be.
    pub fn supply_zeros(&self, address: u64, bytes: u64) -> Result<Answer> {
        let range = raw::uffdio_range { start: address, len: bytes };
        let mut argument = raw::uffdio_zeropage { range, mode: 0, zeropage: 0 };
        // SAFETY: the argument is of the type that the request takes.
        let result = unsafe { self.control(ioctl::UFFDIO_ZEROPAGE, &mut argument) };
        answer(result, argument.zeropage)
    }

    /// Makes pages fail on access: the toucher gets SIGBUS, a system call EFAULT.
    ///
    /// # Errors
    /// EINVAL for a range that can't be, ENOTTY before Linux 6.6.
    pub fn supply_failure(&self, address: u64, bytes: u64) -> Result<Answer> {
        let range = raw::uffdio_range { start: address, len: bytes };
        let mut argument = raw::uffdio_poison { range, mode: 0, updated: 0 };
        // SAFETY: the argument is of the type that the request takes.
        let result = unsafe { self.control(UFFDIO_POISON, &mut argument) };
        answer(result, argument.updated)
    }

    /// Lets tasks go on that wait for pages which are there by now, or whose mapping is gone;
    /// they look again.
    ///
    /// # Errors
    /// EINVAL for a range that can't be.
    pub fn wake(&self, address: u64, bytes: u64) -> Result<()> {
        let mut argument = raw::uffdio_range { start: address, len: bytes };
        // SAFETY: the argument is of the type that the request takes.
        unsafe { self.control(ioctl::UFFDIO_WAKE, &mut argument) }
    }

    /// Whether the address space still exists: nothing reports its end. `unused` is the address
    /// of a page about which nobody cares (it may lose its write protection).
    #[must_use]
    pub fn serves_the_living(&self, unused: u64) -> bool {
        self.write_protect(unused, PAGE_BYTES as u64, false) != Err(Errno::SRCH)
    }
}

/// Opens `/dev/userfaultfd`, whose holders can make userfaultfds that also serve faults inside
/// system calls, whatever privileges they have.
///
/// # Errors
/// ENOENT if it is missing, EACCES if it may not be used.
pub fn open_device() -> Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/userfaultfd", flags, rustix::fs::Mode::empty())
}

fn answer(result: Result<()>, done: i64) -> Result<Answer> {
    let partly = u64::try_from(done).unwrap_or(0);
    match result {
        Ok(()) => Ok(Answer::Done),
        // A page in the way ends a copy of several; whether it was that shows the next attempt.
        Err(Errno::AGAIN | Errno::NOMEM) => Ok(Answer::Later { done: partly }),
        Err(Errno::EXIST) => Ok(Answer::Exists { done: partly }),
        Err(Errno::NOENT) => Ok(Answer::Unmapped),
        Err(Errno::SRCH) => Ok(Answer::Ended),
        Err(error) => Err(error),
    }
}

fn decode(message: &[u8]) -> Option<Report> {
    let word = |index: usize| {
        let bytes = message.get(8 + index * 8..16 + index * 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let page = |address: u64| address & !(PAGE_BYTES as u64 - 1);
    match u32::from(*message.first()?) {
        raw::UFFD_EVENT_PAGEFAULT => {
            let write = word(0)? & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE) != 0;
            Some(Report::Fault(Fault { address: page(word(1)?), write }))
        }
        raw::UFFD_EVENT_FORK => {
            let number = u32::from_ne_bytes(message.get(8..12)?.try_into().ok()?);
            // SAFETY: the kernel has just made this descriptor for the reader of the message;
            // nobody else owns it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number.cast_signed()) };
            Some(Report::Forked(Userfaultfd::from(descriptor)))
        }
        raw::UFFD_EVENT_REMAP => Some(Report::Moved { from: word(0)?, to: word(1)?, bytes: word(2)? }),
        raw::UFFD_EVENT_REMOVE => Some(Report::Removed { start: word(0)?, end: word(1)? }),
        raw::UFFD_EVENT_UNMAP => Some(Report::Unmapped { start: word(0)?, end: word(1)? }),
        _ => None,
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_pages::SharedPages;
    use crate::userfaultfd::Watch;

    /// Shared memory stands for the process': the requests are the same.
    fn watched(pages: usize) -> (SharedPages, Userfaultfd, u64) {
        let memory = SharedPages::new("served", pages).unwrap();
        let server = Userfaultfd::through_device(Features::POISON).unwrap();
        let start = memory.address(0).unwrap();
        server.register(start, (pages * PAGE_BYTES) as u64, Watch::MISSING).unwrap();
        (memory, server, start)
    }

    #[test]
    fn a_missing_page_waits_for_its_content() {
        let (memory, server, start) = watched(4);
        let mut buffer = PageBuffer::<2>::new();
        buffer.page_mut(0).unwrap().fill(7);
        buffer.page_mut(1).unwrap().fill(9);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| memory.read(1).unwrap()[0]);
            let mut descriptor = [rustix::event::PollFd::new(&server, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut descriptor, None).unwrap();
            let mut reports = Vec::new();
            server.read_reports(&mut reports).unwrap();
            let [Report::Fault(fault)] = reports[..] else { panic!("{reports:?}") };
            assert_eq!(fault, Fault { address: start + 4096, write: false });
            assert_eq!(server.supply(fault.address, &buffer, 0, 2, false), Ok(Answer::Done));
            assert_eq!(reader.join().unwrap(), 7);
        });
        assert_eq!(memory.read(2).unwrap()[0], 9);
        assert_eq!(server.supply(start + 4096, &buffer, 0, 1, false), Ok(Answer::Exists { done: 0 }));
        assert_eq!(server.supply(start, &buffer, 0, 2, false), Ok(Answer::Later { done: 4096 }));
        assert_eq!(server.supply_zeros(start + 3 * 4096, 4096), Ok(Answer::Done));
        assert_eq!(memory.read(3).unwrap(), [0; PAGE_BYTES]);
        assert_eq!(server.supply_zeros(start + 4 * 4096, 4096), Ok(Answer::Unmapped));
        assert_eq!(server.supply(start, &buffer, 1, 2, false), Err(Errno::INVAL));
        server.wake(start, 4096).unwrap();
        let mut reports = Vec::new();
        server.read_reports(&mut reports).unwrap();
        assert!(reports.is_empty());
        assert!(server.serves_the_living(start));
    }

    #[test]
    fn a_page_made_to_fail_fails_system_calls_too() {
        let (memory, server, start) = watched(2);
        assert_eq!(server.supply_failure(start, 4096), Ok(Answer::Done));
        let run = crate::process_memory::PageRun { address: start, page: 0, pages: 1 };
        let target = SharedPages::new("target", 1).unwrap();
        let read = crate::process_memory::read_pages(rustix::process::getpid(), &[run], &target);
        assert_eq!(read, Err(Errno::FAULT));
        drop(memory);
    }

    #[test]
    fn messages_are_told_apart() {
        let message = |event: u32, words: [u64; 3]| {
            let mut bytes = [0_u8; MESSAGE_BYTES];
            bytes[0] = event as u8;
            for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
            bytes
        };
        let decoded = decode(&message(raw::UFFD_EVENT_REMAP, [1, 2, 3]));
        assert!(matches!(decoded, Some(Report::Moved { from: 1, to: 2, bytes: 3 })));
        let decoded = decode(&message(raw::UFFD_EVENT_PAGEFAULT, [1, 0x5123, 0]));
        assert!(matches!(decoded, Some(Report::Fault(Fault { address: 0x5000, write: true }))));
        assert!(decode(&message(99, [0; 3])).is_none());
        assert!(decode(&[]).is_none());
    }
}
