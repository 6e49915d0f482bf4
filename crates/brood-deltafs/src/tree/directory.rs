//! Reading one directory of the merged tree.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use brood_kernel::beneath::list_directory;
use brood_kernel::mount::descriptor_path;
use rustix::fs::Stat;

use super::{Directory, Entry, FileTree, Found, Node, Part, Step, relative};
use crate::error::{Named, Result};

/// A directory of the merged tree, its parts opened as they are needed.
pub(crate) struct OpenDirectory<'t> {
    tree: &'t FileTree,
    directory: &'t Directory,
    parts: Vec<OnceCell<Option<OwnedFd>>>,
}

impl<'t> OpenDirectory<'t> {
    pub(crate) fn new(tree: &'t FileTree, directory: &'t Directory) -> Self {
        let parts = directory.parts.iter().map(|_| OnceCell::new()).collect();
        Self { tree, directory, parts }
    }

    /// The names in some of the parts, whiteouts included, in byte order.
    pub(crate) fn names(&self, parts: Range<usize>) -> Result<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        for index in parts {
            let Some(directory) = self.part(index)? else { continue };
            let entries = list_directory(directory.as_fd()).named("read", &self.host_path(index))?;
            names.extend(entries.into_iter().map(|entry| entry.name));
        }
        Ok(names)
    }

    /// What `name` means here.
    pub(crate) fn child(&self, name: &OsStr) -> Result<Option<Node>> {
        let mut search = Search::new(name);
        for (index, part) in self.directory.parts.iter().enumerate() {
            let Some(directory) = self.part(index)? else { continue };
            let entry = Entry::read(directory, &search.name).named("look up", &self.host_path(index))?;
            match entry {
                Entry::Absent => {}
                Entry::Whiteout(_) | Entry::File(_) if search.is_directory() => {
                    search.stopped = true;
                    break;
                }
                Entry::Whiteout(status) => return Ok(Some(Node::Whiteout(Found { part: index, status }))),
                Entry::File(status) => return Ok(Some(Node::File(Found { part: index, status }))),
                Entry::Directory { status, opaque, redirect } => {
                    let path = part.path.join(&search.name);
                    if search.add(Part { layer: part.layer, path }, status, opaque, redirect) {
                        break;
                    }
                }
            }
        }
        self.follow_absolute(&mut search)?;
        Ok(search.finish(self.directory.below.as_deref()))
    }

    /// A path under which this process reaches `name` in a part, for calls
    /// that take no descriptor. The last component is not to be followed.
    pub(crate) fn path_of(&self, part: usize, name: &OsStr) -> Result<Option<PathBuf>> {
        Ok(self.part(part)?.map(|directory| descriptor_path(directory.as_fd()).join(name)))
    }

    /// Opens the topmost part of a directory of the tree.
    pub(crate) fn open_top(&self, directory: &Directory) -> Result<Option<OwnedFd>> {
        let top = &directory.parts[0];
        self.tree.layers[top.layer].open_directory(&top.path)
    }

    /// The open directory of a part; nothing when it is gone.
    pub(crate) fn part(&self, index: usize) -> Result<Option<&OwnedFd>> {
        let cell = &self.parts[index];
        if cell.get().is_none() {
            let part = &self.directory.parts[index];
            let opened = self.tree.layers[part.layer].open_directory(&part.path)?;
            drop(cell.set(opened));
        }
        Ok(cell.get().and_then(Option::as_ref))
    }

    /// The layers below a directory with an absolute redirect are asked for
    /// that path, from their roots.
    fn follow_absolute(&self, search: &mut Search) -> Result<()> {
        let Some(mut path) = search.absolute.take() else { return Ok(()) };
        let first = search.parts.last().map_or(0, |part| part.layer + 1);
        for layer in first..self.tree.depth() {
            let asked = path.clone();
            match self.tree.look_up_path(layer, &mut path)? {
                Step::Missing => {}
                Step::Stop => {
                    search.stopped = true;
                    break;
                }
                Step::Found => search.parts.push(Part { layer, path: asked }),
                Step::FoundLast => {
                    search.parts.push(Part { layer, path: asked });
                    search.stopped = true;
                    break;
                }
            }
        }
        search.absolute = Some(path);
        Ok(())
    }

    fn host_path(&self, index: usize) -> PathBuf {
        self.tree.host_path(&self.directory.parts[index])
    }
}

/// A look-up on its way down the parts.
struct Search {
    /// The name in the parts still to come.
    name: OsString,
    parts: Vec<Part>,
    status: Option<Stat>,
    /// Nothing below the last part found counts.
    stopped: bool,
    /// The path in all layers still to come, after an absolute redirect.
    absolute: Option<PathBuf>,
}

impl Search {
    fn new(name: &OsStr) -> Self {
        Self { name: name.to_owned(), parts: Vec::new(), status: None, stopped: false, absolute: None }
    }

    fn is_directory(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Adds a part. True when the parts of the parent have no more to say.
    fn add(&mut self, part: Part, status: Stat, opaque: bool, redirect: Option<Vec<u8>>) -> bool {
        self.parts.push(part);
        self.status.get_or_insert(status);
        if opaque {
            self.stopped = true;
            return true;
        }
        match redirect {
            Some(redirect) if redirect.first() == Some(&b'/') => {
                self.absolute = Some(relative(&redirect));
                true
            }
            Some(redirect) => {
                self.name = OsStr::from_bytes(&redirect).to_owned();
                false
            }
            None => false,
        }
    }

    fn finish(self, parent_below: Option<&Path>) -> Option<Node> {
        let status = self.status?;
        let below = match (self.stopped, self.absolute) {
            (true, _) => None,
            (false, Some(path)) => Some(path),
            (false, None) => parent_below.map(|below| below.join(&self.name)),
        };
        Some(Node::Directory(Directory { parts: self.parts, below }, status))
    }
}
