//! Starting a program in fresh namespaces from a threaded process.
//!
//! The child shares the caller's memory until it executes the program, so no page table is copied
//! however large the caller is; and it only makes system calls until then, because another thread
//! may hold any lock at the moment of the clone.

use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use linux_raw_sys::general as linux;
use rustix::process::Pid;

/// Stack of the child: it makes a handful of system calls.
const STACK_BYTES: usize = 32 * 1024;
/// The descriptor at which the program finds its control socket.
pub const CONTROL_DESCRIPTOR: RawFd = 3;

bitflags::bitflags! {
    /// Namespaces that the program gets of its own (namespaces(7)).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Namespaces: u32 {
        /// Users, groups and capabilities.
        const USER = linux::CLONE_NEWUSER;
        /// Process ids.
        const PID = linux::CLONE_NEWPID;
        /// Mounts.
        const MOUNT = linux::CLONE_NEWNS;
        /// System V and POSIX message queues, shared memory.
        const IPC = linux::CLONE_NEWIPC;
        /// Host name.
        const UTS = linux::CLONE_NEWUTS;
        /// Network.
        const NETWORK = linux::CLONE_NEWNET;
    }
}

/// A program started by [`spawn`]. Its end is seen and collected through the descriptor; dropping
/// this neither kills nor reaps it.
#[derive(Debug)]
pub struct SpawnedProgram {
    /// Its process id as the caller sees it.
    pub pid: Pid,
    /// The process, whatever its number is given to later.
    pub descriptor: OwnedFd,
    /// Held until the program runs.
    _stack: Stack,
}

/// Memory that the child stands on. The kernel zeroes its first word and is done with the rest when
/// the child lets go of the caller's address space (`CLONE_CHILD_CLEARTID`, set_tid_address(2)).
struct Stack(ManuallyDrop<Box<[u128]>>);

