//! Mounts through file-system contexts and descriptors: no option strings, no
//! paths that a sandbox could have changed meanwhile.
//!
//! A new mount is *detached*: it exists only as a descriptor until
//! [`attach`] puts it somewhere, and is gone when the descriptor is closed
//! before that. See `fsopen(2)`, `fsmount(2)`, `move_mount(2)`.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::general::mount_attr;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// Longest string that `fsconfig(2)` takes, without the final NUL.
const FSCONFIG_STRING_BYTES_MAX: usize = 255;

/// Bytes of kernel text that are kept for an error message. The kernel keeps
/// eight messages a context, each well below this.
const KERNEL_MESSAGE_BYTES_MAX: usize = 1024;

/// A mount operation that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{step} {object:?}{message}")]
pub struct MountError {
    /// The call or option that failed.
    pub step: &'static str,
    /// The path, file system or option value concerned.
    pub object: String,
    /// What the kernel said beside the number, led by ": ", or nothing.
    pub message: String,
    /// The error number.
    #[source]
    pub source: Errno,
}

impl MountError {
    /// An error of a step that a caller took itself, on the way to a mount.
    #[must_use]
    pub fn from_errno(step: &'static str, object: &str, source: Errno) -> Self {
        Self::new(step, object, source)
    }

    fn new(step: &'static str, object: impl Into<String>, source: Errno) -> Self {
        Self { step, object: object.into(), message: String::new(), source }
    }
}

/// A file system being set up, before it is mounted.
#[derive(Debug)]
pub struct FsContext {
    fd: OwnedFd,
    kind: &'static str,
    /// Descriptors that option values name by `/proc/self/fd`; they stay open
    /// until the superblock exists.
    held: Vec<OwnedFd>,
}

impl FsContext {
    /// Opens a context for the file system type `kind` (`overlay`, `tmpfs`,
    /// `proc`, ...).
    ///
    /// # Errors
    /// The kernel does not know the type, or the caller lacks CAP_SYS_ADMIN.
    pub fn new(kind: &'static str) -> Result<Self, MountError> {
        let fd = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| MountError::new("fsopen", kind, errno))?;
        Ok(Self { fd, kind, held: Vec::new() })
    }

    /// Sets an option that has no value.
    ///
    /// # Errors
    /// The file system does not know the option.
    pub fn flag(&mut self, key: &'static str) -> Result<(), MountError> {
        fsconfig_set_flag(self.fd.as_fd(), key).map_err(|errno| self.failed(key, "", errno))
    }

    /// Sets an option to a text value of at most 255 bytes.
    ///
    /// # Errors
    /// The file system refuses the option or its value.
    pub fn string(&mut self, key: &'static str, value: &str) -> Result<(), MountError> {
        fsconfig_set_string(self.fd.as_fd(), key, value).map_err(|errno| self.failed(key, value, errno))
    }

    /// Sets an option to a path, whatever its length and characters. The path
    /// is given as it is where the kernel can read it back in
    /// `/proc/mounts`; otherwise through a descriptor of this process.
    ///
    /// # Errors
    /// The path cannot be opened, or the file system refuses it.
    pub fn path(&mut self, key: &'static str, path: &Path) -> Result<(), MountError> {
        let bytes = path.as_os_str().as_bytes();
        let plain =
            bytes.len() <= FSCONFIG_STRING_BYTES_MAX && !bytes.iter().any(|byte| matches!(byte, b'\\' | b':' | b','));
        if plain {
            return fsconfig_set_string(self.fd.as_fd(), key, path)
                .map_err(|errno| self.failed(key, &path.to_string_lossy(), errno));
        }
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| MountError::new("open", path.to_string_lossy(), errno))?;
        let link = descriptor_path(held.as_fd());
        self.held.push(held);
        fsconfig_set_string(self.fd.as_fd(), key, &link)
            .map_err(|errno| self.failed(key, &path.to_string_lossy(), errno))
    }

    /// Makes the superblock and a detached mount of it.
    ///
    /// # Errors
    /// The file system refuses the set of options, with the kernel's own
    /// explanation where it gives one.
    pub fn mount(self, attributes: MountAttrFlags) -> Result<OwnedFd, MountError> {
        fsconfig_create(self.fd.as_fd()).map_err(|errno| self.failed("create", "", errno))?;
        fsmount(self.fd.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|errno| self.failed("fsmount", "", errno))
    }

    fn failed(&self, step: &'static str, value: &str, source: Errno) -> MountError {
        let object = if value.is_empty() { self.kind.to_owned() } else { format!("{}: {value}", self.kind) };
        MountError { step, object, message: self.kernel_messages(), source }
    }

    /// Reads what the kernel logged in the context, one message a read.
    fn kernel_messages(&self) -> String {
        let mut text = String::new();
        let mut buffer = [0_u8; KERNEL_MESSAGE_BYTES_MAX];
        while let Ok(length) = rustix::io::read(&self.fd, &mut buffer) {
            if length == 0 || text.len() > KERNEL_MESSAGE_BYTES_MAX {
                break;
            }
            let message = String::from_utf8_lossy(&buffer[..length]);
            text.push_str(": ");
            // Messages begin with "e ", "w " or "i ", their severity.
            text.push_str(message.trim_end().get(2..).unwrap_or_default());
        }
        text
    }
}

