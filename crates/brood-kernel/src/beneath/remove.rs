//! Removing trees that somebody hostile made: any depth, any names.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, renameat_with, unlinkat};
use rustix::io::Errno;

use super::walk::list_directory;

/// Directories below one another that are entered by recursion, each with one
/// open descriptor. Deeper ones are first moved up, so that neither the stack
/// nor the descriptor table depends on what a sandbox made.
const RECURSION_DEPTH_MAX: usize = 32;

/// Rounds over one directory. More than one is needed when something is still
/// writing into it; a directory that keeps filling is given up as ENOTEMPTY.
const ROUNDS_MAX: usize = 8;

/// Removes `name` in `directory`, whatever it is, with everything below. No
/// symbolic link is followed and no mount entered.
///
/// # Errors
/// As `unlinkat(2)`; EXDEV or EBUSY at a mount point.
pub fn remove_tree_at(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        result => return result,
    }
    let tree = enter(directory, name)?;
    remove_contents(tree.as_fd())?;
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

/// Removes everything in `directory`, but not itself.
///
/// # Errors
/// As [`remove_tree_at`].
pub fn remove_contents(directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut lifted = 0;
    empty(directory, directory, RECURSION_DEPTH_MAX, &mut lifted)
}

/// Removes everything in `directory`; what lies deeper than `depth_left` is
/// moved up into `top`, where a later round of the outermost call meets it.
fn empty(
    directory: BorrowedFd<'_>,
    top: BorrowedFd<'_>,
    depth_left: usize,
    lifted: &mut u64,
) -> rustix::io::Result<()> {
    let mut rounds = 0;
    loop {
        let names = list_directory(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        let lifted_before = *lifted;
        for entry in names {
            remove_entry(directory, &entry.name, top, depth_left, lifted)?;
        }
        // Rounds that brought up deeper directories are progress; only the
        // others count.
        if *lifted == lifted_before {
            rounds += 1;
        }
        if rounds > ROUNDS_MAX {
            return Err(Errno::NOTEMPTY);
        }
    }
}

fn remove_entry(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    top: BorrowedFd<'_>,
    depth_left: usize,
    lifted: &mut u64,
) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno),
    }
    // Most directories of a real tree are not empty, but trying costs little
    // beside opening and listing.
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    if depth_left == 0 {
        return lift(directory, name, top, lifted);
    }
    let child = enter(directory, name)?;
    empty(child.as_fd(), top, depth_left - 1, lifted)?;
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        // Something was written meanwhile: the next round of the caller.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Moves the directory `name` up into `top` under a name that is free there.
fn lift(directory: BorrowedFd<'_>, name: &OsStr, top: BorrowedFd<'_>, lifted: &mut u64) -> rustix::io::Result<()> {
    loop {
        *lifted += 1;
        let free = OsString::from(format!(".lifted-{lifted}"));
        match renameat_with(directory, name, top, &free, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            result => return result,
        }
    }
}

fn enter(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), how)
}
