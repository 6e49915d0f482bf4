//! The userfaultfd of a process: it tracks writes, and for a process whose pages are still owed
//! it is in the care of the pager. A mapping can have only one, so it does both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use brood_kernel::fault_service::{self, USERFAULTFD_IOC_NEW};
use brood_kernel::userfaultfd::{Features, Userfaultfd};
use brood_pager::{Adoption, PagedSpace, Pager};
use linux_raw_sys::general::UFFD_USER_MODE_ONLY;
use rustix::process::Pid;

use crate::descriptors::table::duplicate;
use crate::error::{Result, kernel};
use crate::puppet::Puppet;

const TRACKING: Features = Features::WRITE_PROTECT_ASYNC.union(Features::WRITE_PROTECT_UNPOPULATED);

/// A page that programs don't use; at worst it counts as written.
const UNUSED_ADDRESS: u64 = 1 << 16;

/// Watches one address space.
#[derive(Debug)]
pub(crate) enum Watcher {
    /// Tracks writes.
    Tracking(Userfaultfd),
    /// Tracks writes and supplies pages.
    Paged(PagedSpace),
}

impl Watcher {
    pub(crate) fn userfaultfd(&self) -> &Userfaultfd {
        match self {
            Self::Tracking(userfaultfd) => userfaultfd,
            Self::Paged(space) => space.userfaultfd(),
        }
    }

    /// The space, if pages are supplied to it.
    pub(crate) fn space(&self) -> Option<&PagedSpace> {
        match self {
            Self::Tracking(_) => None,
            Self::Paged(space) => Some(space),
        }
    }

    /// Whether the memory that it watches still exists.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Tracking(userfaultfd) => userfaultfd.serves_the_living(UNUSED_ADDRESS),
            Self::Paged(space) => space.is_alive(),
        }
    }

    /// Makes one that tracks writes only.
    pub(crate) fn tracking(puppet: &Puppet) -> Result<Self> {
        let mut batch = puppet.batch();
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK).unsigned_abs() | UFFD_USER_MODE_ONLY;
        let make = batch.call(libc::SYS_userfaultfd, &[u64::from(flags)]);
        let number = puppet.run(&batch)?.result(make).map_err(kernel(puppet.pid, "watch writes"))?;
        let descriptor = take_over(puppet, number)?;
        let userfaultfd = Userfaultfd::start(descriptor, TRACKING).map_err(kernel(puppet.pid, "watch writes"))?;
        Ok(Self::Tracking(userfaultfd))
    }
}

fn take_over(puppet: &Puppet, number: u64) -> Result<OwnedFd> {
    let descriptor = duplicate(puppet.pid, i32::try_from(number).unwrap_or(-1));
    let mut batch = puppet.batch();
    batch.call(libc::SYS_close, &[number]);
    puppet.run(&batch)?;
    descriptor.map_err(kernel(puppet.pid, "take over a userfaultfd"))
}

/// What it takes to restore processes whose pages are owed.
#[derive(Debug)]
pub struct Paging {
    pager: Arc<Pager>,
    device: OwnedFd,
}

impl Paging {
    /// With the pager that is to serve them.
    ///
    /// # Errors
    /// If the host doesn't let the engine make userfaultfds that also serve system calls.
    pub fn new(pager: Arc<Pager>) -> Result<Self> {
        let own: Pid = rustix::process::getpid();
        let device = fault_service::open_device().map_err(kernel(own, "open /dev/userfaultfd"))?;
        // Whether the kernel has all that is needed shows before any process depends on it.
        let features = TRACKING.union(brood_pager::FEATURES);
        drop(Userfaultfd::through_device(features).map_err(kernel(own, "supply pages"))?);
        Ok(Self { pager, device })
    }

    /// The descriptor that the process must have, under any number.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Makes a watcher in the care of the pager. `device` is the number in the process.
    pub(crate) fn watcher(&self, puppet: &Puppet, device: i32, adoption: Adoption) -> Result<Watcher> {
        let mut batch = puppet.batch();
        let flags = u64::from((libc::O_CLOEXEC | libc::O_NONBLOCK).unsigned_abs());
        let arguments = [u64::from(device.unsigned_abs()), u64::from(USERFAULTFD_IOC_NEW), flags];
        let make = batch.call(libc::SYS_ioctl, &arguments);
        let number = puppet.run(&batch)?.result(make).map_err(kernel(puppet.pid, "supply pages"))?;
        let descriptor = take_over(puppet, number)?;
        let features = TRACKING.union(brood_pager::FEATURES);
        let userfaultfd = Userfaultfd::start(descriptor, features).map_err(kernel(puppet.pid, "supply pages"))?;
        Ok(Watcher::Paged(self.pager.adopt(userfaultfd, adoption)))
    }
}
