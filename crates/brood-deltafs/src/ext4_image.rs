//! A file that holds an ext4 file system of an exact size, mounted through a
//! loop device: the disk limit that works on every kernel.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use brood_kernel::loop_device::{self, LoopDevice};
use brood_kernel::mount::{FsContext, MountError, attach, open_directory};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::error::{Named, Result, StoreError};

/// Bytes of content for each inode. Source trees and package directories
/// average well above; half of mkfs's usual figure, because running out of
/// inodes with space left confuses people more than 3 % of overhead.
const BYTES_PER_INODE: u64 = 8192;

/// Bytes of an inode with room for the attributes of an overlay.
const INODE_BYTES: u64 = 256;

/// Smallest journal that ext4 makes.
const JOURNAL_BYTES: u64 = 4 << 20;

/// Space for block maps and group descriptors beside what is computed.
const FIXED_BYTES: u64 = 1 << 20;

/// Blocks of the file system and its device.
const BLOCK_BYTES: u64 = 4096;

/// Where mkfs.ext4 is on every distribution.
const MAKE_FILE_SYSTEM: &str = "/sbin/mkfs.ext4";

/// Why images cannot be used here, or nothing if they can.
pub(crate) fn unavailable_reason() -> Option<String> {
    if !loop_device::is_available() {
        return Some("there is no /dev/loop-control (modprobe loop)".to_owned());
    }
    if !Path::new(MAKE_FILE_SYSTEM).exists() {
        return Some(format!("{MAKE_FILE_SYSTEM} is missing (apt-get install e2fsprogs)"));
    }
    match fs::read_to_string("/proc/filesystems") {
        Ok(list) if list.split_whitespace().any(|name| name == "ext4") => None,
        _ => Some("the kernel has no ext4 (modprobe ext4)".to_owned()),
    }
}

/// Bytes that an image needs so that `content_bytes` can be written into it.
fn image_bytes(content_bytes: u64) -> u64 {
    let inodes = content_bytes / BYTES_PER_INODE * INODE_BYTES;
    // One bit a block in the map, and 64 bytes a group of 128 MiB.
    let maps = content_bytes / BLOCK_BYTES / 8;
    let total = content_bytes + inodes + inodes / 32 + maps + JOURNAL_BYTES + FIXED_BYTES;
    total.next_multiple_of(BLOCK_BYTES)
}

/// Makes the image at `image`, sparse: it occupies little more than what is
/// written into it.
pub(crate) fn make(image: &Path, content_bytes: u64) -> Result<()> {
    let file = File::options().write(true).create_new(true).open(image).named("create", image)?;
    file.set_len(image_bytes(content_bytes)).named("set size of", image)?;
    let output = Command::new(MAKE_FILE_SYSTEM)
        .args(["-q", "-F", "-b", "4096", "-m", "0", "-O", "^resize_inode", "-J", "size=4"])
        .args(["-I", &INODE_BYTES.to_string(), "-i", &BYTES_PER_INODE.to_string()])
        .args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"])
        .arg(image)
        .output()
        .named("run mkfs.ext4 for", image)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(StoreError::MakeFileSystem { image: image.to_owned(), message })
}

/// Mounts the image at `directory`, through the loop device that has it
/// already if there is one: a second device of one file would corrupt it.
pub(crate) fn mount(image: &Path, directory: &Path) -> std::result::Result<(), MountError> {
    let failed = |errno| MountError::from_errno("attach", &image.to_string_lossy(), errno);
    let io_failed = |error: std::io::Error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let device = match LoopDevice::find(image).map_err(io_failed)? {
        Some(device) => device,
        None => {
            let file = File::options().read(true).write(true).open(image).map_err(io_failed)?;
            LoopDevice::attach(file.as_fd()).map_err(failed)?
        }
    };
    let mut context = FsContext::new("ext4")?;
    context.path("source", device.path())?;
    // Space of deleted files goes back to the host.
    context.flag("discard")?;
    // The image is sparse: its unwritten inode tables read as zeros already.
    context.flag("noinit_itable")?;
    let mount = context.mount(MountAttrFlags::MOUNT_ATTR_NOATIME)?;
    attach(mount.as_fd(), open_directory(directory)?.as_fd(), Path::new("."))
}
