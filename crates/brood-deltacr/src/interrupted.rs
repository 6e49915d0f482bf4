//! System calls that a stop interrupted, and how they go on.
//!
//! Most calls tell the kernel to make them again after a stop; nothing has to be done for them
//! in the process itself, and a copy makes the call anew. A few report an interruption to the
//! program although no signal was handled (signal(7) lists them); those are made again here, so
//! that programs notice nothing. Calls that wait for a relative time start their full time again
//! when they are made anew.

use brood_kernel::ptrace::{self, Registers};
use rustix::process::Pid;

use crate::error::{Result, kernel};

/// Result that only the kernel sees: the call is to be made again, unless a signal is handled
/// first; then it reports an interruption (`ERESTARTNOHAND`).
const RESTART_UNLESS_HANDLED: i64 = -514;
/// Result that only the kernel sees: it has notes about how the call goes on
/// (`ERESTART_RESTARTBLOCK`).
const RESTART_BY_NOTES: i64 = -516;
/// Calls that report an interruption after any stop.
const REPORTING_CALLS: [i64; 17] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    // The following do so if a time limit is set on the socket.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
];

/// Whether a stopped task is about to see an interruption that is nothing but the stop: signals
/// that are to be handled still wait when a tracer's stop is reported.
pub(crate) fn was_disturbed(tid: Pid, registers: &Registers, signal_mask: u64) -> Result<bool> {
    let call = registers.orig_rax.cast_signed();
    if registers.rax.cast_signed() != -i64::from(libc::EINTR) || !REPORTING_CALLS.contains(&call) {
        return Ok(false);
    }
    for shared in [false, true] {
        let pending = ptrace::pending_signals(tid, shared).map_err(kernel(tid, "read pending signals"))?;
        let unblocked = |number: i32| signal_mask & (1 << (number - 1)) == 0;
        if pending.iter().any(|signal| (1..=64).contains(&signal.number()) && unblocked(signal.number())) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Has the call made again by the kernel, which also sees to it that a signal arriving in
/// between is not missed.
pub(crate) fn call_again(registers: &mut Registers) {
    registers.rax = RESTART_UNLESS_HANDLED.cast_unsigned();
}

/// Registers for a copy of a thread. The kernel's own notes about an interrupted call can't be
/// carried over, so such a call is made anew.
pub(crate) fn registers_for_copy(original: &Registers) -> Registers {
    let mut registers = *original;
    let in_call = registers.orig_rax.cast_signed() >= 0;
    if in_call && registers.rax.cast_signed() == RESTART_BY_NOTES {
        call_again(&mut registers);
    }
    registers
}