impl Stack {
    fn new() -> Self {
        let mut words = vec![0u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice();
        words[0] = 1;
        Self(ManuallyDrop::new(words))
    }

    fn is_free(&self) -> bool {
        // SAFETY: the word is ours, and read volatile because the kernel writes it.
        unsafe { self.0.as_ptr().cast::<u32>().read_volatile() == 0 }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A child that still waits for its gate keeps its stack: a leak of 32 KiB instead of a
        // child on freed memory.
        if self.is_free() {
            // SAFETY: nobody uses the memory any more, and it is dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stack")
    }
}

/// What to start, and where.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The program, open for execution.
    pub program: BorrowedFd<'a>,
    /// Its only argument: its name in process lists.
    pub name: &'a CStr,
    /// Becomes descriptor 3 of the program. A stream socket: the child waits for one byte on it
    /// before it executes, so that the caller can prepare its control groups and user mappings.
    pub control: BorrowedFd<'a>,
    /// The caller's end of that socket. The child closes its copy first of all, so that it sees
    /// the end of the stream when the caller gives up or dies.
    pub callers_end: BorrowedFd<'a>,
    /// Namespaces of its own.
    pub namespaces: Namespaces,
    /// Version 2 control group to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// All that the child reads. Raw numbers and pointers only.
struct ChildPlan {
    program: RawFd,
    control: RawFd,
    callers_end: RawFd,
    become_root: bool,
    arguments: [*const libc::c_char; 2],
    environment: [*const libc::c_char; 1],
}

/// Clones and lets the child wait for a byte on the control socket.
///
/// A caller that gives up before sending the byte must close its end of the socket, which ends
/// the child with status 126, and reap it.
///
/// # Errors
/// As `clone3`: `EAGAIN` at a limit of processes, `ENOSPC` at one of namespaces, `EPERM` without
/// the capabilities. `ENAMETOOLONG` for a name of 256 bytes or more.
pub fn spawn(request: &Spawn<'_>) -> io::Result<SpawnedProgram> {
    let mut stack = Stack::new();
    // Name and plan lie at the bottom of the stack's own memory, so that all live equally long.
    let name = copy_name(request.name, &mut stack.0)?;
    let plan = stack.0[PLAN_AT..].as_mut_ptr().cast::<ChildPlan>();
    let filled = ChildPlan {
        program: request.program.as_raw_fd(),
        control: request.control.as_raw_fd(),
        callers_end: request.callers_end.as_raw_fd(),
        become_root: request.namespaces.contains(Namespaces::USER),
        arguments: [name, ptr::null()],
        environment: [ptr::null()],
    };
    // SAFETY: aligned to 16, and in front of the name with room for the plan.
    unsafe { plan.write(filled) };
    let (pid, descriptor) = clone_sharing_memory(request, &mut stack.0, plan)?;
    Ok(SpawnedProgram { pid, descriptor, _stack: stack })
}

/// Where the plan lies, in 16-byte words from the bottom of the stack: behind the word that the
/// kernel clears.
const PLAN_AT: usize = 1;
/// Where the name is copied to.
const NAME_AT: usize = PLAN_AT + size_of::<ChildPlan>().div_ceil(16);
/// Longest name, its zero included: the rest of the memory is the stack.
const NAME_BYTES_MAX: usize = 256;

fn copy_name(name: &CStr, stack: &mut [u128]) -> io::Result<*const libc::c_char> {
    let bytes = name.to_bytes_with_nul();
    if bytes.len() > NAME_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (word, chunk) in stack[NAME_AT..].iter_mut().zip(bytes.chunks(16)) {
        let mut padded = [0; 16];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u128::from_ne_bytes(padded);
    }
    Ok(stack[NAME_AT..].as_ptr().cast())
}

fn clone_sharing_memory(request: &Spawn<'_>, stack: &mut [u128], plan: *mut ChildPlan) -> io::Result<(Pid, OwnedFd)> {
    let mut descriptor: RawFd = -1;
    let shared = linux::CLONE_VM | linux::CLONE_PIDFD | linux::CLONE_CHILD_CLEARTID;
    let mut flags = u64::from(shared | request.namespaces.bits());
    if request.cgroup.is_some() {
        flags |= linux::CLONE_INTO_CGROUP;
    }
    let arguments = linux::clone_args {
        flags,
        pidfd: ptr::from_mut(&mut descriptor) as u64,
        child_tid: stack.as_mut_ptr() as u64,
        parent_tid: 0,
        // No signal when it ends: it is watched through its descriptor, and a SIGCHLD would reach
        // whatever else in the process waits for children.
        exit_signal: 0,
        stack: stack.as_mut_ptr() as u64,
        stack_size: size_of_val(stack) as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: request.cgroup.map_or(0, |cgroup| cgroup.as_raw_fd() as u64),
    };
    let blocked = BlockedSignals::all()?;
    // SAFETY: the stack is unused, aligned and stays until the kernel has cleared its first word;
    // `child` does not return, makes system calls only and writes to its own stack only.
    let result = unsafe { clone3_with_function(&arguments, child, plan) };
    drop(blocked);
    if result < 0 {
        // No child ever stood on it.
        stack[0] = 0;
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let pid = Pid::from_raw(result as i32).ok_or_else(|| io::Error::other("clone3 gave no process id"))?;
    Ok((pid, descriptor))
}

/// All signals are kept away while this lives, so that no handler of ours runs in the child.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> io::Result<Self> {
        // SAFETY: a signal set of zeros is a valid one to be overwritten.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: `all` is a valid place for a set.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: both sets are valid for the whole call.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) } {
            0 => Ok(Self(before)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel. It cannot fail with these arguments.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// `clone3` whose child calls `function(argument)` on the stack in `arguments`.
///
/// # Safety
/// The stack must be unused and outlive the child's use of it; `function` must not return.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3_with_function(
    arguments: &linux::clone_args,
    function: extern "C" fn(*mut ChildPlan) -> !,
    argument: *mut ChildPlan,
) -> isize {
    let result: isize;
    // SAFETY: in the parent this is a system call like any other. The child starts behind it with
    // the given stack pointer, which is 16-byte aligned, so that `call` leaves what the ABI asks for.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") arguments,
            in("rsi") size_of::<linux::clone_args>(),
            in("r12") function,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// A system call that touches no thread-local storage, as `libc::syscall` would with `errno`.
///
/// # Safety
/// The arguments must fit the call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn raw(number: libc::c_long, a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers rcx, r11 and the result only; the caller vouches for the rest.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

extern "C" fn child(plan: *mut ChildPlan) -> ! {
    // SAFETY: `spawn` passed a valid plan that outlives this.
    let plan = unsafe { &*plan };
    // SAFETY: no pointers; the descriptor table is the child's own.
    unsafe { raw(libc::SYS_close, plan.callers_end as usize, 0, 0, 0, 0) };
    let mut gate = 0u8;
    let gate_at = ptr::from_mut(&mut gate) as usize;
    // SAFETY: one byte of this stack.
    let opened = unsafe { raw(libc::SYS_read, plan.control as usize, gate_at, 1, 0, 0) };
    if opened == 1 {
        if plan.become_root {
            // SAFETY: no pointers. Root of the new user namespace, with no group but its own.
            unsafe { raw(libc::SYS_setgroups, 0, 0, 0, 0, 0) };
            // SAFETY: no pointers.
            unsafe { raw(libc::SYS_setresgid, 0, 0, 0, 0, 0) };
            // SAFETY: no pointers.
            unsafe { raw(libc::SYS_setresuid, 0, 0, 0, 0, 0) };
        }
        let program = move_away(plan.program);
        place_control(plan.control);
        // SAFETY: an empty path, the plan's tables, and the flag that makes the descriptor count.
        unsafe {
            raw(
                libc::SYS_execveat,
                program,
                c"".as_ptr() as usize,
                plan.arguments.as_ptr() as usize,
                plan.environment.as_ptr() as usize,
                libc::AT_EMPTY_PATH as usize,
            )
        };
    }
    loop {
        // SAFETY: no pointers; does not return.
        unsafe { raw(libc::SYS_exit, 126, 0, 0, 0, 0) };
    }
}

/// A descriptor of the same file that is not the one the control socket goes to.
fn move_away(program: RawFd) -> usize {
    // SAFETY: no pointers.
    let moved = unsafe { raw(libc::SYS_fcntl, program as usize, libc::F_DUPFD_CLOEXEC as usize, 4, 0, 0) };
    // A full descriptor table shows as a failed `execveat`.
    moved as usize
}

/// Puts the control socket where the program looks for it, to stay open over `execveat`.
fn place_control(control: RawFd) {
    if control == CONTROL_DESCRIPTOR {
        // SAFETY: no pointers.
        unsafe { raw(libc::SYS_fcntl, control as usize, libc::F_SETFD as usize, 0, 0, 0) };
    } else {
        // SAFETY: no pointers.
        unsafe { raw(libc::SYS_dup3, control as usize, CONTROL_DESCRIPTOR as usize, 0, 0, 0) };
    }
}

/// Waits for the end of a spawned program and collects it. Its wait status.
///
/// # Errors
/// `ECHILD` when somebody else has collected it.
pub fn reap(descriptor: impl AsFd) -> io::Result<i32> {
    let descriptor = descriptor.as_fd();
    // SAFETY: zeros are a valid `siginfo_t`.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: `information` is valid for the call. __WALL, because the child has no exit signal.
        let result = unsafe {
            libc::waitid(libc::P_PIDFD, descriptor.as_raw_fd() as u32, &mut information, libc::WEXITED | libc::__WALL)
        };
        if result == 0 {
            // SAFETY: after success the status field is the one in use.
            return Ok(unsafe { information.si_status() });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn spawn_true(namespaces: Namespaces) -> (SpawnedProgram, UnixStream) {
        let program = File::open("/bin/true").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let request = Spawn {
            program: program.as_fd(),
            name: c"true",
            control: theirs.as_fd(),
            callers_end: ours.as_fd(),
            namespaces,
            cgroup: None,
        };
        (spawn(&request).unwrap(), ours)
    }

    #[test]
    fn program_runs_after_the_gate_opens() {
        let (spawned, mut control) = spawn_true(Namespaces::empty());
        control.write_all(&[0]).unwrap();
        assert_eq!(reap(&spawned.descriptor).unwrap(), 0);
        assert!(spawned._stack.is_free());
        assert_eq!(control.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn child_ends_when_the_caller_gives_up() {
        let (spawned, control) = spawn_true(Namespaces::empty());
        drop(control);
        assert_eq!(reap(&spawned.descriptor).unwrap(), 126);
    }

    #[test]
    fn namespaces_are_fresh() {
        let (spawned, mut control) = spawn_true(Namespaces::all());
        let pid = spawned.pid.as_raw_nonzero();
        for name in ["user", "pid_for_children", "mnt", "ipc", "uts", "net"] {
            let theirs = std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
            let ours = std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
            assert_ne!(theirs, ours, "{name}");
        }
        std::fs::write(format!("/proc/{pid}/uid_map"), "0 0 65536").unwrap();
        std::fs::write(format!("/proc/{pid}/gid_map"), "0 0 65536").unwrap();
        control.write_all(&[0]).unwrap();
        assert_eq!(reap(&spawned.descriptor).unwrap(), 0);
    }
}
