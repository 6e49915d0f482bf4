//! Entering the root: mounts, masks, host name, loopback, capabilities.

use brood_init_protocol::{Enter, Step};
use linux_raw_sys::{net, prctl};

use crate::Failure;
use crate::control::Message;
use crate::sys::{self, Errno, linux, syscall};

/// Longest seccomp program, in instructions: the kernel's own limit.
const SECCOMP_INSTRUCTIONS_MAX: usize = 4096;
/// Files of /proc that tell about the host rather than the sandbox; each is covered by /dev/null.
const MASKED_FILES: [&[u8]; 9] = [
    b"proc/kcore\0",
    b"proc/keys\0",
    b"proc/key-users\0",
    b"proc/latency_stats\0",
    b"proc/timer_list\0",
    b"proc/sched_debug\0",
    b"proc/kmsg\0",
    b"proc/kallsyms\0",
    b"proc/sysrq-trigger\0",
];
/// Directories that tell about the host; each is covered by an empty one.
const MASKED_DIRECTORIES: [&[u8]; 5] =
    [b"proc/acpi\0", b"proc/scsi\0", b"sys/firmware\0", b"sys/kernel/security\0", b"sys/kernel/debug\0"];
/// Directories of /proc that may be read but not written.
const READ_ONLY_DIRECTORIES: [&[u8]; 4] = [b"proc/sys\0", b"proc/bus\0", b"proc/fs\0", b"proc/irq\0"];

const AT_FDCWD: isize = -100;

/// What PID 1 knows once it is inside.
pub struct Entered {
    /// The root of the pseudo-terminal file system, whatever becomes of the path /dev/pts.
    pub devpts: i32,
    /// The root of /proc, whatever becomes of the path.
    pub proc: i32,
    /// Added to the badness of tool calls when memory runs out.
    pub tool_call_oom_score: i32,
    /// Soft and hard limit of open files of a tool call.
    pub open_files: [u64; 2],
    /// The filter of every tool call.
    pub seccomp: &'static [[u8; 8]],
}

/// Carries the request out. PID 1 is of no use after a failure: the daemon ends it.
pub fn enter(message: &Message) -> Result<Entered, Failure> {
    let malformed = || Failure { step: Step::Decode, errno: sys::EBADMSG };
    let request = Enter::decode(message.body()).ok_or_else(malformed)?;
    let root = message.descriptor(0).ok_or_else(malformed)?;
    let seccomp = keep_seccomp_program(request.seccomp_program).ok_or_else(malformed)?;

    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_unshare, linux::CLONE_NEWCGROUP) }.map_err(Failure::at(Step::CgroupNamespace))?;
    make_mounts_private().map_err(Failure::at(Step::PrivateMounts))?;
    // On top of the old root: PID 1's own root stays beneath until it pivots.
    move_mount(root, AT_FDCWD, b"/\0").map_err(Failure::at(Step::AttachRoot))?;
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_fchdir, root) }.map_err(Failure::at(Step::AttachRoot))?;
    let proc = mount_file_systems()?;
    mask(root).map_err(Failure::at(Step::Mask))?;
    pivot().map_err(Failure::at(Step::PivotRoot))?;
    let flags = linux::O_PATH | linux::O_DIRECTORY | linux::O_CLOEXEC;
    let devpts = sys::open_at(AT_FDCWD as i32, b"/dev/pts\0", flags).map_err(Failure::at(Step::MountDevpts))?;
    set_host_name(request.host_name).map_err(Failure::at(Step::HostName))?;
    loopback_up().map_err(Failure::at(Step::Loopback))?;
    bound_capabilities(request.capability_bounds).map_err(Failure::at(Step::Capabilities))?;
    // SAFETY: takes no pointers. Siblings must agree on addresses; children inherit it.
    unsafe { syscall!(__NR_personality, sys::ADDR_NO_RANDOMIZE) }.map_err(Failure::at(Step::Limits))?;
    Ok(Entered {
        devpts,
        proc,
        tool_call_oom_score: request.tool_call_oom_score,
        open_files: [u64::from(request.open_files_soft), u64::from(request.open_files_hard)],
        seccomp,
    })
}

/// Copies the program to memory that stays.
fn keep_seccomp_program(program: &[u8]) -> Option<&'static [[u8; 8]]> {
    static mut PROGRAM: [[u8; 8]; SECCOMP_INSTRUCTIONS_MAX] = [[0; 8]; SECCOMP_INSTRUCTIONS_MAX];
    let (instructions, []) = program.as_chunks::<8>() else { return None };
    // SAFETY: `enter` succeeds once and runs on the only thread; nothing else refers to it.
    let kept = unsafe { (&raw mut PROGRAM).as_mut_unchecked() };
    let kept = kept.get_mut(..instructions.len())?;
    kept.copy_from_slice(instructions);
    Some(kept)
}

