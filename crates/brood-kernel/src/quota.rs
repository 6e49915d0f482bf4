//! Project quotas: a limit on a directory tree of ext4 or XFS.
//!
//! A project id is inherited by everything made below a directory that has
//! it, and the file system counts and limits blocks and inodes by id. See
//! `quotactl(2)`, `ioctl_xfs_fsgetxattr(2)`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use linux_raw_sys::general::fsxattr;
use linux_raw_sys::ioctl::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl};

/// Kind of quota: by project.
const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
/// Bytes of a block in the limits of [`DiskQuota`].
const QUOTA_BLOCK_BYTES: u64 = 1024;
/// New files below take the project id.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// Which limits are valid: blocks and inodes.
const QIF_LIMITS: u32 = 0b101;

/// `struct if_dqblk` of linux/quota.h, which no binding has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct DiskQuota {
    block_hard_limit: u64,
    block_soft_limit: u64,
    space_bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

const _: () = assert!(size_of::<DiskQuota>() == 72 && std::mem::offset_of!(DiskQuota, valid) == 64);
const _: () = assert!(size_of::<fsxattr>() == 28);

/// What a project uses and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectUsage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Most bytes, rounded up to 1,024; 0 for no limit.
    pub bytes_max: u64,
}

/// The project id of a file or directory.
///
/// # Errors
/// ENOTTY where the file system has no such ids.
pub fn project(file: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    Ok(attributes(file)?.fsx_projid)
}

/// Gives a directory a project id that everything made in it from now on
/// inherits.
///
/// # Errors
/// EOPNOTSUPP or ENOTTY where the file system has no such ids.
pub fn set_project(directory: BorrowedFd<'_>, project: u32) -> rustix::io::Result<()> {
    let mut attributes = attributes(directory)?;
    attributes.fsx_projid = project;
    attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    // SAFETY: FS_IOC_FSSETXATTR reads one `struct fsxattr`.
    let request = unsafe { Setter::<FS_IOC_FSSETXATTR, _>::new(attributes) };
    // SAFETY: as above.
    unsafe { ioctl(directory, request) }
}

fn attributes(file: BorrowedFd<'_>) -> rustix::io::Result<fsxattr> {
    // SAFETY: FS_IOC_FSGETXATTR fills one `struct fsxattr`.
    let request = unsafe { Getter::<FS_IOC_FSGETXATTR, fsxattr>::new() };
    // SAFETY: as above.
    unsafe { ioctl(file, request) }
}

/// Limits the project on the file system that `file` is on to `bytes_max`
/// bytes; 0 takes the limit away.
///
/// # Errors
/// ESRCH where project quotas are not switched on, ENOSYS where the kernel
/// was built without.
pub fn set_limit(file: BorrowedFd<'_>, project: u32, bytes_max: u64) -> rustix::io::Result<()> {
    let blocks = bytes_max.div_ceil(QUOTA_BLOCK_BYTES);
    let mut quota =
        DiskQuota { block_hard_limit: blocks, block_soft_limit: blocks, valid: QIF_LIMITS, ..DiskQuota::default() };
    quotactl_fd(file, Q_SETQUOTA, project, &mut quota)
}

/// What the project uses on the file system that `file` is on. For project 0
/// it tells whether project quotas work there at all.
///
/// # Errors
/// As [`set_limit`].
pub fn usage(file: BorrowedFd<'_>, project: u32) -> rustix::io::Result<ProjectUsage> {
    let mut quota = DiskQuota::default();
    match quotactl_fd(file, Q_GETQUOTA, project, &mut quota) {
        // XFS says so of an id that owns nothing yet.
        Err(Errno::NOENT) => return Ok(ProjectUsage::default()),
        result => result?,
    }
    Ok(ProjectUsage {
        bytes: quota.space_bytes,
        inodes: quota.inodes,
        bytes_max: quota.block_hard_limit.saturating_mul(QUOTA_BLOCK_BYTES),
    })
}

fn quotactl_fd(file: BorrowedFd<'_>, command: u32, id: u32, quota: &mut DiskQuota) -> rustix::io::Result<()> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: both commands used take a `struct if_dqblk`, to read or to fill,
    // and `quota` is one that lives through the call.
    let result =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, std::ptr::from_mut(quota)) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// Why project quotas do not work on the file system of `directory`, or
/// nothing if they do.
#[must_use]
pub fn unavailable_reason(directory: impl AsFd) -> Option<&'static str> {
    match usage(directory.as_fd(), 0) {
        Ok(_) => None,
        Err(Errno::NOSYS) => Some("the kernel was built without quota support"),
        Err(Errno::SRCH) => Some(
            "project quotas are not switched on: mount XFS or ext4 with prjquota \
             (ext4 also needs tune2fs -O project,quota and a kernel with CONFIG_QFMT_V2)",
        ),
        Err(Errno::PERM | Errno::ACCESS) => Some("the daemon lacks CAP_SYS_ADMIN in the host's user namespace"),
        Err(_) => Some("the file system has no project quotas: ext4 and XFS have"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_system_without_quotas_says_why() {
        let proc = File::open("/proc").unwrap();
        assert!(unavailable_reason(&proc).is_some());
        assert!(set_limit(proc.as_fd(), 1, 1 << 20).is_err_and(|errno| errno != Errno::FAULT));
    }

    #[test]
    fn project_ids_are_read_where_there_are_any() {
        let directory = File::open(std::env::temp_dir()).unwrap();
        match project(directory.as_fd()) {
            Ok(id) => assert_eq!(id, 0, "the temporary directory belongs to a project"),
            Err(errno) => eprintln!("SKIPPED: no project ids in the temporary directory: {errno}"),
        }
    }
}
