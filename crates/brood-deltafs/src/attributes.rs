//! Extended attributes and times of objects in layers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Stat, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;

use crate::error::{Named, Result};
use crate::tree::OVERLAY_PREFIX;

/// Most bytes that the kernel gives for the list of names, or for one value:
/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const BYTES_MAX: usize = 65536;

/// All attributes of `path` itself but overlayfs's own. Empty where the file
/// system has none or the object is gone.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut buffer = vec![0; BYTES_MAX];
    let length = match llistxattr(path, &mut buffer[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOENT) => 0,
        Err(errno) => return Err(errno).named("list attributes of", path),
    };
    let names: Vec<Vec<u8>> = buffer[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(OVERLAY_PREFIX))
        .map(<[u8]>::to_vec)
        .collect();
    let mut attributes = BTreeMap::new();
    for name in names {
        match lgetxattr(path, OsStr::from_bytes(&name), &mut buffer[..]) {
            Ok(length) => drop(attributes.insert(name, buffer[..length].to_vec())),
            Err(Errno::NODATA | Errno::NOENT) => {}
            Err(errno) => return Err(errno).named("read attribute of", path),
        }
    }
    Ok(attributes)
}

/// Sets `attributes` on `path` itself.
pub(crate) fn write(path: &Path, attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
    for (name, value) in attributes {
        lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty()).named("set attribute of", path)?;
    }
    Ok(())
}

/// Access and modification time of a status.
pub(crate) fn times(status: &Stat) -> Timestamps {
    let time = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: time(status.st_atime, status.st_atime_nsec),
        last_modification: time(status.st_mtime, status.st_mtime_nsec),
    }
}
