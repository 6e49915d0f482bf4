//! Tables of system call numbers (x86-64), each with its reason.
//!
//! What is in no table is allowed, up to the last number that the tables were written for; all
//! newer calls fail with ENOSYS, so that programs fall back as on an older kernel. The user
//! namespace, the dropped capabilities and the masked file systems are the first line; the tables
//! take away kernel code that a sandbox has no use for.

/// What a filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    /// EPERM.
    Deny,
    /// ENOSYS: as if the kernel did not have it, so that programs fall back.
    NotThere,
    /// EAFNOSUPPORT.
    WrongFamily,
}

/// Calls whose first argument decides: `clone`, `socket`, `personality`, in this order.
pub(crate) const SPECIAL: [u32; 3] = [56, 41, 135];

/// Calls that programs must believe do not exist.
pub(crate) const NOT_THERE: [u32; 6] = [
    425, // io_uring_setup: its rings are shared with the kernel, no engine can checkpoint them
    426, // io_uring_enter
    427, // io_uring_register
    453, // map_shadow_stack: shadow stacks cannot be captured
    462, // mseal: sealed mappings cannot be put back by a rollback
    435, // clone3: its flags lie in memory that a filter cannot read; the C library falls back
];

/// Calls that a container has no use for.
pub(crate) const DENIED: [u32; 72] = [
    // Other processes' namespaces and roots.
    155, // pivot_root
    272, // unshare
    308, // setns
    // Mounts.
    165, // mount
    166, // umount2
    428, // open_tree
    429, // move_mount
    430, // fsopen
    431, // fsconfig
    432, // fsmount
    433, // fspick
    442, // mount_setattr
    457, // statmount
    458, // listmount
    467, // open_tree_attr
    304, // open_by_handle_at: opens files by number, past every path check
    // Keyrings: shared by all who have the same user on the host.
    248, // add_key
    249, // request_key
    250, // keyctl
    // Kernel code with a long history of holes.
    321, // bpf
    298, // perf_event_open
    323, // userfaultfd: the engine's own; in hostile hands a way to stop the kernel mid-copy
    // The machine itself.
    163, // acct
    167, // swapon
    168, // swapoff
    169, // reboot
    172, // iopl
    173, // ioperm
    103, // syslog
    153, // vhangup
    154, // modify_ldt
    156, // _sysctl
    159, // adjtimex
    164, // settimeofday
    170, // sethostname
    171, // setdomainname
    174, // create_module
    175, // init_module
    176, // delete_module
    177, // get_kernel_syms
    178, // query_module
    179, // quotactl
    180, // nfsservctl
    181, // getpmsg
    182, // putpmsg
    183, // afs_syscall
    184, // tuxcall
    185, // security
    212, // lookup_dcookie
    227, // clock_settime
    236, // vserver
    246, // kexec_load
    305, // clock_adjtime
    313, // finit_module
    320, // kexec_file_load
    443, // quotactl_fd
    // Memory placement over processor sockets belongs to the host.
    237, // mbind
    238, // set_mempolicy
    239, // get_mempolicy
    256, // migrate_pages
    279, // move_pages
    450, // set_mempolicy_home_node
    // Other processes' memory and descriptors.
    312, // kcmp
    438, // pidfd_getfd
    440, // process_madvise
    448, // process_mrelease
    // Old interfaces that nothing needs.
    134, // uselib
    136, // ustat
    139, // sysfs
    // Security modules belong to the host.
    459, // lsm_get_self_attr
    460, // lsm_set_self_attr
    461, // lsm_list_modules
];
