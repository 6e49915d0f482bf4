//! What an interface needs of files beyond their content: what links lead to, owners by name,
//! attributes, and a hold on a directory that is to be watched.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags};

use super::{Entry, Files, Owner, absolute, io_error, relative};
use crate::error::Result;
use crate::users::{self, Identity, Names};

/// Longest list of attribute names and longest value that is read, in bytes: the kernel's own bound.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

impl Files {
    /// What `path` leads to once all links are followed.
    ///
    /// # Errors
    /// `NotFound` also for a link to nothing, `Invalid`.
    pub fn stat_followed(&self, path: impl AsRef<Path>) -> Result<Entry> {
        let path = absolute(path.as_ref())?;
        let status = self.root.status(relative(&path)).map_err(io_error).map_err(self.failed("look at", &path))?;
        Ok(self.entry(&path, &status))
    }

    /// Makes an open file of this sandbox belong to somebody else.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_owner(&self, file: &File, owner: Owner) -> Result<()> {
        self.give(file, owner).map_err(self.failed("change the owner of a file", Path::new("")))
    }

    /// A user of the sandbox: `name`, `uid`, `name:group` or `uid:gid`.
    ///
    /// # Errors
    /// `Invalid` when there is no such user.
    pub fn user(&self, text: &str) -> Result<Identity> {
        users::look_up(&self.root, text)
    }

    /// Names of users and groups by number, as the sandbox's own files have them now.
    pub fn names(&self) -> Names {
        users::names(&self.root)
    }

    /// Opens a directory so that changes in it can be watched.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` when it is no directory or not among the sandbox's files.
    pub fn open_directory(&self, path: impl AsRef<Path>) -> Result<OwnedFd> {
        let path = absolute(path.as_ref())?;
        let failed = self.failed("open", &path);
        let directory = self.root.open_directory(relative(&path)).map_err(io_error).map_err(failed)?;
        self.ensure_inside(&directory, &path)?;
        Ok(directory)
    }

    /// The extended attributes of a regular file or directory whose names begin with `prefix`,
    /// without it; none when it cannot be opened or the file system keeps none.
    pub fn attributes(&self, path: impl AsRef<Path>, prefix: &str) -> BTreeMap<String, String> {
        let Ok(path) = absolute(path.as_ref()) else { return BTreeMap::new() };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.root.open_file(relative(&path), flags, Mode::empty());
        opened.ok().and_then(|file| read_attributes(&file, prefix).ok()).unwrap_or_default()
    }

    /// Replaces all extended attributes of an open file whose names begin with `prefix`.
    ///
    /// # Errors
    /// When the file system keeps none or has no room.
    pub fn set_attributes(&self, file: &File, prefix: &str, values: &BTreeMap<String, String>) -> io::Result<()> {
        for name in read_attributes(file, prefix)?.keys().filter(|name| !values.contains_key(*name)) {
            rustix::fs::fremovexattr(file, attribute(prefix, name)?)?;
        }
        for (name, value) in values {
            rustix::fs::fsetxattr(file, attribute(prefix, name)?, value.as_bytes(), XattrFlags::empty())?;
        }
        Ok(())
    }
}

fn attribute(prefix: &str, name: &str) -> io::Result<CString> {
    CString::new(format!("{prefix}{name}")).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn read_attributes(file: impl std::os::fd::AsFd, prefix: &str) -> io::Result<BTreeMap<String, String>> {
    // Nearly all files have none, which a buffer too small for any tells.
    match rustix::fs::flistxattr(&file, &mut [0u8; 1][..]) {
        Ok(0) => return Ok(BTreeMap::new()),
        Ok(_) | Err(rustix::io::Errno::RANGE) => {}
        Err(error) => return Err(error.into()),
    }
    let mut list = vec![0u8; ATTRIBUTES_BYTES_MAX];
    let length = rustix::fs::flistxattr(&file, &mut list[..])?;
    let mut found = BTreeMap::new();
    let mut value = vec![0u8; ATTRIBUTES_BYTES_MAX];
    for name in list[..length].split(|byte| *byte == 0) {
        let Some(short) = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(prefix)) else { continue };
        let Ok(length) = rustix::fs::fgetxattr(&file, attribute(prefix, short)?, &mut value[..]) else { continue };
        found.insert(short.to_owned(), String::from_utf8_lossy(&value[..length]).into_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use brood_kernel::beneath::Root;

    use super::*;
    use crate::ids::SandboxId;

    #[test]
    fn attributes_are_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(SandboxId::random(), Root::open(directory.path()).unwrap(), 0);
        let values = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let file = files.create("/a", Owner::default(), 0o644).unwrap();
        assert!(files.attributes("/a", "user.x.").is_empty());
        files.set_attributes(&file, "user.x.", &values(&[("one", "1"), ("two", "2")])).unwrap();
        files.set_attributes(&file, "user.y.", &values(&[("other", "3")])).unwrap();
        files.set_attributes(&file, "user.x.", &values(&[("two", "22")])).unwrap();
        assert_eq!(files.attributes("/a", "user.x."), values(&[("two", "22")]));
        assert_eq!(files.attributes("/a", "user.y."), values(&[("other", "3")]));
        assert!(files.attributes("/none", "user.x.").is_empty());
    }
}
