//! signalfd: reading signals from a descriptor.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};

/// Makes a descriptor from which whoever holds it reads its own signals; bit `n - 1` of the mask
/// stands for signal `n`.
///
/// # Errors
/// EMFILE or ENOMEM if the kernel can't provide one.
pub fn create(mask: u64) -> Result<OwnedFd> {
    // SAFETY: the kernel reads eight bytes, the length given, from `mask`.
    let number =
        unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, size_of::<u64>(), libc::SFD_CLOEXEC) };
    let number = i32::try_from(number).ok().filter(|number| *number >= 0);
    let error = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    let number = number.ok_or_else(error)?;
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_mask_is_the_one_asked_for() {
        let descriptor = create(1 << 9).unwrap();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd())).unwrap();
        assert!(text.contains("sigmask:\t0000000000000200"), "{text}");
    }
}
