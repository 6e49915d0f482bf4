//! Squashing: several adjacent layers become one that means the same.
//!
//! Files are hard-linked, not copied: they keep their inode numbers, their
//! attributes and their links among one another, and only directories cost
//! space. Whiteouts that still hide something, opaque marks and redirects are
//! kept or composed.

mod plan;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, XattrFlags, linkat, lsetxattr, mkdirat};
use rustix::io::Errno;

use crate::attributes;
use crate::error::{Named, Result, StoreError};
use crate::failure_point;
use crate::id::LayerId;
use crate::layer::{DEPTH_MAX, Layer, LayerStack};
use crate::store::{Staging, Store};
use crate::tree::{Directory, FileTree, Found, Node, OPAQUE, OpenDirectory, REDIRECT};

pub use plan::DEPTH_AIM;

impl Store {
    /// A layer that means the same as the layers `run` of `stack`, when it is
    /// put in their place ([`LayerStack::replaced`]). The layers stay.
    ///
    /// The result depends on what is below the run: a whiteout of something
    /// that is not there would show, in a directory that nothing is merged
    /// with. So it fits only where the run is, in this stack and in those that
    /// have the same below it.
    ///
    /// # Errors
    /// [`StoreError::Depth`] for fewer than two layers,
    /// [`StoreError::Apart`] for layers of different spaces, or as file
    /// operations. Nothing is left behind then.
    pub fn squash(&self, stack: &LayerStack, run: Range<usize>) -> Result<Layer> {
        self.squash_as(stack, run, LayerId::random().named("name for a layer in", self.root())?)
    }

    pub(crate) fn squash_as(&self, stack: &LayerStack, run: Range<usize>, id: LayerId) -> Result<Layer> {
        let layers = stack.layers().get(run.clone()).unwrap_or_default();
        let (Some(top), true) = (layers.first(), layers.len() >= 2) else {
            return Err(StoreError::Depth { depth: layers.len(), max: DEPTH_MAX });
        };
        if let Some(other) = layers.iter().find(|layer| layer.home() != top.home()) {
            return Err(StoreError::Apart { one: top.id().clone(), other: other.id().clone() });
        }
        let tree = FileTree::of(&LayerStack::new(layers.iter().cloned()))?;
        let below = FileTree::of(&LayerStack::new(stack.layers()[run.end..].iter().cloned()))?;
        let staging = Staging::create(self, &top.home())?;
        Merge { tree: &tree, below: &below, target: staging.path() }.run()?;
        failure_point::reach("squash.merged");
        staging.publish(id)
    }
}

impl LayerStack {
    /// This stack with `merged` in the place of its layers `run`.
    ///
    /// # Panics
    /// When `run` is not within the stack.
    #[must_use]
    pub fn replaced(&self, run: Range<usize>, merged: &Layer) -> Self {
        let (above, rest) = self.layers().split_at(run.start);
        let below = &rest[run.len()..];
        Self::new(above.iter().chain(std::iter::once(merged)).chain(below).cloned())
    }
}

/// One merge under way.
struct Merge<'m> {
    /// The layers that are merged.
    tree: &'m FileTree,
    /// The layers that the result will be above.
    below: &'m FileTree,
    target: &'m Path,
}

/// A directory of the result, still to be filled.
struct Pending {
    path: PathBuf,
    directory: Directory,
}

