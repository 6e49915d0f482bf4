//! System calls, raw: the C library is not here, and its wrappers would not help PID 1.

use core::arch::asm;

pub use linux_raw_sys::general as linux;

/// An error number of the kernel, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u32);

/// The call was interrupted by a signal.
pub const EINTR: Errno = Errno(linux_raw_sys::errno::EINTR);
/// Nothing is there.
pub const ENOENT: Errno = Errno(linux_raw_sys::errno::ENOENT);
/// A part of the path is no directory.
pub const ENOTDIR: Errno = Errno(linux_raw_sys::errno::ENOTDIR);
/// Not permitted to look or to execute.
pub const EACCES: Errno = Errno(linux_raw_sys::errno::EACCES);
/// A message that does not make sense.
pub const EBADMSG: Errno = Errno(linux_raw_sys::errno::EBADMSG);
/// No more room in a table.
pub const ENOSPC: Errno = Errno(linux_raw_sys::errno::ENOSPC);
/// No such process.
pub const ESRCH: Errno = Errno(linux_raw_sys::errno::ESRCH);

/// Flags of `signalfd4`, which the headers define as these.
pub const SFD_CLOEXEC: u32 = linux::O_CLOEXEC;
/// As above.
pub const SFD_NONBLOCK: u32 = linux::O_NONBLOCK;
/// `personality` flag: no address-space randomisation (personality.h).
pub const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;

/// A system call with up to six arguments.
///
/// # Safety
/// The arguments must be what the call with this number asks for; pointers must be valid for
/// what the kernel does with them.
#[inline(always)]
pub unsafe fn call(number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers rcx, r11 and the result only; the caller vouches for the rest.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as u32)) } else { Ok(result as usize) }
}

/// `syscall!(NUMBER, arguments...)`, missing arguments being zero. Unsafe like [`call`].
macro_rules! syscall {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given = [$($argument as usize),*];
        let mut arguments = [0usize; 6];
        let mut index = 0;
        while index < given.len() {
            arguments[index] = given[index];
            index += 1;
        }
        $crate::sys::call($crate::sys::linux::$number, arguments)
    }};
}
pub(crate) use syscall;

/// Runs `function` in a new process that shares this one's memory, which stands still until the
/// new one executes a program or exits. The process id of the new one.
///
/// # Safety
/// `stack_top` must be the end of an unused, 16-byte aligned piece of memory large enough for
/// `function`; `arguments` must be a valid `clone_args` with `CLONE_VM | CLONE_VFORK` whose stack
/// is that memory; `function` must not return and must not leave this process's memory in a state
/// that the caller cannot live with.
pub unsafe fn spawn_sharing_memory(
    arguments: &linux::clone_args,
    function: extern "C" fn(*mut u8) -> !,
    argument: *mut u8,
) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: parent: returns from the call with all registers but the clobbered ones kept.
    // Child: runs on the given stack with rsp at its top, 16-byte aligned, so the `call` below
    // gives `function` the stack that the ABI asks for; it never returns here.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") linux::__NR_clone3 as isize => result,
            in("rdi") arguments as *const linux::clone_args,
            in("rsi") size_of::<linux::clone_args>(),
            in("r12") function,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as u32)) } else { Ok(result as usize) }
}

/// Ends this process.
pub fn exit(code: u32) -> ! {
    loop {
        // SAFETY: takes no pointers.
        let _ = unsafe { syscall!(__NR_exit_group, code) };
    }
}

/// Closes a descriptor. An error would mean that it is closed already.
pub fn close(descriptor: i32) {
    // SAFETY: takes no pointers.
    let _ = unsafe { syscall!(__NR_close, descriptor) };
}

/// Opens `path` (zero-terminated) relative to `directory`.
pub fn open_at(directory: i32, path: &[u8], flags: u32) -> Result<i32, Errno> {
    debug_assert!(path.ends_with(&[0]));
    // SAFETY: `path` is a zero-terminated text that outlives the call.
    unsafe { syscall!(__NR_openat, directory, path.as_ptr(), flags, 0) }.map(|fd| fd as i32)
}

/// Writes all of `bytes`; a file in /proc takes them in one piece or not at all.
pub fn write(descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: `bytes` is valid for reading.
    unsafe { syscall!(__NR_write, descriptor, bytes.as_ptr(), bytes.len()) }
}

/// Opens, writes and closes a file.
pub fn write_file_at(directory: i32, path: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let file = open_at(directory, path, linux::O_WRONLY | linux::O_CLOEXEC)?;
    let written = write(file, bytes);
    close(file);
    written.map(|_| ())
}

// The compiler calls these by name; there is no C library to bring them.

/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both pieces of memory.
    unsafe {
        asm!("rep movsb", inout("rcx") length => _, inout("rdi") target => _, inout("rsi") source => _, options(nostack, preserves_flags));
    }
    target
}

/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(target: *mut u8, source: *const u8, length: usize) -> *mut u8 {
    if (target as usize).wrapping_sub(source as usize) >= length {
        // SAFETY: copying forwards does not overwrite what is still to be read.
        return unsafe { memcpy(target, source, length) };
    }
    // SAFETY: the caller vouches for both pieces of memory; backwards, and the direction flag is
    // put back before any other code runs.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") length => _,
            inout("rdi") target.wrapping_add(length).wrapping_sub(1) => _,
            inout("rsi") source.wrapping_add(length).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    target
}

/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(target: *mut u8, byte: i32, length: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        asm!("rep stosb", inout("rcx") length => _, inout("rdi") target => _, in("al") byte as u8, options(nostack, preserves_flags));
    }
    target
}

/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    let mut index = 0;
    while index < length {
        // SAFETY: the caller vouches for both pieces of memory.
        let (a, b) = unsafe { (left.add(index).read(), right.add(index).read()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        index += 1;
    }
    0
}

/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the caller vouches for both pieces of memory.
    unsafe { memcmp(left, right, length) }
}
