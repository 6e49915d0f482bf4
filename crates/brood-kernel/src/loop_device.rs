//! Files as block devices. See `loop(4)`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use linux_raw_sys::loop_device as raw;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};

/// Attempts to get a free device. Another program may take the one that the
/// kernel named before we do.
const ATTEMPTS_MAX: usize = 64;

/// Bytes of a sector of the device: the page size, so that direct I/O never
/// has to read before it writes.
const SECTOR_BYTES: u32 = 4096;

/// A loop device. It lets go of its file when the last descriptor and the
/// last mount of it are gone; nothing has to be undone.
#[derive(Debug)]
pub struct LoopDevice {
    _descriptor: OwnedFd,
    path: PathBuf,
}

impl LoopDevice {
    /// Makes a device of the file `image`, opened for reading and writing.
    /// The device goes around the page cache where the file system of the
    /// file can do that, so that nothing is cached twice.
    ///
    /// # Errors
    /// No loop driver, or no device left.
    pub fn attach(image: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let open = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::openat(CWD, "/dev/loop-control", open, Mode::empty())?;
        for _ in 0..ATTEMPTS_MAX {
            let path = PathBuf::from(format!("/dev/loop{}", free_number(control.as_fd())?));
            let descriptor = rustix::fs::openat(CWD, &path, open, Mode::empty())?;
            match configure(descriptor.as_fd(), image) {
                Ok(()) => return Ok(Self { _descriptor: descriptor, path }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::BUSY)
    }

    /// The device that has the file at `image` attached already, if any.
    ///
    /// # Errors
    /// `/sys` is not mounted, or the device cannot be opened.
    pub fn find(image: &Path) -> std::io::Result<Option<Self>> {
        for entry in std::fs::read_dir("/sys/block")? {
            let entry = entry?;
            let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
            if Path::new(backing.trim_end_matches('\n')) != image {
                continue;
            }
            let path = Path::new("/dev").join(entry.file_name());
            let descriptor = rustix::fs::openat(CWD, &path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            return Ok(Some(Self { _descriptor: descriptor, path }));
        }
        Ok(None)
    }

    /// The device node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether the loop driver is there and may be used.
#[must_use]
pub fn is_available() -> bool {
    rustix::fs::openat(CWD, "/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

fn free_number(control: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    // The number comes as return value, which rustix's patterns do not give.
    // SAFETY: the request takes no argument and touches no memory.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), raw::LOOP_CTL_GET_FREE.into()) };
    u32::try_from(number)
        .map_err(|_negative| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NODEV))
}

fn configure(device: BorrowedFd<'_>, image: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let image = u32::try_from(image.as_raw_fd()).map_err(|_negative| Errno::BADF)?;
    // The direct I/O flag is a wish: the kernel clears it where it cannot be.
    let flags = raw::LO_FLAGS_AUTOCLEAR as u32 | raw::LO_FLAGS_DIRECT_IO as u32;
    let info = raw::loop_info64 {
        lo_device: 0,
        lo_inode: 0,
        lo_rdevice: 0,
        lo_offset: 0,
        lo_sizelimit: 0,
        lo_number: 0,
        lo_encrypt_type: 0,
        lo_encrypt_key_size: 0,
        lo_flags: flags,
        lo_file_name: [0; 64],
        lo_crypt_name: [0; 64],
        lo_encrypt_key: [0; 32],
        lo_init: [0; 2],
    };
    let config = raw::loop_config { fd: image, block_size: SECTOR_BYTES, info, __reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`.
    let request = unsafe { Setter::<{ raw::LOOP_CONFIGURE }, _>::new(config) };
    // SAFETY: as above; the kernel keeps its own reference to the image.
    unsafe { ioctl(device, request) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_becomes_a_device_and_lets_go() {
        let path = std::env::temp_dir().join(format!("brood-loop-{}", std::process::id()));
        let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        image.set_len(1 << 20).unwrap();
        let device = LoopDevice::attach(image.as_fd()).unwrap();
        let block = File::options().read(true).write(true).open(device.path()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&block, b"through the device", 8192).unwrap();
        block.sync_all().unwrap();
        drop(block);
        assert_eq!(LoopDevice::find(&path).unwrap().unwrap().path(), device.path());
        drop(device);
        assert!(LoopDevice::find(&path).unwrap().is_none());
        let mut content = [0; 18];
        std::os::unix::fs::FileExt::read_exact_at(&image, &mut content, 8192).unwrap();
        assert_eq!(&content, b"through the device");
        std::fs::remove_file(&path).unwrap();
    }
}