/// The path under which this process can reach what `fd` refers to. Valid
/// while `fd` is open, and only in this process.
#[must_use]
pub fn descriptor_path(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Attaches a detached mount at `path` below `directory` (or at a path of its
/// own when absolute). Symbolic links in the last component are not followed.
///
/// # Errors
/// `path` does not exist or is of the other kind (file against directory).
pub fn attach(mount: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &Path) -> Result<(), MountError> {
    move_mount(mount, c"", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|errno| MountError::new("move_mount", path.to_string_lossy(), errno))
}

/// Attaches a detached mount on exactly the file or directory that `target`
/// refers to.
///
/// # Errors
/// `target` is not in this mount namespace, or of the other kind.
pub fn attach_on(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), MountError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", target, c"", flags).map_err(|errno| MountError::new("move_mount", "descriptor", errno))
}

/// Makes a detached copy of the mount at `path` below `directory`, which is
/// how a bind mount is made. `path` may be empty to mean `directory` itself;
/// a symbolic link as last component is not followed.
///
/// # Errors
/// `path` does not exist, or is not in this mount namespace.
pub fn clone_tree(directory: BorrowedFd<'_>, path: &Path, recursive: bool) -> Result<OwnedFd, MountError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(directory, path, flags).map_err(|errno| MountError::new("open_tree", path.to_string_lossy(), errno))
}

/// Whether a change of mount attributes reaches the mounts below as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only the mount itself.
    One,
    /// The mount and everything mounted below it.
    Tree,
}

/// Sets and clears attributes of the mount that `mount` refers to.
///
/// # Errors
/// EPERM when an attribute is locked in this namespace, EINVAL when `mount`
/// is not the root of a mount.
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    set: MountAttrFlags,
    clear: MountAttrFlags,
    reach: Reach,
) -> Result<(), MountError> {
    let attributes =
        mount_attr { attr_set: set.bits().into(), attr_clr: clear.bits().into(), propagation: 0, userns_fd: 0 };
    mount_setattr(mount, &attributes, reach)
}

/// Makes a mount private: neither gives nor takes mount events.
///
/// # Errors
/// EINVAL when `mount` is not the root of a mount.
pub fn set_private(mount: BorrowedFd<'_>, reach: Reach) -> Result<(), MountError> {
    let attributes =
        mount_attr { attr_set: 0, attr_clr: 0, propagation: linux_raw_sys::general::MS_PRIVATE.into(), userns_fd: 0 };
    mount_setattr(mount, &attributes, reach)
}

/// `mount_setattr(2)` on a descriptor.
fn mount_setattr(mount: BorrowedFd<'_>, attributes: &mount_attr, reach: Reach) -> Result<(), MountError> {
    let mut flags = libc::AT_EMPTY_PATH;
    if reach == Reach::Tree {
        flags |= libc::AT_RECURSIVE;
    }
    let empty: &CStr = c"";
    // SAFETY: the descriptor is open for the length of the borrow, the path is
    // a NUL-terminated constant, and `attributes` is a `struct mount_attr` of
    // exactly the size passed, which the kernel only reads.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<mount_attr>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
    Err(MountError::new("mount_setattr", "descriptor", errno))
}

