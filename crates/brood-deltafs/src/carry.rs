//! Inode numbers of open files across a freeze.
//!
//! A file that was copied up keeps the inode number it had in the layers,
//! because the copy notes where it came from. Once its upper is frozen the
//! kernel no longer looks at that note, and the file has another number: SQLite
//! takes a database whose number changed under it for one that was replaced,
//! and refuses to write. So the files that tasks hold open for writing, which
//! would be copied up again anyway when they are opened anew, are copied into
//! the new upper beforehand, notes included.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crate::attributes;
use crate::error::{Named, Result};
use crate::layer::LayerStack;
use crate::tree::{Directory, FileTree, Found, Node, OpenDirectory, attribute};
use crate::upper::Upper;

/// Attribute that says which inode a file was copied up from.
const ORIGIN: &str = "trusted.overlay.origin";

impl Upper {
    /// Copies those of the files `paths` (absolute, as tasks of the sandbox see
    /// them, without links) that would otherwise change their inode number from
    /// `stack` into this upper, which must not have been mounted yet. Returns
    /// the bytes copied.
    ///
    /// Paths that are no regular files in `stack` are left out: an open file
    /// may have been unlinked.
    ///
    /// # Errors
    /// As file operations; the upper is to be discarded then.
    pub fn carry(&self, stack: &LayerStack, paths: &[PathBuf]) -> Result<u64> {
        let tree = FileTree::of(stack)?;
        let mut bytes = 0;
        for path in paths {
            bytes += carry_one(&tree, &self.changes(), path)?;
        }
        Ok(bytes)
    }
}

fn carry_one(tree: &FileTree, changes: &Path, path: &Path) -> Result<u64> {
    let names: Vec<_> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let Some((name, parents)) = names.split_last() else { return Ok(0) };
    let mut chain: Vec<Directory> = vec![tree.root()];
    for parent in parents {
        let open = OpenDirectory::new(tree, chain.last().expect("the root is in it"));
        let Some(Node::Directory(directory, _)) = open.child(parent)? else { return Ok(0) };
        chain.push(directory);
    }
    let open = OpenDirectory::new(tree, chain.last().expect("the root is in it"));
    let Some(Node::File(found)) = open.child(name)? else { return Ok(0) };
    let Some(source) = open.path_of(found.part, name)? else { return Ok(0) };
    let is_file = FileType::from_raw_mode(found.status.st_mode) == FileType::RegularFile;
    let origin = attribute(&source, ORIGIN).named("origin of", path)?;
    let Some(origin) = origin.filter(|_| is_file) else { return Ok(0) };
    let mut target = changes.to_owned();
    for (parent, directory) in parents.iter().zip(&chain[1..]) {
        target.push(parent);
        make_parent(tree, directory, &target)?;
    }
    target.push(name);
    copy(&source, &found, &target, &origin).named("carry over", path)
}

/// Makes a directory of the upper as copying up would: merged with those
/// below, with their metadata.
fn make_parent(tree: &FileTree, directory: &Directory, target: &Path) -> Result<()> {
    match fs::create_dir(target) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        result => result.named("make directory", target)?,
    }
    let open = OpenDirectory::new(tree, directory);
    let Some(source) = open.part(0)? else { return Err(Errno::STALE).named("open", target) };
    let status = rustix::fs::fstat(source).named("status of", target)?;
    let inside = brood_kernel::mount::descriptor_path(source.as_fd()).join(".");
    attributes::write(target, &attributes::read(&inside)?)?;
    let made = File::open(target).named("open", target)?;
    set_metadata(made.as_fd(), &status).named("set metadata of", target)
}

fn copy(source: &Path, found: &Found, target: &Path, origin: &[u8]) -> std::io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut from = File::from(rustix::fs::openat(CWD, source, flags, Mode::empty())?);
    let to = match File::options().write(true).create_new(true).open(target) {
        // Two descriptors of one file.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(0),
        to => to?,
    };
    let bytes = match rustix::fs::ioctl_ficlone(&to, &from) {
        Ok(()) => 0,
        Err(_no_reflinks) => std::io::copy(&mut from, &mut &to)?,
    };
    let copied = attributes::read(source).and_then(|attributes| attributes::write(target, &attributes));
    copied.map_err(std::io::Error::other)?;
    rustix::fs::fsetxattr(&to, ORIGIN, origin, XattrFlags::empty())?;
    set_metadata(to.as_fd(), &found.status)?;
    Ok(bytes)
}

fn set_metadata(file: BorrowedFd<'_>, status: &Stat) -> std::io::Result<()> {
    std::os::unix::fs::fchown(file, Some(status.st_uid), Some(status.st_gid))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(status.st_mode))?;
    rustix::fs::futimens(file, &attributes::times(status))?;
    Ok(())
}
