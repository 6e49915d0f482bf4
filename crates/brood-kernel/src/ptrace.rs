//! Tracing of other tasks: seizing, stopping, reading and writing their state.
//!
//! All requests but [`seize`] work only from the thread that seized the task. A task is
//! named by its thread id in the caller's pid namespace. See ptrace(2).

use std::ffi::c_void;
use std::ptr;

use bitflags::bitflags;
use linux_raw_sys::ptrace as raw;
use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// General registers of a stopped task (`NT_PRSTATUS`), fs and gs base included.
pub type Registers = libc::user_regs_struct;

/// Number of the register set that holds the general registers.
const NT_PRSTATUS: usize = 1;
/// Number of the register set that holds the XSAVE area.
const NT_X86_XSTATE: usize = 0x202;
/// Larger than the XSAVE area of any processor so far (AMX needs about 11 KiB).
const EXTENDED_STATE_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a signal set in the kernel's interface.
const SIGNAL_SET_BYTES: usize = 8;
/// Bytes of the kernel's `siginfo_t`.
pub const SIGINFO_BYTES: usize = 128;
/// Signals read by one `PTRACE_PEEKSIGINFO`.
const PEEK_BATCH: usize = 32;

bitflags! {
    /// What a tracer wants to be told, and what happens to its tasks when it dies.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Options: u32 {
        /// Mark system-call stops with bit 7 of the signal number.
        const SYSCALL_GOOD = raw::PTRACE_O_TRACESYSGOOD;
        /// Attach to children made by fork.
        const FORK = raw::PTRACE_O_TRACEFORK;
        /// Attach to children made by vfork.
        const VFORK = raw::PTRACE_O_TRACEVFORK;
        /// Attach to children made by clone, threads among them.
        const CLONE = raw::PTRACE_O_TRACECLONE;
        /// Kill the task when the tracer exits.
        const EXIT_KILL = raw::PTRACE_O_EXITKILL;
        /// Lift the task's seccomp filters while it is traced (needs CAP_SYS_ADMIN, and a
        /// tracer that has no filter itself).
        const SUSPEND_SECCOMP = raw::PTRACE_O_SUSPEND_SECCOMP;
    }
}

/// What a wait on a traced task reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The task is about to receive a signal.
    Signal(i32),
    /// A stop at the entry or exit of a system call.
    Syscall,
    /// A `PTRACE_EVENT_*` stop: the event and the signal number beside it.
    Event {
        /// `PTRACE_EVENT_*`.
        event: u32,
        /// SIGTRAP, or the stopping signal of a group stop.
        signal: i32,
    },
    /// The task ended normally with this status.
    Exited(i32),
    /// The task was killed by this signal.
    Killed(i32),
}

impl Stop {
    /// A stop caused by [`interrupt`], by attachment at birth, or by job control.
    #[must_use]
    pub fn is_interrupt(self) -> bool {
        matches!(self, Self::Event { event, .. } if event == raw::PTRACE_EVENT_STOP)
    }

    /// The task has ended.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Self::Exited(_) | Self::Killed(_))
    }

    fn from_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            return Self::Exited(libc::WEXITSTATUS(status));
        }
        if libc::WIFSIGNALED(status) {
            return Self::Killed(libc::WTERMSIG(status));
        }
        let signal = libc::WSTOPSIG(status);
        let event = (status >> 16).unsigned_abs();
        if event != 0 {
            return Self::Event { event, signal };
        }
        if signal == libc::SIGTRAP | 0x80 {
            return Self::Syscall;
        }
        Self::Signal(signal)
    }
}

/// A queued signal as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalInformation(pub [u8; SIGINFO_BYTES]);

