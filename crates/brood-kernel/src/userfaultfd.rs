//! userfaultfd: watching writes, filling missing pages of another process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bitflags::bitflags;
use linux_raw_sys::{general as raw, ioctl};
use rustix::io::{Errno, Result};

use crate::shared_pages::{PAGE_BYTES, SharedPages};

bitflags! {
    /// Features asked for in the handshake.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Children made by fork stay watched; their descriptor arrives as an event. Needs
        /// CAP_SYS_PTRACE.
        const EVENT_FORK = raw::UFFD_FEATURE_EVENT_FORK as u64;
        /// Watched memory that is moved stays watched, and moves are reported.
        const EVENT_REMAP = raw::UFFD_FEATURE_EVENT_REMAP as u64;
        /// Contents that are given up (`MADV_DONTNEED`, `MADV_FREE`) are reported.
        const EVENT_REMOVE = raw::UFFD_FEATURE_EVENT_REMOVE as u64;
        /// Watched mappings that are removed are reported.
        const EVENT_UNMAP = raw::UFFD_FEATURE_EVENT_UNMAP as u64;
        /// Pages can be made to fail on access.
        const POISON = raw::UFFD_FEATURE_POISON as u64;
        /// Write protection works on pages that don't exist yet.
        const WRITE_PROTECT_UNPOPULATED = raw::UFFD_FEATURE_WP_UNPOPULATED as u64;
        /// The kernel resolves write faults itself and only remembers them.
        const WRITE_PROTECT_ASYNC = raw::UFFD_FEATURE_WP_ASYNC as u64;
    }
}

bitflags! {
    /// What a range is watched for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Watch: u64 {
        /// First touches of pages that don't exist.
        const MISSING = raw::UFFDIO_REGISTER_MODE_MISSING as u64;
        /// Writes.
        const WRITES = raw::UFFDIO_REGISTER_MODE_WP as u64;
    }
}

/// A userfaultfd of some process, ready for use after [`Userfaultfd::start`].
#[derive(Debug)]
pub struct Userfaultfd {
    descriptor: OwnedFd,
}

impl Userfaultfd {
    /// Makes one for this process (user-mode faults only, which needs no privilege).
    ///
    /// # Errors
    /// ENOSYS on a kernel without it.
    pub fn for_this_process(features: Features) -> Result<Self> {
        use std::os::fd::FromRawFd;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | raw::UFFD_USER_MODE_ONLY as i32;
        // SAFETY: the call takes only a number.
        let result = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let number = i32::try_from(result).ok().filter(|number| *number >= 0);
        let number = number.ok_or_else(last_error)?;
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        Self::start(descriptor, features)
    }

