//! Which descriptors a started program gets.

use std::os::fd::RawFd;

use rustix::io::{Errno, Result};

/// Keeps all descriptors of this process from `first` on from the programs that it starts
/// (`close_range(2)` with `CLOSE_RANGE_CLOEXEC`, Linux 5.11). They stay open here.
///
/// # Errors
/// ENOSYS on an older kernel.
pub fn keep_from_programs(first: RawFd) -> Result<()> {
    let first = u32::try_from(first).map_err(|_negative| Errno::BADF)?;
    // SAFETY: the call takes numbers only, and setting the flag takes no descriptor from its owner.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn descriptors_are_kept_from_programs() {
        let file = std::fs::File::open("/dev/null").unwrap();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        keep_from_programs(file.as_raw_fd()).unwrap();
        assert!(fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(keep_from_programs(-1), Err(Errno::BADF));
    }
}
