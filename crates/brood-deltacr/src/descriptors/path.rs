//! Files, directories and harmless devices, opened again by path.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::root::SandboxRoot;

/// Character devices without state: null, zero, full, random, urandom.
const HARMLESS_DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];
/// Flags that only matter while a file is opened for the first time.
const OPENING_FLAGS: u32 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC) as u32;
/// File systems whose files are views of the kernel's state: opening one again, as somebody
/// else, could give other content or other rights.
const KERNEL_FILE_SYSTEMS: [(u64, &str); 7] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x2727_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x6e73_6673, "namespaces"),
];

/// A file with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathFile {
    /// Absolute path inside the sandbox.
    pub path: Box<str>,
}

impl PathFile {
    /// Tells why a file can't be opened again by its path, or takes it.
    pub(crate) fn capture(link: &str, stat: &Stat, file_system: u64) -> Result<Self, String> {
        let format = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if let Some((_, name)) = KERNEL_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == file_system) {
            return Err(format!("{link} lies on a {name} file system"));
        }
        if stat.st_nlink == 0 || link.ends_with(crate::mappings::DELETED) {
            return Err(format!("{link} has no name any more"));
        }
        match format {
            rustix::fs::FileType::RegularFile | rustix::fs::FileType::Directory => {}
            rustix::fs::FileType::CharacterDevice => {
                let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                if !HARMLESS_DEVICES.contains(&device) {
                    return Err(format!("device {}:{} ({link})", device.0, device.1));
                }
            }
            other => return Err(format!("{link} is a {other:?}")),
        }
        Ok(Self { path: link.into() })
    }

    pub(crate) fn reopen(&self, root: &SandboxRoot, flags: u32) -> Result<OwnedFd, Errno> {
        root.open(&self.path, OFlags::from_bits_retain(flags & !OPENING_FLAGS))
    }
}
