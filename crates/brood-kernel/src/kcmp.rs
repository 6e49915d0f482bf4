//! Whether two tasks share a kernel object: kcmp(2).

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// `enum kcmp_type` of `linux/kcmp.h`, the members used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File = 0,
    AddressSpace = 1,
    Files = 2,
}

/// How two kernel objects compare: equal, or ordered by the kernel's (obfuscated) order.
pub type Order = std::cmp::Ordering;

fn kcmp(one: Pid, other: Pid, kind: Kind, first: u64, second: u64) -> Result<Order> {
    // SAFETY: the kinds used take numbers only; no memory of this process is accessed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.as_raw_nonzero().get(),
            other.as_raw_nonzero().get(),
            kind as libc::c_int,
            first,
            second,
        )
    };
    match result {
        0 => Ok(Order::Equal),
        1 => Ok(Order::Less),
        2 => Ok(Order::Greater),
        3 => Err(Errno::INVAL),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Compares the open files behind two descriptors; equal means one offset, one set of flags.
///
/// # Errors
/// EBADF if a descriptor isn't open, EPERM without ptrace access.
pub fn files(one: (Pid, i32), other: (Pid, i32)) -> Result<Order> {
    let number = |descriptor: i32| u64::from(descriptor.unsigned_abs());
    kcmp(one.0, other.0, Kind::File, number(one.1), number(other.1))
}

/// Compares two tasks' address spaces.
///
/// # Errors
/// EPERM without ptrace access, ESRCH if one is gone.
pub fn address_spaces(one: Pid, other: Pid) -> Result<Order> {
    kcmp(one, other, Kind::AddressSpace, 0, 0)
}

/// Compares two tasks' descriptor tables.
///
/// # Errors
/// As for [`address_spaces`].
pub fn descriptor_tables(one: Pid, other: Pid) -> Result<Order> {
    kcmp(one, other, Kind::Files, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_child::Child;
    use std::os::fd::AsRawFd;

    #[test]
    fn duplicates_are_equal_and_reopened_files_are_not() {
        let me = rustix::process::getpid();
        let file = std::fs::File::open("/dev/null").unwrap();
        let duplicate = file.try_clone().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        let compare = |a: &std::fs::File, b: &std::fs::File| files((me, a.as_raw_fd()), (me, b.as_raw_fd())).unwrap();
        assert_eq!(compare(&file, &duplicate), Order::Equal);
        assert_ne!(compare(&file, &other), Order::Equal);
        assert_eq!(compare(&file, &other), compare(&other, &file).reverse());
    }

    #[test]
    fn processes_share_nothing_and_a_task_shares_all_with_itself() {
        let me = rustix::process::getpid();
        let child = Child::sleeping();
        for compare in [address_spaces, descriptor_tables] {
            assert_eq!(compare(me, me).unwrap(), Order::Equal);
            assert_ne!(compare(me, child.pid()).unwrap(), Order::Equal);
        }
    }
}
