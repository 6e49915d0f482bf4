//! Starting a tool call.
//!
//! The child shares PID 1's memory until it executes its program (PID 1 stands still meanwhile),
//! so making it costs no page tables, and it can leave the reason of a failure where PID 1 finds
//! it. Until then it only makes system calls.

use brood_init_protocol::Step;
use brood_init_protocol::spawn::Spawn;
use brood_init_protocol::wire::Reader;
use linux_raw_sys::ioctl;

use crate::Failure;
use crate::control::Message;
use crate::enter::Entered;
use crate::sys::{self, Errno, linux, syscall};

/// Stack of the child: it only calls a few small functions.
const STACK_BYTES: usize = 16 * 1024;
/// Room for a directory of PATH and the command's name.
const PATH_BYTES_MAX: usize = 4096;

/// A tool call that runs.
pub struct Started {
    /// Its process id in the sandbox.
    pub pid: u32,
    /// The daemon's side of its pseudo-terminal.
    pub terminal_master: Option<i32>,
}

/// What the child needs, and where it leaves its failure.
struct Plan<'a> {
    spawn: Spawn,
    entered: &'a Entered,
    working_directory: *const u8,
    /// Directories separated by colons, zero-terminated; empty when the command holds a slash.
    search: &'a [u8],
    command: &'a [u8],
    arguments: *const *const u8,
    environment: *const *const u8,
    streams: [i32; 3],
    failure: Option<Failure>,
}

/// Carries the request out; the call's program runs when this returns.
pub fn spawn(message: &Message, entered: &Entered) -> Result<Started, Failure> {
    let malformed = || Failure { step: Step::Decode, errno: sys::EBADMSG };
    let mut reader = Reader::new(message.body());
    let spawn = Spawn::decode(&mut reader).ok_or_else(malformed)?;
    let working_directory = reader.text().ok_or_else(malformed)?.as_ptr();
    let search = reader.text().ok_or_else(malformed)?;
    let command = reader.clone().text().ok_or_else(malformed)?;
    let (arguments, environment) = pointers(message, &spawn, &mut reader).ok_or_else(malformed)?;
    let cgroup = message.descriptor(0).ok_or_else(malformed)?;

    let terminal = spawn.terminal.map(|size| open_terminal(entered, size, spawn.uid)).transpose();
    let terminal = terminal.map_err(Failure::at(Step::Terminal))?;
    let streams = match &terminal {
        Some(terminal) => [terminal.slave; 3],
        None => {
            let stream = |index| message.descriptor(index).ok_or_else(malformed);
            [stream(1)?, stream(2)?, stream(3)?]
        }
    };
    let mut plan =
        Plan { spawn, entered, working_directory, search, command, arguments, environment, streams, failure: None };
    let started = start(&mut plan, cgroup);
    if let Some(terminal) = &terminal {
        sys::close(terminal.slave);
        if started.is_err() {
            sys::close(terminal.master);
        }
    }
    Ok(Started { pid: started?, terminal_master: terminal.map(|terminal| terminal.master) })
}

/// Lays the pointer tables of arguments and environment behind the message's body.
fn pointers(message: &Message, spawn: &Spawn, reader: &mut Reader<'_>) -> Option<(*const *const u8, *const *const u8)> {
    let (arguments, environment) = (spawn.argument_count as usize, spawn.environment_count as usize);
    let total = arguments.checked_add(environment)?.checked_add(2)?;
    // Each text takes at least its zero byte.
    if total > reader.rest().len() + 2 {
        return None;
    }
    let table = message.pointer_table(total)?;
    let mut at = 0;
    for count in [arguments, environment] {
        for _ in 0..count {
            let text = reader.text()?;
            // SAFETY: `pointer_table` gave room for `total` entries, and `at` stays below that.
            unsafe { table.add(at).write(text.as_ptr()) };
            at += 1;
        }
        // SAFETY: as above; one end for each of the two tables.
        unsafe { table.add(at).write(core::ptr::null()) };
        at += 1;
    }
    // SAFETY: inside of the same room.
    let second = unsafe { table.add(arguments + 1) };
    reader.is_empty().then_some((table.cast_const(), second.cast_const()))
}

