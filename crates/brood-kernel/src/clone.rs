//! Making processes by raw clone3(2).

use std::ptr;

use linux_raw_sys::general::clone_args;
use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// The arguments of clone3 as bytes, for a call made on behalf of another process.
///
/// `set_tid` and the other pointers are addresses in that process.
#[must_use]
pub fn arguments(flags: u64, exit_signal: i32, set_tid: Option<u64>) -> [u8; size_of::<clone_args>()] {
    let words = [
        flags,
        0,
        0,
        0,
        u64::from(exit_signal.unsigned_abs()),
        0,
        0,
        0,
        set_tid.unwrap_or(0),
        u64::from(set_tid.is_some()),
        0,
    ];
    let mut bytes = [0_u8; size_of::<clone_args>()];
    for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
        target.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Forks a child that does nothing but wait for signals, with all of them blocked. It is meant
/// to be seized and rebuilt by its tracer.
///
/// # Errors
/// EAGAIN or ENOMEM if the kernel can't make another process.
pub fn fork_paused() -> Result<Pid> {
    let all = u64::MAX;
    let mut old = 0_u64;
    set_mask(ptr::from_ref(&all), ptr::from_mut(&mut old))?;
    // SAFETY: with null pointers the call makes a plain copy of this process; what the child
    // does is restricted below to raw system calls.
    let result = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if result == 0 {
        wait_for_ever();
    }
    let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    set_mask(ptr::from_ref(&old), ptr::null_mut())?;
    i32::try_from(result).ok().and_then(Pid::from_raw).ok_or(error)
}

fn set_mask(new: *const u64, old: *mut u64) -> Result<()> {
    // SAFETY: both pointers come from references to 64-bit sets or are null, and the length is
    // theirs.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>()) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// The child's whole life: no allocation, no lock, no return.
fn wait_for_ever() -> ! {
    loop {
        // SAFETY: a system call without memory arguments.
        unsafe {
            libc::syscall(libc::SYS_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_child_waits_until_it_is_killed() {
        let pid = fork_paused().unwrap();
        rustix::process::test_kill_process(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        let (_, status) = status.unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn arguments_have_the_layout_of_the_kernel() {
        let bytes = arguments(0x100, libc::SIGCHLD, Some(0x1234));
        let word = |index: usize| u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8), word(9)), (0x100, 17, 0x1234, 1));
        assert_eq!(std::mem::offset_of!(clone_args, set_tid), 64);
        assert_eq!(std::mem::offset_of!(clone_args, exit_signal), 32);
    }
}
