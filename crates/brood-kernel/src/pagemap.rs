//! `PAGEMAP_SCAN`: which pages of a process are present, written, of a file.

use std::fs::File;
use std::os::fd::AsRawFd;

use bitflags::bitflags;
use linux_raw_sys::general as raw;
use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// `_IOWR('f', 16, struct pm_scan_arg)`; the bindings lack it.
const PAGEMAP_SCAN: u32 = {
    let size = size_of::<raw::pm_scan_arg>() as u32;
    assert!(size == 96);
    (3 << 30) | (size << 16) | ((b'f' as u32) << 8) | 16
};

/// Regions that one call can report; more need more calls.
const REGIONS_PER_CALL: usize = 1024;

bitflags! {
    /// What is known of a page.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Categories: u64 {
        /// It is watched for writes by a userfaultfd.
        const WRITE_WATCHED = raw::PAGE_IS_WPALLOWED as u64;
        /// It was written since it was last protected (all pages that aren't watched count).
        const WRITTEN = raw::PAGE_IS_WRITTEN as u64;
        /// Its content is that of a file or of shared memory.
        const FILE = raw::PAGE_IS_FILE as u64;
        /// It is in memory.
        const PRESENT = raw::PAGE_IS_PRESENT as u64;
        /// It is swapped out (or only a marker stands in its place).
        const SWAPPED = raw::PAGE_IS_SWAPPED as u64;
        /// It is the shared page of zeros.
        const ZERO = raw::PAGE_IS_PFNZERO as u64;
        /// It is part of a huge page.
        const HUGE = raw::PAGE_IS_HUGE as u64;
    }
}

/// Pages next to each other about which the same is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// What is known, of the categories asked for.
    pub categories: Categories,
}

/// Which pages to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filter {
    /// Every page reported has these (after inversion).
    pub all_of: Categories,
    /// Every page reported has at least one of these (after inversion), if there are any.
    pub any_of: Categories,
    /// These count as present where they are absent.
    pub inverted: Categories,
    /// What to tell about the pages reported.
    pub report: Categories,
    /// Protect the matching pages again in the same step, so that the next write marks them.
    pub protect: bool,
}

/// Opens `/proc/PID/pagemap` for [`scan`].
///
/// # Errors
/// EACCES without ptrace access, ENOENT if the process is gone.
pub fn open(pid: Pid) -> Result<File> {
    File::open(format!("/proc/{}/pagemap", pid.as_raw_nonzero()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Appends the regions between two page-aligned addresses that match a filter.
///
/// # Errors
/// EINVAL for unaligned addresses or a kernel without the call, EPERM if `protect` is set and
/// the range can't be protected.
pub fn scan(pagemap: &File, start: u64, end: u64, filter: Filter, found: &mut Vec<Region>) -> Result<()> {
    let empty = raw::page_region { start: 0, end: 0, categories: 0 };
    let mut regions = vec![empty; REGIONS_PER_CALL];
    let mut argument = raw::pm_scan_arg {
        size: size_of::<raw::pm_scan_arg>() as u64,
        flags: if filter.protect { u64::from(raw::PM_SCAN_WP_MATCHING) } else { 0 },
        start,
        end,
        walk_end: start,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: filter.inverted.bits(),
        category_mask: filter.all_of.bits(),
        category_anyof_mask: filter.any_of.bits(),
        return_mask: filter.report.bits(),
    };
    while argument.start < end {
        // SAFETY: the argument is of the type that the request takes; the kernel writes at most
        // `vec_len` records to `vec`, which is the buffer of `regions`.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN.into(), &mut argument) };
        let Ok(count) = usize::try_from(count) else {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        };
        found.extend(regions.iter().take(count).map(|region| Region {
            start: region.start,
            end: region.end,
            categories: Categories::from_bits_retain(region.categories),
        }));
        // A call that ran out of room may report an end of the walk that lies before the last
        // region that it did report (seen on 6.18): going on there would report it twice.
        let covered = found.last().map_or(start, |region| region.end);
        let next = argument.walk_end.max(if count > 0 { covered } else { start });
        if next <= argument.start {
            break;
        }
        argument.start = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_pages::{PAGE_BYTES, SharedPages};

    #[test]
    fn only_touched_pages_are_present() {
        let pages = SharedPages::new("scan", 64).unwrap();
        for page in [1, 2, 40] {
            pages.write(page, &[1; PAGE_BYTES]).unwrap();
        }
        let start = pages.address(0).unwrap();
        let pagemap = open(rustix::process::getpid()).unwrap();
        let filter =
            Filter { all_of: Categories::PRESENT, report: Categories::PRESENT | Categories::FILE, ..Filter::default() };
        let mut found = Vec::new();
        scan(&pagemap, start, start + 64 * PAGE_BYTES as u64, filter, &mut found).unwrap();
        let page = |index: u64| start + index * PAGE_BYTES as u64;
        let categories = Categories::PRESENT | Categories::FILE;
        assert_eq!(
            found,
            [
                Region { start: page(1), end: page(3), categories },
                Region { start: page(40), end: page(41), categories },
            ]
        );
        assert_eq!(scan(&pagemap, start + 1, start + 2, filter, &mut found), Err(Errno::INVAL));
    }

    #[test]
    fn more_regions_than_one_call_reports_are_all_found() {
        let pages = SharedPages::new("scan", 6000).unwrap();
        for page in (0..6000).step_by(2) {
            pages.write(page, &[1; PAGE_BYTES]).unwrap();
        }
        let start = pages.address(0).unwrap();
        let pagemap = open(rustix::process::getpid()).unwrap();
        let filter = Filter { all_of: Categories::PRESENT, ..Filter::default() };
        let mut found = Vec::new();
        scan(&pagemap, start, start + 6000 * PAGE_BYTES as u64, filter, &mut found).unwrap();
        assert_eq!(found.len(), 3000);
    }
}
