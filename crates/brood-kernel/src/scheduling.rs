//! Scheduling attributes of other tasks: sched_setattr(2).

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// Bytes of `struct sched_attr` in its first version.
pub const ATTRIBUTES_BYTES: usize = 48;

/// Gives a task scheduling attributes (policy, niceness, deadlines) in the kernel's form, as
/// sched_getattr(2) returned them.
///
/// # Errors
/// EPERM without the right to raise its priority, ESRCH if it is gone, EINVAL for attributes
/// that don't fit together.
pub fn set_attributes(task: Pid, attributes: &[u8; ATTRIBUTES_BYTES]) -> Result<()> {
    let mut copy = *attributes;
    let size = u32::try_from(ATTRIBUTES_BYTES).unwrap_or(0);
    copy[..4].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: the kernel reads as many bytes as the record's first field says, which is its size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, task.as_raw_nonzero().get(), copy.as_ptr(), 0) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_child::Child;

    #[test]
    fn niceness_of_another_task_is_set_both_ways() {
        let child = Child::sleeping();
        for nice in [7_i32, 3] {
            let mut attributes = [0; ATTRIBUTES_BYTES];
            attributes[16..20].copy_from_slice(&nice.to_ne_bytes());
            set_attributes(child.pid(), &attributes).unwrap();
            let seen = rustix::process::getpriority_process(Some(child.pid())).unwrap();
            assert_eq!(seen, nice);
        }
    }
}
