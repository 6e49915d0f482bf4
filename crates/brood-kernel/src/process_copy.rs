//! Scattered ranges of another process' memory, gathered into one buffer of this process.

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// Most vectors that one `process_vm_readv` takes (`UIO_MAXIOV`).
const VECTORS_MAX: usize = 1024;

/// Copies ranges (address and bytes) of a process into `buffer`, one behind the other. Returns the bytes copied: fewer
/// than asked for if a range, or a part of one, isn't mapped or can't be read; everything before it was copied.
///
/// The process may be running; then what is copied is what lay there at some moment, page by page.
///
/// # Errors
/// EINVAL if the ranges together are not as long as the buffer, ESRCH if the process is gone, EPERM without ptrace
/// access to it.
pub fn gather(pid: Pid, ranges: &[(u64, usize)], buffer: &mut [u8]) -> Result<usize> {
    let total = ranges.iter().try_fold(0_usize, |sum, (_, bytes)| sum.checked_add(*bytes));
    if total != Some(buffer.len()) {
        return Err(Errno::INVAL);
    }
    let mut copied = 0;
    let mut rest = buffer;
    for batch in ranges.chunks(VECTORS_MAX) {
        let bytes = batch.iter().map(|(_, bytes)| bytes).sum();
        let (part, behind) = std::mem::take(&mut rest).split_at_mut(bytes);
        rest = behind;
        let done = match gather_batch(pid, batch, part) {
            Ok(done) => done,
            // The very first page of the batch.
            Err(Errno::FAULT) => 0,
            Err(error) => return Err(error),
        };
        copied += done;
        if done < bytes {
            break;
        }
    }
    Ok(copied)
}

fn gather_batch(pid: Pid, ranges: &[(u64, usize)], part: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|(address, bytes)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(*address as usize),
            iov_len: *bytes,
        })
        .collect();
    let pid = pid.as_raw_nonzero().get();
    let count = remote.len() as libc::c_ulong;
    // SAFETY: the one local vector is the exclusively borrowed `part`; remote addresses are checked by the kernel
    // against the other process.
    let result = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    usize::try_from(result).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_pages::{PAGE_BYTES, SharedPages};

    #[test]
    fn ranges_are_gathered_in_order_up_to_what_can_not_be_read() {
        let source = SharedPages::new("source", 4).unwrap();
        for page in 0..4 {
            source.write(page, &[page as u8 + 1; PAGE_BYTES]).unwrap();
        }
        let me = rustix::process::getpid();
        let at = |page: usize| source.address(page).unwrap();
        let mut buffer = vec![0; 3 * PAGE_BYTES];
        let ranges = [(at(2), 2 * PAGE_BYTES), (at(0), PAGE_BYTES)];
        assert_eq!(gather(me, &ranges, &mut buffer), Ok(3 * PAGE_BYTES));
        assert_eq!([buffer[0], buffer[PAGE_BYTES], buffer[2 * PAGE_BYTES]], [3, 4, 1]);
        let ranges = [(at(1), PAGE_BYTES), (0x1000, PAGE_BYTES), (at(0), PAGE_BYTES)];
        assert_eq!(gather(me, &ranges, &mut buffer), Ok(PAGE_BYTES));
        assert_eq!(gather(me, &[(0x1000, PAGE_BYTES)], &mut buffer[..PAGE_BYTES]), Ok(0));
        assert_eq!(gather(me, &ranges, &mut buffer[..1]), Err(Errno::INVAL));
    }

    #[test]
    fn more_ranges_than_one_call_takes_are_all_gathered() {
        let source = SharedPages::new("source", 1).unwrap();
        source.write(0, &std::array::from_fn(|i| (i % 256) as u8)).unwrap();
        let at = source.address(0).unwrap();
        let ranges: Vec<(u64, usize)> = (0..2500).map(|i| (at + i % 256, 1)).collect();
        let mut buffer = vec![0; ranges.len()];
        assert_eq!(gather(rustix::process::getpid(), &ranges, &mut buffer), Ok(2500));
        assert!(buffer.iter().zip(0_u32..).all(|(byte, i)| u32::from(*byte) == i % 256));
    }
}
