//! Signals that are read (signalfd).

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::proc_files::DescriptorInformation;

/// A descriptor that signals are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalDescriptor {
    /// The signals, as bits.
    pub mask: u64,
}

impl SignalDescriptor {
    pub(crate) fn capture(information: &DescriptorInformation) -> Option<Self> {
        let mask = u64::from_str_radix(information.value("sigmask")?, 16).ok()?;
        Some(Self { mask })
    }

    pub(crate) fn make(self) -> Result<OwnedFd, Errno> {
        brood_kernel::signal_descriptor::create(self.mask)
    }
}