impl SignalInformation {
    /// The signal's number.
    #[must_use]
    pub fn number(&self) -> i32 {
        i32::from_ne_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

/// The restartable-sequences registration of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the area; zero if the thread registered none.
    pub address: u64,
    /// Length that was given at registration, in bytes.
    pub length_bytes: u32,
    /// Signature in front of abort handlers.
    pub signature: u32,
    /// Flags of the registration.
    pub flags: u32,
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Issues a request whose address and data are plain numbers for the kernel.
fn plain(request: u32, tid: Pid, address: usize, data: usize) -> Result<()> {
    // SAFETY: the requests passed by this module either ignore `address` and `data` or take
    // them as numbers; none makes the kernel access memory of this process.
    let result = unsafe {
        libc::ptrace(
            request,
            tid.as_raw_nonzero().get(),
            ptr::without_provenance_mut::<c_void>(address),
            ptr::without_provenance_mut::<c_void>(data),
        )
    };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// Issues a request whose data points to `value`.
///
/// # Safety
/// With `address`, the request must read or write at most `size_of::<T>()` bytes at `value`,
/// and anything it writes must be a valid `T`.
unsafe fn with_data<T>(request: u32, tid: Pid, address: usize, value: &mut T) -> Result<i64> {
    // SAFETY: `value` is valid for reads and writes of its size; the rest is the caller's promise.
    let result = unsafe {
        libc::ptrace(
            request,
            tid.as_raw_nonzero().get(),
            ptr::without_provenance_mut::<c_void>(address),
            ptr::from_mut(value).cast::<c_void>(),
        )
    };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

/// Becomes the tracer of a task without stopping it.
///
/// # Errors
/// EPERM if the task is traced already or out of reach, ESRCH if it is gone or a zombie.
pub fn seize(tid: Pid, options: Options) -> Result<()> {
    plain(raw::PTRACE_SEIZE, tid, 0, options.bits() as usize)
}

/// Asks a seized task to stop; the stop is reported by [`wait`].
///
/// # Errors
/// ESRCH if the task is gone.
pub fn interrupt(tid: Pid) -> Result<()> {
    plain(raw::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets a stopped task run, delivering `signal` if it is not zero.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn resume(tid: Pid, signal: i32) -> Result<()> {
    plain(raw::PTRACE_CONT, tid, 0, signal.unsigned_abs() as usize)
}

/// Lets a stopped task run to its next system-call entry or exit.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn resume_to_syscall(tid: Pid) -> Result<()> {
    plain(raw::PTRACE_SYSCALL, tid, 0, 0)
}

/// Ends tracing of a stopped task and lets it run, delivering `signal` if it is not zero.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn detach(tid: Pid, signal: i32) -> Result<()> {
    plain(raw::PTRACE_DETACH, tid, 0, signal.unsigned_abs() as usize)
}

/// Changes the options given at [`seize`].
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn set_options(tid: Pid, options: Options) -> Result<()> {
    plain(raw::PTRACE_SETOPTIONS, tid, 0, options.bits() as usize)
}

/// Collects a state change of a traced task (or of a child); `None` if `block` is false and
/// there is none.
///
/// # Errors
/// ECHILD if the task is neither traced by this thread nor a child.
pub fn wait(tid: Pid, block: bool) -> Result<Option<Stop>> {
    let mut status = 0_i32;
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: `status` is a valid place for the result.
        let result = unsafe { libc::waitpid(tid.as_raw_nonzero().get(), &mut status, flags) };
        if result > 0 {
            return Ok(Some(Stop::from_status(status)));
        }
        if result == 0 {
            return Ok(None);
        }
        match last_error() {
            Errno::INTR => {}
            error => return Err(error),
        }
    }
}

/// Registers that are all zero, to be filled in.
#[must_use]
pub fn empty_registers() -> Registers {
    // SAFETY: the struct consists of integers only, for which all-zero bytes are valid.
    unsafe { std::mem::zeroed() }
}

/// Reads the general registers of a stopped task.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer; EINVAL for a 32-bit task, whose register
/// set is of another size.
pub fn registers(tid: Pid) -> Result<Registers> {
    let mut registers = empty_registers();
    let size = size_of::<Registers>();
    let mut vector = libc::iovec { iov_base: ptr::from_mut(&mut registers).cast(), iov_len: size };
    // SAFETY: the request updates the iovec and writes at most `iov_len` bytes of integers
    // through it, into `registers`, which outlives the call.
    unsafe { with_data(raw::PTRACE_GETREGSET, tid, NT_PRSTATUS, &mut vector)? };
    if vector.iov_len == size { Ok(registers) } else { Err(Errno::INVAL) }
}

/// Writes the general registers of a stopped task.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer; EIO if a value is not allowed.
pub fn set_registers(tid: Pid, registers: &Registers) -> Result<()> {
    let mut copy = *registers;
    let mut vector = libc::iovec { iov_base: ptr::from_mut(&mut copy).cast(), iov_len: size_of::<Registers>() };
    // SAFETY: the request reads `iov_len` bytes from `copy`, which outlives the call.
    unsafe { with_data(raw::PTRACE_SETREGSET, tid, NT_PRSTATUS, &mut vector)? };
    Ok(())
}

/// Reads the XSAVE area (x87, SSE, AVX and what else the processor has) of a stopped task.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn extended_state(tid: Pid) -> Result<Vec<u8>> {
    let mut buffer = vec![0_u8; EXTENDED_STATE_BYTES_MAX];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the request updates the iovec and writes at most `iov_len` bytes into `buffer`,
    // which outlives the call.
    unsafe { with_data(raw::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &mut vector)? };
    buffer.truncate(vector.iov_len);
    buffer.shrink_to_fit();
    Ok(buffer)
}

/// Writes the XSAVE area of a stopped task, as returned by [`extended_state`].
///
/// # Errors
/// EINVAL if the area doesn't fit this processor.
pub fn set_extended_state(tid: Pid, state: &[u8]) -> Result<()> {
    let mut vector = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    // SAFETY: the request only reads `iov_len` bytes from `state`, which outlives the call.
    unsafe { with_data(raw::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &mut vector)? };
    Ok(())
}

/// Reads the mask of blocked signals; bit `n - 1` stands for signal `n`.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn signal_mask(tid: Pid) -> Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the request writes `SIGNAL_SET_BYTES` bytes, the size of `mask`.
    unsafe { with_data(raw::PTRACE_GETSIGMASK, tid, SIGNAL_SET_BYTES, &mut mask)? };
    Ok(mask)
}

/// Replaces the mask of blocked signals of a stopped task.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn set_signal_mask(tid: Pid, mask: u64) -> Result<()> {
    let mut copy = mask;
    // SAFETY: the request reads `SIGNAL_SET_BYTES` bytes, the size of `copy`.
    unsafe { with_data(raw::PTRACE_SETSIGMASK, tid, SIGNAL_SET_BYTES, &mut copy)? };
    Ok(())
}

