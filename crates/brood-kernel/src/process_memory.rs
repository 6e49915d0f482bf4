//! Memory of other processes: scattered copies between a process and this one.
//!
//! What a sandbox process can write at any moment is never borrowed here, only copied.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::{Errno, Result};
use rustix::process::Pid;

use crate::shared_pages::{PAGE_BYTES, SharedPages};

/// Most vectors that one `process_vm_readv` takes (`UIO_MAXIOV`).
const VECTORS_MAX: usize = 1024;

/// A run of whole pages: where they lie in the process and where in a [`SharedPages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// Address in the process, page aligned.
    pub address: u64,
    /// First page in the shared pages.
    pub page: usize,
    /// Number of pages.
    pub pages: usize,
}

/// Direction of a scattered copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromProcess,
    ToProcess,
}

/// Copies page runs of a process into shared pages.
///
/// # Errors
/// EFAULT if a page of the process is unmapped or unreadable (pages before it may have been
/// copied), ESRCH if the process is gone, EINVAL if a run lies outside the shared pages.
pub fn read_pages(pid: Pid, runs: &[PageRun], pages: &SharedPages) -> Result<()> {
    copy(pid, runs, pages, Direction::FromProcess)
}

/// Copies shared pages into page runs of a process. Read-only mappings are refused by the
/// kernel; use [`write_forced`] for those.
///
/// # Errors
/// As for [`read_pages`].
pub fn write_pages(pid: Pid, runs: &[PageRun], pages: &SharedPages) -> Result<()> {
    copy(pid, runs, pages, Direction::ToProcess)
}

fn copy(pid: Pid, runs: &[PageRun], pages: &SharedPages, direction: Direction) -> Result<()> {
    for batch in runs.chunks(VECTORS_MAX) {
        let mut local = Vec::with_capacity(batch.len());
        let mut remote = Vec::with_capacity(batch.len());
        let mut total = 0_usize;
        for run in batch {
            let length = run.pages * PAGE_BYTES;
            local.push(libc::iovec { iov_base: pages.pointer(run.page, run.pages)?.cast(), iov_len: length });
            remote.push(libc::iovec {
                iov_base: std::ptr::without_provenance_mut(run.address as usize),
                iov_len: length,
            });
            total += length;
        }
        let done = transfer(pid, &local, &remote, direction)?;
        if done != total {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

fn transfer(pid: Pid, local: &[libc::iovec], remote: &[libc::iovec], direction: Direction) -> Result<usize> {
    let call = match direction {
        Direction::FromProcess => libc::process_vm_readv,
        Direction::ToProcess => libc::process_vm_writev,
    };
    // SAFETY: both vectors are valid for the call. The local ones point into a shared mapping
    // that no Rust reference ever covers, so the kernel may write there; remote addresses are
    // checked by the kernel against the other process.
    let result = unsafe {
        call(
            pid.as_raw_nonzero().get(),
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(result).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Opens `/proc/PID/mem` for [`read_exact`] and [`write_forced`].
///
/// # Errors
/// EACCES without ptrace access to the process, ENOENT if it is gone.
pub fn open(pid: Pid) -> Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/mem", pid.as_raw_nonzero()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Fills `buffer` from `address` of the process behind `memory`.
///
/// # Errors
/// EIO if the range isn't mapped.
pub fn read_exact(memory: &File, address: u64, buffer: &mut [u8]) -> Result<()> {
    memory.read_exact_at(buffer, address).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Writes `bytes` at `address` of the process behind `memory`, even where the mapping is
/// private and read-only (the page is copied first, as for a debugger's breakpoint).
///
/// # Errors
/// EIO if the range isn't mapped or is a shared mapping without write permission.
pub fn write_forced(memory: &File, address: u64, bytes: &[u8]) -> Result<()> {
    memory.write_all_at(bytes, address).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_child::Child;

    fn own_pid() -> Pid {
        rustix::process::getpid()
    }

    #[test]
    fn pages_travel_both_ways() {
        let source = SharedPages::new("source", 8).unwrap();
        let target = SharedPages::new("target", 8).unwrap();
        source.write(3, &[7_u8; PAGE_BYTES]).unwrap();
        let run = PageRun { address: source.address(3).unwrap(), page: 5, pages: 2 };
        read_pages(own_pid(), &[run], &target).unwrap();
        assert_eq!(target.read(5).unwrap(), [7_u8; PAGE_BYTES]);
        target.write(0, &[9_u8; PAGE_BYTES]).unwrap();
        let run = PageRun { address: source.address(1).unwrap(), page: 0, pages: 1 };
        write_pages(own_pid(), &[run], &target).unwrap();
        assert_eq!(source.read(1).unwrap(), [9_u8; PAGE_BYTES]);
    }

    #[test]
    fn runs_outside_the_shared_pages_or_unmapped_are_refused() {
        let pages = SharedPages::new("target", 2).unwrap();
        let outside = PageRun { address: 0x1000, page: 1, pages: 2 };
        assert_eq!(read_pages(own_pid(), &[outside], &pages), Err(Errno::INVAL));
        let unmapped = PageRun { address: 0x1000, page: 0, pages: 1 };
        assert_eq!(read_pages(own_pid(), &[unmapped], &pages), Err(Errno::FAULT));
    }

    #[test]
    fn forced_writes_reach_read_only_pages() {
        let child = Child::sleeping();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.pid().as_raw_nonzero()));
        let text = maps.unwrap();
        let line = text.lines().find(|line| line.contains("r--p")).unwrap();
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let memory = open(child.pid()).unwrap();
        write_forced(&memory, start, b"brood").unwrap();
        let mut seen = [0_u8; 5];
        read_exact(&memory, start, &mut seen).unwrap();
        assert_eq!(&seen, b"brood");
        assert_eq!(read_exact(&memory, 0x10, &mut seen), Err(Errno::IO));
    }
}
