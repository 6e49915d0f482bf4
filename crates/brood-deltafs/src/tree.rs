//! A stack read without mounting it: the rules of overlayfs in user space.
//!
//! A directory of the merged tree is a list of directories in layers, its
//! *parts*. A name is looked up in the parts from the top: a whiteout ends the
//! search, a file is the result, a directory becomes a part of the result and
//! the search goes on below it, under another name if the directory carries a
//! redirect (it was renamed), and no further if it is opaque (it replaced
//! something).

mod directory;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

use crate::error::{Named, Result};
use crate::layer::{Layer, LayerStack};
use crate::upper::Upper;

pub(crate) use directory::OpenDirectory;

/// Attribute that ends the merging of a directory with those below.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
/// Attribute with the name or path that a directory has in the layers below.
pub(crate) const REDIRECT: &str = "trusted.overlay.redirect";
/// Beginning of the names of overlayfs's own attributes.
pub(crate) const OVERLAY_PREFIX: &[u8] = b"trusted.overlay.";

/// Longest redirect that is read: a path.
const REDIRECT_BYTES_MAX: usize = 4096;

/// The files of a stack, alone or under a living upper, for
/// [`crate::Diff`] and the like. Layers are read as they are on disk.
#[derive(Debug)]
pub struct FileTree {
    layers: Vec<Root>,
}

/// The root of one layer.
#[derive(Debug)]
struct Root {
    directory: OwnedFd,
    path: PathBuf,
    /// Device and inode number: the layer's identity.
    key: (u64, u64),
}

/// A directory in a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the layer, 0 at the top.
    pub(crate) layer: usize,
    /// Path below the layer's root.
    pub(crate) path: PathBuf,
}

/// A directory of the merged tree.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// Where it is made of, topmost first. Never empty.
    pub(crate) parts: Vec<Part>,
    /// Where layers below the last one would be asked for it; nothing when it
    /// is not merged with them.
    pub(crate) below: Option<PathBuf>,
}

/// What a name of the merged tree means.
#[derive(Debug)]
pub(crate) enum Node {
    /// Removed in the layer of the given part of the parent.
    Whiteout(Found),
    /// Anything but a directory.
    File(Found),
    /// A directory; status of the topmost part.
    Directory(Directory, Stat),
}

/// An object found in one part of a directory.
#[derive(Debug)]
pub(crate) struct Found {
    /// Index into the parts of the directory.
    pub(crate) part: usize,
    pub(crate) status: Stat,
}

/// What one layer has under a name.
enum Entry {
    Absent,
    Whiteout(Stat),
    File(Stat),
    Directory { status: Stat, opaque: bool, redirect: Option<Vec<u8>> },
}

impl FileTree {
    /// The files of `stack`.
    ///
    /// # Errors
    /// A layer's directory cannot be opened.
    pub fn of(stack: &LayerStack) -> Result<Self> {
        Self::of_directories(stack.layers().iter().map(Layer::path))
    }

