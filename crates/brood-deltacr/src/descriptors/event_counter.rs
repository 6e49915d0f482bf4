//! Event counters (eventfd).

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::proc_files::DescriptorInformation;

/// An event counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCounter {
    /// Its value.
    pub count: u64,
    /// Reads take one instead of all.
    pub semaphore: bool,
}

impl EventCounter {
    pub(crate) fn capture(information: &DescriptorInformation) -> Option<Self> {
        let count = u64::from_str_radix(information.value("eventfd-count")?, 16).ok()?;
        let semaphore = information.value("eventfd-semaphore").is_some_and(|value| value != "0");
        Some(Self { count, semaphore })
    }

    pub(crate) fn make(self) -> Result<OwnedFd, Errno> {
        let flags = if self.semaphore { EventfdFlags::SEMAPHORE } else { EventfdFlags::empty() };
        let counter = eventfd(0, flags | EventfdFlags::CLOEXEC)?;
        if self.count > 0 {
            rustix::io::write(&counter, &self.count.to_ne_bytes())?;
        }
        Ok(counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_counter_is_read_from_its_description_and_made_again() {
        let original = eventfd(5, EventfdFlags::NONBLOCK).unwrap();
        let me = rustix::process::getpid();
        let describe = |counter: &OwnedFd| {
            let information = crate::proc_files::descriptor_information(me, counter.as_raw_fd(), &mut Vec::new());
            EventCounter::capture(&information.unwrap()).unwrap()
        };
        let image = describe(&original);
        assert_eq!(image, EventCounter { count: 5, semaphore: false });
        assert_eq!(describe(&image.make().unwrap()), image);
    }
}