struct Terminal {
    master: i32,
    slave: i32,
}

/// Opens a pseudo-terminal in the sandbox's own instance, so that its name is valid inside.
fn open_terminal(entered: &Entered, (columns, rows): (u16, u16), owner: u32) -> Result<Terminal, Errno> {
    let flags = linux::O_RDWR | linux::O_NOCTTY | linux::O_CLOEXEC;
    let master = sys::open_at(entered.devpts, b"ptmx\0", flags)?;
    let slave = unlock_and_open_peer(master, flags, [rows, columns, 0, 0], owner);
    match slave {
        Ok(slave) => Ok(Terminal { master, slave }),
        Err(errno) => {
            sys::close(master);
            Err(errno)
        }
    }
}

fn unlock_and_open_peer(master: i32, flags: u32, size: [u16; 4], owner: u32) -> Result<i32, Errno> {
    let unlocked = 0i32;
    // SAFETY: the argument outlives the call.
    unsafe { syscall!(__NR_ioctl, master, ioctl::TIOCSPTLCK, &raw const unlocked) }?;
    // SAFETY: the size is a whole `winsize` that outlives the call.
    unsafe { syscall!(__NR_ioctl, master, ioctl::TIOCSWINSZ, &raw const size) }?;
    // SAFETY: takes no pointers.
    let slave = unsafe { syscall!(__NR_ioctl, master, ioctl::TIOCGPTPEER, flags) }? as i32;
    // SAFETY: takes no pointers. The group of terminals is that of the mount option.
    match unsafe { syscall!(__NR_fchown, slave, owner, 5) } {
        Ok(_) => Ok(slave),
        Err(errno) => {
            sys::close(slave);
            Err(errno)
        }
    }
}

#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

fn start(plan: &mut Plan<'_>, cgroup: i32) -> Result<u32, Failure> {
    static mut STACK: Stack = Stack([0; STACK_BYTES]);
    let flags = linux::CLONE_VM | linux::CLONE_VFORK;
    // SAFETY: zeros are a valid `clone_args`: nothing asked for.
    let mut arguments: linux::clone_args = unsafe { core::mem::zeroed() };
    arguments.flags = u64::from(flags) | linux::CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(linux::SIGCHLD);
    arguments.stack = (&raw mut STACK) as u64;
    arguments.stack_size = STACK_BYTES as u64;
    arguments.cgroup = cgroup as u64;
    let plan_pointer: *mut Plan<'_> = plan;
    // SAFETY: the stack is used by one child at a time, because this process stands still until
    // the child has executed its program; `child` does not return; what it writes is `failure`.
    let pid = unsafe { sys::spawn_sharing_memory(&arguments, child, plan_pointer.cast()) };
    let pid = pid.map_err(Failure::at(Step::Clone))?;
    // SAFETY: the child is past its last use of the plan; a volatile read, because the compiler
    // cannot know that it was written.
    match unsafe { (&raw const (*plan_pointer).failure).read_volatile() } {
        None => Ok(pid as u32),
        // The dead child is not tracked, so it is reaped in silence.
        Some(failure) => Err(failure),
    }
}

extern "C" fn child(plan: *mut u8) -> ! {
    // SAFETY: `start` passed a valid plan, and PID 1 stands still while this runs.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let failure = become_tool_call(plan);
    plan.failure = Some(failure);
    sys::exit(127)
}

/// Turns this process into the tool call. Only returns when that fails.
fn become_tool_call(plan: &Plan<'_>) -> Failure {
    let steps = || -> Result<(), Failure> {
        set_limits(plan.entered).map_err(Failure::at(Step::Limits))?;
        set_streams(plan).map_err(Failure::at(Step::Streams))?;
        // Before the user changes: without `no_new_privs` a filter needs a capability.
        set_filter(plan.entered.seccomp).map_err(Failure::at(Step::Seccomp))?;
        set_user(&plan.spawn).map_err(Failure::at(Step::User))?;
        // As the user: a directory that it may not enter must not become its working directory.
        // SAFETY: the path is zero-terminated and outlives the call.
        unsafe { syscall!(__NR_chdir, plan.working_directory) }.map_err(Failure::at(Step::WorkingDirectory))?;
        let none = 0u64;
        // SAFETY: `none` outlives the call and is as long as the call is told.
        unsafe { syscall!(__NR_rt_sigprocmask, linux::SIG_SETMASK, &raw const none, 0, 8) }
            .map_err(Failure::at(Step::Limits))?;
        Ok(())
    };
    match steps() {
        Ok(()) => Failure { step: Step::Execute, errno: execute(plan) },
        Err(failure) => failure,
    }
}

