//! Whether two tasks share a kernel object: kcmp(2).

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// `enum kcmp_type` of `linux/kcmp.h`, the members used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File = 0,
    AddressSpace = 1,
    Files = 2,
    FileSystem = 3,
    SignalHandlers = 4,
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

/// Whether two tasks share one address space.
///
/// # Errors
/// EPERM without ptrace access, ESRCH if one is gone.
pub fn same_address_space(one: Pid, other: Pid) -> Result<bool> {
    Ok(kcmp(one, other, Kind::AddressSpace, 0, 0)? == Order::Equal)
}

/// Whether two tasks share one descriptor table.
///
/// # Errors
/// As for [`same_address_space`].
pub fn same_descriptor_table(one: Pid, other: Pid) -> Result<bool> {
    Ok(kcmp(one, other, Kind::Files, 0, 0)? == Order::Equal)
}

/// Whether two tasks share working directory, root and umask.
///
/// # Errors
/// As for [`same_address_space`].
pub fn same_filesystem_state(one: Pid, other: Pid) -> Result<bool> {
    Ok(kcmp(one, other, Kind::FileSystem, 0, 0)? == Order::Equal)
}

/// Whether two tasks share one table of signal handlers.
///
/// # Errors
/// As for [`same_address_space`].
pub fn same_signal_handlers(one: Pid, other: Pid) -> Result<bool> {
    Ok(kcmp(one, other, Kind::SignalHandlers, 0, 0)? == Order::Equal)
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
        for same in [same_address_space, same_descriptor_table, same_filesystem_state, same_signal_handlers] {
            assert!(same(me, me).unwrap());
            assert!(!same(me, child.pid()).unwrap());
        }
    }
}