fn make_mounts_private() -> Result<(), Errno> {
    let attributes =
        linux::mount_attr { attr_set: 0, attr_clr: 0, propagation: linux::MS_PRIVATE as u64, userns_fd: 0 };
    set_mount_attributes(AT_FDCWD, b"/\0", linux::AT_RECURSIVE, &attributes)
}

fn set_mount_attributes(
    directory: isize,
    path: &[u8],
    flags: u32,
    attributes: &linux::mount_attr,
) -> Result<(), Errno> {
    let bytes = size_of::<linux::mount_attr>();
    // SAFETY: path and attributes outlive the call, and the size is that of the attributes.
    unsafe {
        syscall!(__NR_mount_setattr, directory, path.as_ptr(), flags, attributes as *const linux::mount_attr, bytes)
    }
    .map(|_| ())
}

/// Attaches a detached mount at a path relative to `directory`.
fn move_mount(mount: i32, directory: isize, path: &[u8]) -> Result<(), Errno> {
    let flags = linux::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: both paths are zero-terminated and outlive the call.
    unsafe { syscall!(__NR_move_mount, mount, c"".as_ptr(), directory, path.as_ptr(), flags) }.map(|_| ())
}

/// Mounts /proc, /sys, /dev/pts and /dev/mqueue below the working directory. The root of /proc.
///
/// The host's own /proc and /sys must still be in view here: the kernel lets a user namespace
/// mount them only where they are fully visible already.
fn mount_file_systems() -> Result<i32, Failure> {
    let strict = linux::MOUNT_ATTR_NOSUID | linux::MOUNT_ATTR_NODEV | linux::MOUNT_ATTR_NOEXEC;
    let proc = mount(b"proc\0", &[], strict, b"proc\0").map_err(Failure::at(Step::MountProc))?;
    let sys = mount(b"sysfs\0", &[], strict | linux::MOUNT_ATTR_RDONLY, b"sys\0");
    sys::close(sys.map_err(Failure::at(Step::MountSys))?);
    let options: [(&[u8], &[u8]); 4] =
        [(b"newinstance\0", b""), (b"ptmxmode\0", b"0666\0"), (b"mode\0", b"0620\0"), (b"gid\0", b"5\0")];
    let terminals = linux::MOUNT_ATTR_NOSUID | linux::MOUNT_ATTR_NOEXEC;
    sys::close(mount(b"devpts\0", &options, terminals, b"dev/pts\0").map_err(Failure::at(Step::MountDevpts))?);
    match mount(b"mqueue\0", &[], strict, b"dev/mqueue\0") {
        Ok(descriptor) => sys::close(descriptor),
        // A kernel without message queues is no reason to go without a sandbox.
        Err(Errno(linux_raw_sys::errno::ENODEV)) => {}
        Err(errno) => return Err(Failure { step: Step::MountMqueue, errno }),
    }
    Ok(proc)
}

/// Mounts a new file system of this kind at `target`, relative to the working directory. Its root.
fn mount(kind: &[u8], options: &[(&[u8], &[u8])], attributes: u32, target: &[u8]) -> Result<i32, Errno> {
    // SAFETY: `kind` is zero-terminated and outlives the call.
    let context = unsafe { syscall!(__NR_fsopen, kind.as_ptr(), linux::FSOPEN_CLOEXEC) }? as i32;
    let mounted = configure_and_mount(context, options, attributes, target);
    sys::close(context);
    mounted
}

fn configure_and_mount(context: i32, options: &[(&[u8], &[u8])], attributes: u32, target: &[u8]) -> Result<i32, Errno> {
    use linux::fsconfig_command::{FSCONFIG_CMD_CREATE, FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING};
    for (key, value) in options {
        let (command, value) = match value.is_empty() {
            true => (FSCONFIG_SET_FLAG, core::ptr::null()),
            false => (FSCONFIG_SET_STRING, value.as_ptr()),
        };
        // SAFETY: key and value are zero-terminated and outlive the call.
        unsafe { syscall!(__NR_fsconfig, context, command, key.as_ptr(), value, 0) }?;
    }
    // SAFETY: this command takes neither key nor value.
    unsafe { syscall!(__NR_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0) }?;
    // SAFETY: takes no pointers.
    let mount = unsafe { syscall!(__NR_fsmount, context, linux::FSMOUNT_CLOEXEC, attributes) }? as i32;
    move_mount(mount, AT_FDCWD, target)?;
    Ok(mount)
}