/// Detaches the mount at `path` and all below it. What is still in use goes
/// away with its last user. The last component is not followed.
///
/// # Errors
/// EINVAL when nothing is mounted at `path`.
pub fn detach(path: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|errno| MountError::new("umount", path.to_string_lossy(), errno))
}

/// The layers of an overlay file system.
#[derive(Debug)]
pub struct Overlay<'a> {
    /// Read-only layers, topmost first. At least one.
    pub lowers: &'a [&'a Path],
    /// The writable layer and its work directory, on one file system; without
    /// them the mount is read-only and needs two lowers or more.
    pub upper: Option<OverlayUpper<'a>>,
}

/// The writable part of an [`Overlay`].
#[derive(Clone, Copy, Debug)]
pub struct OverlayUpper<'a> {
    /// Receives the changes.
    pub upper: &'a Path,
    /// Scratch space of the kernel: empty, never used by a mount before.
    pub work: &'a Path,
}

impl Overlay<'_> {
    /// Mounts the overlay, detached. `options` are set after the layers.
    ///
    /// # Errors
    /// A layer does not exist or its file system can not be part of an
    /// overlay; there are more layers than the kernel takes.
    pub fn mount(
        &self,
        options: &[(&'static str, Option<&str>)],
        attributes: MountAttrFlags,
    ) -> Result<OwnedFd, MountError> {
        let mut context = FsContext::new("overlay")?;
        for lower in self.lowers {
            context.path("lowerdir+", lower)?;
        }
        if let Some(upper) = &self.upper {
            context.path("upperdir", upper.upper)?;
            context.path("workdir", upper.work)?;
        }
        for (key, value) in options {
            match value {
                Some(value) => context.string(key, value)?,
                None => context.flag(key)?,
            }
        }
        context.mount(attributes)
    }
}

/// Opens a directory of this process's own mount namespace by path, for use
/// as the anchor of other calls. Symbolic links are followed: `path` is
/// trusted.
///
/// # Errors
/// `path` is not a directory.
pub fn open_directory(path: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|errno| MountError::new("open", path.to_string_lossy(), errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn tmpfs() -> OwnedFd {
        let mut context = FsContext::new("tmpfs").unwrap();
        context.string("size", "1m").unwrap();
        context.mount(MountAttrFlags::empty()).unwrap()
    }

    #[test]
    fn a_detached_mount_is_usable_and_goes_away_with_its_descriptor() {
        let mount = tmpfs();
        rustix::fs::mkdirat(&mount, "a", Mode::RWXU).unwrap();
        rustix::fs::statat(&mount, "a", rustix::fs::AtFlags::empty()).unwrap();
    }

    #[test]
    fn attributes_are_set_and_cleared() {
        let mount = tmpfs();
        let none = MountAttrFlags::empty();
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        set_attributes(mount.as_fd(), read_only, none, Reach::One).unwrap();
        assert_eq!(rustix::fs::mkdirat(&mount, "a", Mode::RWXU), Err(Errno::ROFS));
        set_attributes(mount.as_fd(), none, read_only, Reach::Tree).unwrap();
        rustix::fs::mkdirat(&mount, "a", Mode::RWXU).unwrap();
        set_private(mount.as_fd(), Reach::One).unwrap();
    }

    #[test]
    fn attributes_of_something_that_is_no_mount_are_refused() {
        let directory = open_directory(Path::new("/proc/self")).unwrap();
        let error =
            set_attributes(directory.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, MountAttrFlags::empty(), Reach::One);
        assert_eq!(error.unwrap_err().source, Errno::INVAL);
    }

    #[test]
    fn the_kernel_s_explanation_reaches_the_error() {
        let overlay = Overlay { lowers: &[Path::new("/proc/self/no-such-layer")], upper: None };
        let error = overlay.mount(&[], MountAttrFlags::empty()).unwrap_err();
        assert!(error.to_string().contains("no-such-layer"), "{error}");
    }
}