/// Reads the signals that wait for this task, or with `shared` for its whole process, in
/// queue order. They stay queued.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn pending_signals(tid: Pid, shared: bool) -> Result<Vec<SignalInformation>> {
    let mut found = Vec::new();
    loop {
        let mut batch = [[0_u8; SIGINFO_BYTES]; PEEK_BATCH];
        let arguments = libc::ptrace_peeksiginfo_args {
            off: found.len() as u64,
            flags: if shared { raw::PTRACE_PEEKSIGINFO_SHARED } else { 0 },
            nr: PEEK_BATCH as i32,
        };
        // SAFETY: the request reads `arguments` and writes at most `nr` records of
        // `SIGINFO_BYTES` bytes, the size of `batch`.
        let count = unsafe {
            with_data(raw::PTRACE_PEEKSIGINFO, tid, ptr::from_ref(&arguments).expose_provenance(), &mut batch)?
        };
        let count = usize::try_from(count).unwrap_or(0);
        found.extend(batch.iter().take(count).map(|record| SignalInformation(*record)));
        if count < PEEK_BATCH {
            return Ok(found);
        }
    }
}

/// Reads the signal of a signal-delivery stop.
///
/// # Errors
/// EINVAL if the task is in another kind of stop (a group stop, for instance).
pub fn stop_signal(tid: Pid) -> Result<SignalInformation> {
    let mut information = [0_u8; SIGINFO_BYTES];
    // SAFETY: the request writes one siginfo of `SIGINFO_BYTES` bytes.
    unsafe { with_data(raw::PTRACE_GETSIGINFO, tid, 0, &mut information)? };
    Ok(SignalInformation(information))
}

/// Reads the message of an event stop: the new task's id after fork or clone, the status
/// before exit.
///
/// # Errors
/// ESRCH if the task is not stopped by this tracer.
pub fn event_message(tid: Pid) -> Result<u64> {
    let mut message = 0_u64;
    // SAFETY: the request writes one unsigned long, the size of `message`.
    unsafe { with_data(raw::PTRACE_GETEVENTMSG, tid, 0, &mut message)? };
    Ok(message)
}