    /// Does the handshake on a descriptor taken from the process that it serves.
    ///
    /// # Errors
    /// EINVAL if the kernel lacks a feature, EPERM if the caller may not have it.
    pub fn start(descriptor: OwnedFd, features: Features) -> Result<Self> {
        let this = Self { descriptor };
        let mut argument = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: features.bits(), ioctls: 0 };
        // SAFETY: the argument is of the type that the request takes.
        unsafe { this.control(ioctl::UFFDIO_API, &mut argument)? };
        Ok(this)
    }

    /// Starts watching the mappings between two addresses; holes are allowed.
    ///
    /// # Errors
    /// EINVAL if no mapping or an unsuitable one lies there, EPERM for a read-only shared file
    /// mapping, EBUSY if another userfaultfd watches one of them.
    pub fn register(&self, start: u64, bytes: u64, watch: Watch) -> Result<()> {
        let mut argument =
            raw::uffdio_register { range: raw::uffdio_range { start, len: bytes }, mode: watch.bits(), ioctls: 0 };
        // SAFETY: the argument is of the type that the request takes.
        unsafe { self.control(ioctl::UFFDIO_REGISTER, &mut argument) }
    }

    /// Stops watching.
    ///
    /// # Errors
    /// EINVAL if an unsuitable mapping lies in the range.
    pub fn unregister(&self, start: u64, bytes: u64) -> Result<()> {
        let mut argument = raw::uffdio_range { start, len: bytes };
        // SAFETY: the argument is of the type that the request takes.
        unsafe { self.control(ioctl::UFFDIO_UNREGISTER, &mut argument) }
    }

    /// Protects the pages of a watched range, so that the next write is noted, or lifts that.
    ///
    /// # Errors
    /// ENOENT if the range isn't watched for writes.
    pub fn write_protect(&self, start: u64, bytes: u64, protect: bool) -> Result<()> {
        let mut argument =
            raw::uffdio_writeprotect { range: raw::uffdio_range { start, len: bytes }, mode: u64::from(protect) };
        // SAFETY: the argument is of the type that the request takes.
        unsafe { self.control(ioctl::UFFDIO_WRITEPROTECT, &mut argument) }
    }

    /// Fills missing pages from `pages`; with `protect` the next write to them is noted.
    ///
    /// # Errors
    /// EEXIST if a page is there already (those before it were filled), ENOENT if the range
    /// isn't watched, ESRCH if the process is gone.
    pub fn copy(&self, address: u64, pages: &SharedPages, first: usize, count: usize, protect: bool) -> Result<()> {
        let source = pages.pointer(first, count)?.expose_provenance() as u64;
        let total = (count * PAGE_BYTES) as u64;
        let mut done = 0_u64;
        while done < total {
            let mut argument = raw::uffdio_copy {
                dst: address + done,
                src: source + done,
                len: total - done,
                mode: if protect { u64::from(raw::UFFDIO_COPY_MODE_WP) } else { 0 },
                copy: 0,
            };
            // SAFETY: the argument is of the type that the request takes; the kernel reads
            // `len` bytes from `src`, which `pointer` checked to lie inside the shared pages.
            let result = unsafe { self.control(ioctl::UFFDIO_COPY, &mut argument) };
            match (result, u64::try_from(argument.copy)) {
                (Ok(()), _) => return Ok(()),
                (Err(Errno::AGAIN), Ok(copied)) => done += copied,
                (Err(Errno::AGAIN), Err(_)) => {}
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    /// # Safety
    /// `argument` must be of the type that the request takes, and pointers in it valid.
    pub(crate) unsafe fn control<T>(&self, request: u32, argument: &mut T) -> Result<()> {
        // SAFETY: the caller vouches for the argument's type and contents.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request.into(), argument) };
        if result < 0 { Err(last_error()) } else { Ok(()) }
    }
}

impl From<OwnedFd> for Userfaultfd {
    /// Takes over one whose handshake was done, such as that of a forked child.
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::{self, Categories, Filter};

    const WATCH: Features = Features::WRITE_PROTECT_ASYNC.union(Features::WRITE_PROTECT_UNPOPULATED);

    #[test]
    fn writes_after_protection_are_found_by_a_scan() {
        let pages = SharedPages::new("watched", 16).unwrap();
        for page in 0..16 {
            pages.write(page, &[1; PAGE_BYTES]).unwrap();
        }
        let (start, bytes) = (pages.address(0).unwrap(), 16 * PAGE_BYTES as u64);
        let watcher = Userfaultfd::for_this_process(WATCH).unwrap();
        watcher.register(start, bytes, Watch::WRITES).unwrap();
        watcher.write_protect(start, bytes, true).unwrap();
        pages.write(9, &[2; PAGE_BYTES]).unwrap();
        let pagemap = pagemap::open(rustix::process::getpid()).unwrap();
        let filter =
            Filter { all_of: Categories::WRITTEN | Categories::WRITE_WATCHED, protect: true, ..Filter::default() };
        let mut found = Vec::new();
        pagemap::scan(&pagemap, start, start + bytes, filter, &mut found).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].start, start + 9 * PAGE_BYTES as u64);
        found.clear();
        pagemap::scan(&pagemap, start, start + bytes, filter, &mut found).unwrap();
        assert!(found.is_empty(), "the scan protects what it reports: {found:?}");
        watcher.unregister(start, bytes).unwrap();
    }

    #[test]
    fn more_writes_than_one_scan_call_reports_are_all_found_once() {
        const PAGES: usize = 9000;
        let pages = SharedPages::new("watched", PAGES).unwrap();
        let (start, bytes) = (pages.address(0).unwrap(), (PAGES * PAGE_BYTES) as u64);
        let watcher = Userfaultfd::for_this_process(WATCH).unwrap();
        watcher.register(start, bytes, Watch::WRITES).unwrap();
        watcher.write_protect(start, bytes, true).unwrap();
        let pagemap = pagemap::open(rustix::process::getpid()).unwrap();
        let filter =
            Filter { all_of: Categories::WRITTEN | Categories::WRITE_WATCHED, protect: true, ..Filter::default() };
        for round in 0..3 {
            let written: Vec<u64> = (round..PAGES).step_by(2 + round).map(|p| p as u64).collect();
            for page in &written {
                pages.write(*page as usize, &[2; PAGE_BYTES]).unwrap();
            }
            let mut found = Vec::new();
            pagemap::scan(&pagemap, start, start + bytes, filter, &mut found).unwrap();
            let found: Vec<u64> =
                found.iter().flat_map(|region| (region.start - start) / 4096..(region.end - start) / 4096).collect();
            assert_eq!(found, written, "round {round}");
        }
    }

    #[test]
    fn an_unwatched_range_is_refused() {
        let pages = SharedPages::new("unwatched", 1).unwrap();
        let watcher = Userfaultfd::for_this_process(WATCH).unwrap();
        let address = pages.address(0).unwrap();
        assert_eq!(watcher.write_protect(address, 4096, true), Err(Errno::NOENT));
        assert_eq!(watcher.copy(address, &pages, 0, 1, false), Err(Errno::NOENT));
    }
}