impl Merge<'_> {
    fn run(&self) -> Result<()> {
        let mut pending = vec![Pending { path: PathBuf::new(), directory: self.tree.root() }];
        while let Some(next) = pending.pop() {
            self.fill(&next, &mut pending)?;
        }
        Ok(())
    }

    /// Makes everything in one directory; its own directories are made empty
    /// and added to `pending`.
    fn fill(&self, here: &Pending, pending: &mut Vec<Pending>) -> Result<()> {
        let open = OpenDirectory::new(self.tree, &here.directory);
        let host_path = self.target.join(&here.path);
        let target = self.open_target(&here.path)?;
        let names: BTreeSet<OsString> = open.names(0..here.directory.parts.len())?;
        let mut below = Below { tree: self.below, path: here.directory.below.as_deref(), directory: None };
        for name in names {
            match open.child(&name)? {
                None => {}
                Some(Node::Whiteout(_)) if !below.has(&name)? => {}
                Some(Node::Whiteout(found) | Node::File(found)) => {
                    self.link(&open, &found, &name, &target).named("link", &host_path.join(&name))?;
                }
                Some(Node::Directory(directory, _status)) => {
                    mkdirat(&target, &name, Mode::RWXU).named("make directory", &host_path.join(&name))?;
                    mark(&target, &name, &here.directory, &directory).named("mark", &host_path.join(&name))?;
                    pending.push(Pending { path: here.path.join(&name), directory });
                }
            }
        }
        // Last, because making the children changed the times.
        self.copy_directory_metadata(here, &target)
    }

    fn link(
        &self,
        open: &OpenDirectory<'_>,
        found: &Found,
        name: &OsStr,
        target: &File,
    ) -> std::result::Result<(), std::io::Error> {
        let part = open.part(found.part).map_err(std::io::Error::other)?.ok_or(Errno::STALE)?;
        match linkat(part, name, target, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::MLINK) => copy_file(part.as_fd(), &found.status, name, target),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_target(&self, path: &Path) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let host_path = self.target.join(path);
        rustix::fs::openat(CWD, &host_path, flags, Mode::empty()).map(File::from).named("open", &host_path)
    }

    fn copy_directory_metadata(&self, here: &Pending, target: &File) -> Result<()> {
        let host_path = self.target.join(&here.path);
        let parent = OpenDirectory::new(self.tree, &here.directory);
        let Some(source) = parent.part(0)? else {
            return Err(Errno::STALE).named("open", &self.tree.host_path(&here.directory.parts[0]));
        };
        let status = rustix::fs::fstat(source).named("status of a part of", &host_path)?;
        let inside = |directory: std::os::fd::BorrowedFd<'_>| {
            // With the dot, or the link in /proc itself would be meant.
            brood_kernel::mount::descriptor_path(directory).join(".")
        };
        attributes::write(&inside(target.as_fd()), &attributes::read(&inside(source.as_fd()))?)?;
        std::os::unix::fs::fchown(target, Some(status.st_uid), Some(status.st_gid))
            .named("set owner of", &host_path)?;
        rustix::fs::fchmod(target, Mode::from_raw_mode(status.st_mode)).named("set mode of", &host_path)?;
        rustix::fs::futimens(target, &attributes::times(&status)).named("set times of", &host_path)
    }
}

/// The directory that one of the result is merged with; found when the first
/// whiteout needs it.
struct Below<'m> {
    tree: &'m FileTree,
    path: Option<&'m Path>,
    directory: Option<Option<Directory>>,
}

impl Below<'_> {
    fn has(&mut self, name: &OsStr) -> Result<bool> {
        if self.directory.is_none() {
            let found = self.path.map(|path| self.tree.find_directory(path)).transpose()?;
            self.directory = Some(found.flatten());
        }
        let Some(Some(directory)) = &self.directory else { return Ok(false) };
        let node = OpenDirectory::new(self.tree, directory).child(name)?;
        Ok(!matches!(node, None | Some(Node::Whiteout(_))))
    }
}

/// Sets the opaque mark and the redirect that the merged directory `name`
/// needs so that layers below are asked for it as they were before.
fn mark(target: &File, name: &OsStr, parent: &Directory, directory: &Directory) -> rustix::io::Result<()> {
    let path = brood_kernel::mount::descriptor_path(target.as_fd()).join(name);
    let natural = parent.below.as_ref().map(|below| below.join(name));
    match &directory.below {
        None if natural.is_some() => lsetxattr(&path, OPAQUE, b"y", XattrFlags::empty()),
        Some(below) if natural.as_ref() != Some(below) => {
            let absolute = Path::new("/").join(below);
            lsetxattr(&path, REDIRECT, absolute.as_os_str().as_bytes(), XattrFlags::empty())
        }
        _ => Ok(()),
    }
}

/// Copies a file that has as many links as the file system allows.
fn copy_file(
    source: std::os::fd::BorrowedFd<'_>,
    status: &Stat,
    name: &OsStr,
    target: &File,
) -> std::result::Result<(), std::io::Error> {
    let from = brood_kernel::mount::descriptor_path(source).join(name);
    let to = brood_kernel::mount::descriptor_path(target.as_fd()).join(name);
    if rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Errno::MLINK.into());
    }
    fs::copy(&from, &to)?;
    std::os::unix::fs::lchown(&to, Some(status.st_uid), Some(status.st_gid))?;
    let copied = attributes::read(&from).and_then(|attributes| attributes::write(&to, &attributes));
    copied.map_err(std::io::Error::other)?;
    rustix::fs::chmodat(CWD, &to, Mode::from_raw_mode(status.st_mode), AtFlags::empty())?;
    rustix::fs::utimensat(CWD, &to, &attributes::times(status), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