/// Reads the restartable-sequences registration of a stopped thread.
///
/// # Errors
/// EIO if the kernel doesn't know the request.
pub fn rseq_configuration(tid: Pid) -> Result<RseqConfiguration> {
    let mut record =
        raw::ptrace_rseq_configuration { rseq_abi_pointer: 0, rseq_abi_size: 0, signature: 0, flags: 0, pad: 0 };
    let size = size_of_val(&record);
    // SAFETY: `address` is the size of the record, which bounds what the kernel writes.
    unsafe { with_data(raw::PTRACE_GET_RSEQ_CONFIGURATION, tid, size, &mut record)? };
    Ok(RseqConfiguration {
        address: record.rseq_abi_pointer,
        length_bytes: record.rseq_abi_size,
        signature: record.signature,
        flags: record.flags,
    })
}

/// Reads the number of instructions of the task's `index`-th seccomp filter, newest first.
///
/// # Errors
/// ENOENT if there is no such filter, EINVAL if the task has none at all.
pub fn seccomp_filter(tid: Pid, index: usize) -> Result<Vec<libc::sock_filter>> {
    let request = |program: *mut c_void| {
        // SAFETY: with a null pointer the kernel only returns the program's length, otherwise
        // it writes that many instructions; the closure's callers pass null or enough room.
        let length = unsafe {
            libc::ptrace(
                raw::PTRACE_SECCOMP_GET_FILTER,
                tid.as_raw_nonzero().get(),
                ptr::without_provenance_mut::<c_void>(index),
                program,
            )
        };
        usize::try_from(length).map_err(|_| last_error())
    };
    let length = request(ptr::null_mut())?;
    let empty = libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
    let mut program = vec![empty; length];
    // A stopped task can't change its filters, so the length is still the same.
    request(program.as_mut_ptr().cast())?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_child::Child;

    #[test]
    fn a_seized_task_stops_shows_its_state_and_goes_on() {
        let child = Child::sleeping();
        seize(child.pid(), Options::FORK | Options::SYSCALL_GOOD).unwrap();
        interrupt(child.pid()).unwrap();
        let stop = wait(child.pid(), true).unwrap().unwrap();
        assert!(stop.is_interrupt(), "{stop:?}");
        let before = registers(child.pid()).unwrap();
        assert_ne!(before.rip, 0);
        set_registers(child.pid(), &before).unwrap();
        let after = registers(child.pid()).unwrap();
        assert_eq!((after.rip, after.rsp), (before.rip, before.rsp));
        let extended = extended_state(child.pid()).unwrap();
        assert!(extended.len() >= 512, "{}", extended.len());
        set_extended_state(child.pid(), &extended).unwrap();
        set_signal_mask(child.pid(), 1 << 9).unwrap();
        assert_eq!(signal_mask(child.pid()).unwrap(), 1 << 9);
        assert!(rseq_configuration(child.pid()).unwrap().length_bytes < 4096);
        assert_eq!(seccomp_filter(child.pid(), 0).unwrap_err(), Errno::INVAL);
        detach(child.pid(), 0).unwrap();
        assert_eq!(registers(child.pid()).unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn pending_signals_are_listed_with_their_numbers_and_stay() {
        let child = Child::sleeping();
        seize(child.pid(), Options::empty()).unwrap();
        interrupt(child.pid()).unwrap();
        wait(child.pid(), true).unwrap();
        set_signal_mask(child.pid(), 1 << (libc::SIGUSR1 - 1)).unwrap();
        rustix::process::kill_process(child.pid(), rustix::process::Signal::USR1).unwrap();
        for _ in 0..2 {
            let pending = pending_signals(child.pid(), true).unwrap();
            let numbers: Vec<i32> = pending.iter().map(SignalInformation::number).collect();
            assert_eq!(numbers, [libc::SIGUSR1]);
        }
        assert!(pending_signals(child.pid(), false).unwrap().is_empty());
        detach(child.pid(), 0).unwrap();
    }
}
