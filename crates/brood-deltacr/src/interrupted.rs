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
/// Result that only the kernel sees: the call is to be made again, unless a signal is handled
/// whose handler doesn't want that (`ERESTARTSYS`).
const RESTART: i64 = -512;
/// The instruction that makes a call.
const CALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Calls that any handler ends.
const CALLS_ENDED_BY_HANDLERS: [i64; 9] = [
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
];
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

/// Takes back that the kernel has already arranged for a call to be made again, for a task that was
/// stopped right then: a signal that is handled before the call is made would otherwise find the
/// task outside of it, and a `pause` would miss it. Returns whether there was something to do.
///
/// `next` are the bytes of the next instruction.
pub(crate) fn take_restart_back(registers: &mut Registers, next: [u8; 2]) -> bool {
    let is_arranged =
        registers.orig_rax.cast_signed() >= 0 && registers.rax == registers.orig_rax && next == CALL_INSTRUCTION;
    if is_arranged {
        let call = registers.orig_rax.cast_signed();
        let result = if CALLS_ENDED_BY_HANDLERS.contains(&call) { RESTART_UNLESS_HANDLED } else { RESTART };
        registers.rax = result.cast_unsigned();
        registers.rip += CALL_INSTRUCTION.len() as u64;
    }
    is_arranged
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

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(orig_rax: i64, rax: i64) -> Registers {
        let mut registers = ptrace::empty_registers();
        (registers.orig_rax, registers.rax, registers.rip) = (orig_rax.cast_unsigned(), rax.cast_unsigned(), 0x1000);
        registers
    }

    #[test]
    fn a_call_about_to_be_made_again_is_put_back_into_the_kernels_hands() {
        let mut pause = registers(libc::SYS_pause, libc::SYS_pause);
        assert!(take_restart_back(&mut pause, CALL_INSTRUCTION));
        assert_eq!((pause.rax.cast_signed(), pause.rip), (RESTART_UNLESS_HANDLED, 0x1002));
        let mut write = registers(libc::SYS_write, libc::SYS_write);
        assert!(take_restart_back(&mut write, CALL_INSTRUCTION));
        assert_eq!(write.rax.cast_signed(), RESTART);
        // A write of one byte that has been done looks alike but for what comes next.
        assert!(!take_restart_back(&mut registers(libc::SYS_write, 1), [0x48, 0x3d]));
        assert!(!take_restart_back(&mut registers(-1, -1), CALL_INSTRUCTION));
    }

    #[test]
    fn only_the_kernels_own_notes_are_replaced_in_a_copy() {
        let rax = |result: i64| registers_for_copy(&registers(libc::SYS_futex, result)).rax.cast_signed();
        assert_eq!((rax(-512), rax(-514), rax(-516), rax(0)), (-512, -514, -514, 0));
        assert_eq!(registers_for_copy(&registers(-1, -516)).rax.cast_signed(), -516);
    }
}