/// Covers what a sandbox must not see or write. Paths that the host does not have are skipped.
fn mask(root: i32) -> Result<(), Errno> {
    for path in MASKED_FILES {
        if exists(path) {
            cover(b"dev/null\0", path)?;
        }
    }
    if MASKED_DIRECTORIES.iter().any(|path| exists(path)) {
        mask_directories()?;
    }
    let read_only =
        linux::mount_attr { attr_set: u64::from(linux::MOUNT_ATTR_RDONLY), attr_clr: 0, propagation: 0, userns_fd: 0 };
    for path in READ_ONLY_DIRECTORIES {
        if exists(path) {
            let clone = clone_mount(path)?;
            set_mount_attributes(clone as isize, b"\0", linux::AT_EMPTY_PATH, &read_only)?;
            move_mount(clone, root as isize, path)?;
            sys::close(clone);
        }
    }
    Ok(())
}

/// Covers the masked directories with one empty read-only file system.
fn mask_directories() -> Result<(), Errno> {
    let mut source: Option<&[u8]> = None;
    for path in MASKED_DIRECTORIES {
        if !exists(path) {
            continue;
        }
        match source {
            None => {
                let attributes = linux::MOUNT_ATTR_RDONLY
                    | linux::MOUNT_ATTR_NOSUID
                    | linux::MOUNT_ATTR_NODEV
                    | linux::MOUNT_ATTR_NOEXEC;
                let options: [(&[u8], &[u8]); 2] = [(b"size\0", b"0\0"), (b"nr_inodes\0", b"1\0")];
                sys::close(mount(b"tmpfs\0", &options, attributes, path)?);
                source = Some(path);
            }
            Some(empty) => cover(empty, path)?,
        }
    }
    Ok(())
}

fn exists(path: &[u8]) -> bool {
    // SAFETY: `path` is zero-terminated and outlives the call.
    unsafe { syscall!(__NR_faccessat, AT_FDCWD, path.as_ptr(), 0) }.is_ok()
}

fn clone_mount(path: &[u8]) -> Result<i32, Errno> {
    let flags = linux::OPEN_TREE_CLONE | linux::O_CLOEXEC;
    // SAFETY: `path` is zero-terminated and outlives the call.
    unsafe { syscall!(__NR_open_tree, AT_FDCWD, path.as_ptr(), flags) }.map(|mount| mount as i32)
}

fn cover(with: &[u8], path: &[u8]) -> Result<(), Errno> {
    let clone = clone_mount(with)?;
    let moved = move_mount(clone, AT_FDCWD, path);
    sys::close(clone);
    moved
}

/// Makes the working directory the root and lets go of the old one.
fn pivot() -> Result<(), Errno> {
    // SAFETY: the paths are zero-terminated. With both the same, the old root ends up on top of
    // the new one and is detached in the next step (pivot_root(2), "pivot_root(".", ".")").
    unsafe { syscall!(__NR_pivot_root, c".".as_ptr(), c".".as_ptr()) }?;
    // SAFETY: as above.
    unsafe { syscall!(__NR_umount2, c".".as_ptr(), linux::MNT_DETACH) }?;
    // SAFETY: as above.
    unsafe { syscall!(__NR_chdir, c"/".as_ptr()) }.map(|_| ())
}

fn set_host_name(name: &[u8]) -> Result<(), Errno> {
    // SAFETY: `name` is valid for reading.
    unsafe { syscall!(__NR_sethostname, name.as_ptr(), name.len()) }.map(|_| ())
}

/// A network request about the loopback interface: its name, its flags, and room.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

fn loopback_up() -> Result<(), Errno> {
    // SAFETY: takes no pointers.
    let socket = unsafe { syscall!(__NR_socket, net::AF_INET, net::SOCK_DGRAM | linux::O_CLOEXEC, 0) }? as i32;
    let mut request = InterfaceRequest { name: *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0", flags: 0, rest: [0; 22] };
    request.flags = 0x1 | 0x40; // up, running
    // SAFETY: the request is a whole `ifreq` (40 bytes) that outlives the call.
    let result = unsafe { syscall!(__NR_ioctl, socket, linux_raw_sys::ioctl::SIOCSIFFLAGS, &raw mut request) };
    sys::close(socket);
    result.map(|_| ())
}

/// Takes every capability that is not in `bounds` from what tool calls can ever have. PID 1 keeps
/// its own: the bounding set only counts when a program is executed, which PID 1 never does.
fn bound_capabilities(bounds: u64) -> Result<(), Errno> {
    for capability in 0..64u32 {
        if bounds & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: takes no pointers.
        match unsafe { syscall!(__NR_prctl, prctl::PR_CAPBSET_DROP, capability, 0, 0, 0) } {
            Ok(_) => {}
            // Past the last one that this kernel knows.
            Err(Errno(linux_raw_sys::errno::EINVAL)) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