fn set_limits(entered: &Entered) -> Result<(), Errno> {
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_setsid) }?;
    let mut text = [0u8; 12];
    let digits = decimal(entered.tool_call_oom_score, &mut text);
    sys::write_file_at(entered.proc, b"self/oom_score_adj\0", digits)?;
    let files = linux::rlimit64 { rlim_cur: entered.open_files[0], rlim_max: entered.open_files[1] };
    // SAFETY: the limit outlives the call.
    unsafe { syscall!(__NR_prlimit64, 0, linux::RLIMIT_NOFILE, &raw const files, 0) }?;
    Ok(())
}

/// Writes a number in decimal.
fn decimal(value: i32, text: &mut [u8; 12]) -> &[u8] {
    let mut at = text.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        text[at] = b'-';
    }
    &text[at..]
}

fn set_streams(plan: &Plan<'_>) -> Result<(), Errno> {
    if plan.spawn.terminal.is_some() {
        // SAFETY: takes no pointers.
        unsafe { syscall!(__NR_ioctl, plan.streams[0], ioctl::TIOCSCTTY, 0) }?;
    }
    for (number, stream) in plan.streams.into_iter().enumerate() {
        // The passed descriptors are all above 3, so none is overwritten before its turn.
        // SAFETY: takes no pointers.
        unsafe { syscall!(__NR_dup3, stream, number, 0) }?;
    }
    Ok(())
}

fn set_filter(program: &[[u8; 8]]) -> Result<(), Errno> {
    /// `sock_fprog`.
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const [u8; 8],
    }
    let program = Program { length: program.len() as u16, instructions: program.as_ptr() };
    // SAFETY: the program and its instructions outlive the call.
    unsafe { syscall!(__NR_seccomp, 1, 0, &raw const program) }.map(|_| ())
}

fn set_user(spawn: &Spawn) -> Result<(), Errno> {
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_umask, spawn.umask) }?;
    // SAFETY: the groups outlive the call, and there are as many as it is told.
    unsafe { syscall!(__NR_setgroups, spawn.group_count, spawn.groups.as_ptr()) }?;
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_setresgid, spawn.gid, spawn.gid, spawn.gid) }?;
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_setresuid, spawn.uid, spawn.uid, spawn.uid) }?;
    Ok(())
}

/// Executes the command, looking for it as `execvp` does. Only returns on failure.
fn execute(plan: &Plan<'_>) -> Errno {
    if plan.search.len() <= 1 {
        return execute_path(plan, plan.command.as_ptr());
    }
    let mut worst = sys::ENOENT;
    let directories = &plan.search[..plan.search.len() - 1];
    for directory in directories.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let mut path = [0u8; PATH_BYTES_MAX];
        let slash = directory.len();
        let end = slash + 1 + plan.command.len();
        if end > path.len() {
            continue;
        }
        path[..slash].copy_from_slice(directory);
        path[slash] = b'/';
        path[slash + 1..end].copy_from_slice(plan.command);
        match execute_path(plan, path.as_ptr()) {
            sys::ENOENT | sys::ENOTDIR => {}
            // Another directory may hold one that can be executed.
            sys::EACCES => worst = sys::EACCES,
            errno => return errno,
        }
    }
    worst
}

fn execute_path(plan: &Plan<'_>, path: *const u8) -> Errno {
    // SAFETY: the path and both tables, which end in null pointers, outlive the call.
    match unsafe { syscall!(__NR_execve, path, plan.arguments, plan.environment) } {
        Ok(_) => sys::ENOENT,
        Err(errno) => errno,
    }
}