    /// The files that a mount of `upper` on `stack` shows now. What changes
    /// while it is read may or may not be seen.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn live(stack: &LayerStack, upper: &Upper) -> Result<Self> {
        let changes = upper.changes();
        Self::of_directories(std::iter::once(changes.as_path()).chain(stack.layers().iter().map(Layer::path)))
    }

    pub(crate) fn of_directories<'p>(directories: impl Iterator<Item = &'p Path>) -> Result<Self> {
        let layers: Result<_> = directories.map(Root::open).collect();
        Ok(Self { layers: layers? })
    }

    /// The root of the merged tree.
    pub(crate) fn root(&self) -> Directory {
        let parts = (0..self.layers.len()).map(|layer| Part { layer, path: PathBuf::new() }).collect();
        Directory { parts, below: Some(PathBuf::new()) }
    }

    /// The directory `path` of the merged tree, if there is one.
    pub(crate) fn find_directory(&self, path: &Path) -> Result<Option<Directory>> {
        let mut directory = self.root();
        for name in path.iter() {
            match OpenDirectory::new(self, &directory).child(name)? {
                Some(Node::Directory(child, _status)) => directory = child,
                _ => return Ok(None),
            }
        }
        Ok(Some(directory))
    }

    /// How many layers at the bottom are the same in both trees.
    pub(crate) fn common_layers(&self, other: &Self) -> usize {
        let pairs = self.layers.iter().rev().zip(other.layers.iter().rev());
        pairs.take_while(|(one, two)| one.key == two.key).count()
    }

    pub(crate) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The path of a part on the host, for messages.
    pub(crate) fn host_path(&self, part: &Part) -> PathBuf {
        self.layers[part.layer].path.join(&part.path)
    }

    /// Looks for the directory `path` in one layer, and rewrites `path` to
    /// where the layers below have to be asked.
    fn look_up_path(&self, layer: usize, path: &mut PathBuf) -> Result<Step> {
        let root = &self.layers[layer];
        let mut step = Step::Missing;
        let mut stop = false;
        let mut physical = PathBuf::new();
        let mut rewritten = PathBuf::new();
        let mut missing = false;
        for component in path.iter() {
            if missing {
                rewritten.push(component);
                continue;
            }
            let parent = root.open_directory(&physical)?;
            let entry = match &parent {
                Some(parent) => Entry::read(parent, component).named("look up", &root.path.join(&physical))?,
                None => Entry::Absent,
            };
            physical.push(component);
            match entry {
                Entry::Absent => {
                    missing = true;
                    step = Step::Missing;
                    rewritten.push(component);
                }
                Entry::Whiteout(_) | Entry::File(_) => return Ok(Step::Stop),
                Entry::Directory { opaque, redirect, .. } => {
                    step = Step::Found;
                    stop |= opaque;
                    match redirect {
                        Some(redirect) if !opaque => follow(&mut rewritten, &redirect),
                        _ => rewritten.push(component),
                    }
                }
            }
        }
        *path = rewritten;
        Ok(match (step, stop) {
            (Step::Found, true) => Step::FoundLast,
            (Step::Missing, true) => Step::Stop,
            (step, _) => step,
        })
    }
}

/// What a layer says to a path.
enum Step {
    /// Nothing: ask the next layer.
    Missing,
    /// Nothing, and no layer below counts.
    Stop,
    /// A part; the layers below may have more.
    Found,
    /// A part, the last one.
    FoundLast,
}

/// Appends a relative redirect, or starts again with an absolute one.
fn follow(path: &mut PathBuf, redirect: &[u8]) {
    if redirect.first() == Some(&b'/') {
        *path = relative(redirect);
    } else {
        path.push(OsStr::from_bytes(redirect));
    }
}

/// A redirect as a path below a layer's root, free of anything but names.
fn relative(redirect: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(redirect));
    path.components().filter(|component| matches!(component, Component::Normal(_))).collect()
}

impl Root {
    fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).named("open", path)?;
        let status = rustix::fs::fstat(&directory).named("status of", path)?;
        Ok(Self { directory, path: path.to_owned(), key: (status.st_dev, status.st_ino) })
    }

    /// Opens a directory of the layer; nothing when there is none under that
    /// path. Links in it are not followed: they lead nowhere for an overlay.
    fn open_directory(&self, path: &Path) -> Result<Option<OwnedFd>> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let below = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match openat2(&self.directory, below, flags, Mode::empty(), how) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno).named("open", &self.path.join(path)),
        }
    }
}

impl Entry {
    fn read(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        let status = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => status,
            Err(Errno::NOENT) => return Ok(Self::Absent),
            Err(errno) => return Err(errno),
        };
        match FileType::from_raw_mode(status.st_mode) {
            FileType::CharacterDevice if status.st_rdev == 0 => Ok(Self::Whiteout(status)),
            FileType::Directory => {
                let path = brood_kernel::mount::descriptor_path(directory.as_fd()).join(name);
                let opaque = attribute(&path, OPAQUE)?.is_some_and(|value| value == b"y");
                let redirect = attribute(&path, REDIRECT)?.filter(|value| !value.is_empty());
                Ok(Self::Directory { status, opaque, redirect })
            }
            _ => Ok(Self::File(status)),
        }
    }
}

/// One extended attribute of `path` itself, if it has it.
pub(crate) fn attribute(path: &Path, name: &str) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; REDIRECT_BYTES_MAX];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
