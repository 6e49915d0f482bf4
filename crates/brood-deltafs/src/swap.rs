//! Changing the root of a living sandbox.
//!
//! After a freeze or for a rollback, a sandbox goes on with another overlay
//! mount as its root. [`RootSwapper::swap`] enters its mount namespace, moves
//! the mounts that are to stay (`/proc`, `/dev/pts`, ...) with everything
//! mounted below them over to the new root, makes that the root and detaches
//! the old one.
//!
//! The tasks of the sandbox must be stopped. Those whose root or working
//! directory was exactly the old root are moved by the kernel; other working
//! directories, open files and mappings stay on the old mount and have to be
//! re-pointed by the caller before the tasks run again.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use brood_kernel::mount::{MountError, attach_on};
use brood_kernel::mount_namespace::MountNamespaceThread;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::overlay::OverlayMount;

/// Attempts at one resolution that raced with a rename elsewhere on the host.
const RESOLVE_ATTEMPTS_MAX: usize = 128;

/// A root that could not be swapped. The old root is still in place with all
/// its mounts, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The namespace could not be entered, or a descriptor not copied.
    #[error("entering the mount namespace of the sandbox")]
    Enter(#[source] Errno),
    /// A mount to carry over is not where it should be, or the new root has no
    /// such place.
    #[error("{} is no {what}", path.display())]
    Place {
        /// The path inside.
        path: PathBuf,
        /// What was looked for there.
        what: &'static str,
        /// The error number.
        #[source]
        source: Errno,
    },
    /// Moving one of the mounts failed.
    #[error("moving {}", path.display())]
    Move {
        /// The path inside.
        path: PathBuf,
        /// Why not.
        #[source]
        source: MountError,
    },
    /// Making the new mount the root failed.
    #[error("{step} of the new root")]
    Pivot {
        /// The call.
        step: &'static str,
        /// The error number.
        #[source]
        source: Errno,
    },
    /// The swap failed, and so did putting things back: the sandbox has no
    /// usable root and must be killed.
    #[error("undoing a failed swap; the sandbox cannot go on")]
    Undo {
        /// Why the swap had failed.
        #[source]
        source: Box<SwapError>,
    },
}

/// Swaps roots; keeps the thread that does it.
#[derive(Debug)]
pub struct RootSwapper {
    thread: MountNamespaceThread,
}

impl RootSwapper {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start() -> std::io::Result<Self> {
        Ok(Self { thread: MountNamespaceThread::start()? })
    }

    /// Makes `new` the root of `namespace` (an open `/proc/PID/ns/mnt`).
    /// `carry` are the absolute paths of the mounts to move over, parents
    /// before children; mounts below them go along and need not be named.
    ///
    /// # Errors
    /// [`SwapError`]; all but [`SwapError::Undo`] leave the sandbox as it was.
    pub fn swap(&self, namespace: BorrowedFd<'_>, new: &OverlayMount, carry: &[PathBuf]) -> Result<(), SwapError> {
        let new = new.as_fd().try_clone_to_owned().map_err(|_full| SwapError::Enter(Errno::MFILE))?;
        let carry = carry.to_vec();
        self.thread.run(namespace, move || swap_here(new.as_fd(), &carry)).map_err(SwapError::Enter)?
    }
}

/// A mount to carry over: where it is, and where it goes.
struct Carried<'p> {
    path: &'p Path,
    mount: OwnedFd,
    target: OwnedFd,
}

fn swap_here(new: BorrowedFd<'_>, carry: &[PathBuf]) -> Result<(), SwapError> {
    let pivot = |step| move |source| SwapError::Pivot { step, source };
    let old = open_path(CWD, Path::new("/")).map_err(pivot("opening"))?;
    // Everything is looked up before anything is moved.
    let carried: Vec<Carried<'_>> = carry.iter().map(|path| find(old.as_fd(), new, path)).collect::<Result<_, _>>()?;
    attach_on(new, old.as_fd()).map_err(|source| SwapError::Move { path: "/".into(), source })?;
    for (moved, mount) in carried.iter().enumerate() {
        if let Err(source) = attach_on(mount.mount.as_fd(), mount.target.as_fd()) {
            let error = SwapError::Move { path: mount.path.to_owned(), source };
            return Err(undo(error, old.as_fd(), new, &carried[..moved]));
        }
    }
    let swapped = rustix::process::fchdir(new)
        .map_err(pivot("entering"))
        .and_then(|()| rustix::process::pivot_root(c".", c".").map_err(pivot("pivot_root")));
    if let Err(error) = swapped {
        return Err(undo(error, old.as_fd(), new, &carried));
    }
    // The old root now covers the new one; the working directory is still
    // below it.
    rustix::mount::unmount(c".", UnmountFlags::DETACH).map_err(pivot("detaching what was there before"))
}

/// Puts the mounts in `moved` back below `old` and takes `new` away.
fn undo(error: SwapError, old: BorrowedFd<'_>, new: BorrowedFd<'_>, moved: &[Carried<'_>]) -> SwapError {
    let put_back = |mount: &Carried<'_>| {
        let place = open_inside(old, mount.path)?;
        attach_on(mount.mount.as_fd(), place.as_fd()).map_err(|error| error.source)
    };
    let undone = moved.iter().try_for_each(put_back).and_then(|()| {
        rustix::process::fchdir(new)?;
        rustix::mount::unmount(c".", UnmountFlags::DETACH)
    });
    match undone {
        Ok(()) => error,
        Err(_errno) => SwapError::Undo { source: Box::new(error) },
    }
}

fn find<'p>(old: BorrowedFd<'_>, new: BorrowedFd<'_>, path: &'p Path) -> Result<Carried<'p>, SwapError> {
    let place = |what| move |source| SwapError::Place { path: path.to_owned(), what, source };
    let mount = open_inside(old, path).map_err(place("mount point"))?;
    let status = statx(&mount, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).map_err(place("mount point"))?;
    if !status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(place("mount point")(Errno::INVAL));
    }
    let target = open_inside(new, path).map_err(place("place for a mount in the new root"))?;
    Ok(Carried { path, mount, target })
}

/// Opens a path below `root` in which no component is a symbolic link: links
/// are the sandbox's, mount points are not.
fn open_inside(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = path.strip_prefix("/").map_err(|_relative| Errno::INVAL)?;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..RESOLVE_ATTEMPTS_MAX {
        match openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
            result => return result,
        }
    }
    Err(last)
}

fn open_path(directory: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path: &OsStr = path.as_os_str();
    rustix::fs::openat(directory, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
