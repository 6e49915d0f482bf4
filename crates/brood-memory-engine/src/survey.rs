//! Which pages of a running process may be given up.
//!
//! What is found here is a proposal: the process runs on. Before a page is dropped its tasks are stopped, its mapping
//! and its content compared again.

use std::ops::Range;

use brood_kernel::injection::AREA_BYTES;
use brood_kernel::maps::{self, Mapping, MappingFlags, Protection};
use brood_kernel::pagemap::{self, Categories, Filter};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{Result, kernel};

/// Mappings whose pages are left alone: locked in memory; not what they seem in a forked child; the kernel's to drop; of
/// a device, of huge pages, or guarded against change.
const LEFT_ALONE: MappingFlags = MappingFlags::LOCKED
    .union(MappingFlags::WIPE_ON_FORK)
    .union(MappingFlags::NOT_ON_FORK)
    .union(MappingFlags::SEALED)
    .union(MappingFlags::DROPPABLE)
    .union(MappingFlags::HUGE_FILE)
    .union(MappingFlags::DEVICE)
    .union(MappingFlags::INPUT_OUTPUT)
    .union(MappingFlags::SHADOW_STACK);

/// Pages of a file's private mapping that becomes anonymous memory, at most: 4 MiB.
const DATA_PAGES_MAX: usize = 1024;

/// Mapping of a context for asynchronous input and output: the kernel may write to the process' pages at any time.
const ASYNCHRONOUS_IO: &str = "/[aio]";

/// The mappings of a process of which pages may be given up, and its pages there.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// In address order.
    pub(crate) mappings: Vec<Mapping>,
    /// Runs of present private pages inside them, in address order.
    pub(crate) pages: Vec<Range<u64>>,
    /// Small private mappings of files that were mostly written, such as the data of programs and libraries: nothing can
    /// be missing there, but they can become anonymous memory as a whole.
    pub(crate) data: Vec<Range<u64>>,
    /// Private pages in those.
    pub(crate) written_data: usize,
    /// Private pages that can't be given up: of files, locked, part of huge pages.
    pub(crate) left_alone: usize,
}

impl Survey {
    /// Looks at a process. Nothing is found of one that is gone.
    pub(crate) fn of(pid: Pid, buffer: &mut Vec<u8>) -> Result<Self> {
        let mappings = match maps::read_with_flags(pid, buffer) {
            Ok(mappings) => mappings,
            Err(Errno::NOENT | Errno::SRCH) => return Ok(Self::default()),
            Err(error) => return Err(kernel(pid, "list the mappings")(error)),
        };
        if mappings.iter().any(|(mapping, _)| mapping.name.starts_with(ASYNCHRONOUS_IO)) {
            return Ok(Self::default());
        }
        let table = match pagemap::open(pid) {
            Ok(table) => table,
            Err(Errno::NOENT | Errno::SRCH) => return Ok(Self::default()),
            Err(error) => return Err(kernel(pid, "open the page map")(error)),
        };
        let mut survey = Self::default();
        for (mapping, flags) in mappings {
            if mapping.shared || mapping.is_special() {
                continue;
            }
            let private = private_pages(pid, &table, &mapping)?;
            // Nothing can be missing from a private mapping of an ordinary file: it shows the file.
            let suits = mapping.is_anonymous() && !flags.intersects(LEFT_ALONE);
            let mut found = false;
            let written: usize = private.iter().map(|(range, _)| pages(range)).sum();
            if is_data(&mapping, flags, written) {
                survey.written_data += written;
                survey.data.push(mapping.start..mapping.end);
                survey.mappings.push(mapping);
                continue;
            }
            for (range, is_huge) in private {
                if suits && !is_huge {
                    survey.pages.push(range);
                    found = true;
                } else {
                    survey.left_alone += pages(&range);
                }
            }
            if found {
                survey.mappings.push(mapping);
            }
        }
        Ok(survey)
    }
}

/// Whether a mapping is worth becoming anonymous memory: half of it or more is private already.
fn is_data(mapping: &Mapping, flags: MappingFlags, written: usize) -> bool {
    let all = pages(&(mapping.start..mapping.end));
    mapping.inode != 0
        && mapping.protection.contains(Protection::READ)
        && !mapping.protection.contains(Protection::EXECUTE)
        && !flags.intersects(LEFT_ALONE)
        && (1..=DATA_PAGES_MAX).contains(&all)
        && written * 2 >= all
}

/// Runs of present pages that are neither a file's nor the page of zeros, and whether they are part of a huge page.
fn private_pages(pid: Pid, table: &std::fs::File, mapping: &Mapping) -> Result<Vec<(Range<u64>, bool)>> {
    let filter = Filter {
        all_of: Categories::PRESENT | Categories::FILE | Categories::ZERO,
        inverted: Categories::FILE | Categories::ZERO,
        report: Categories::HUGE,
        ..Filter::default()
    };
    let mut regions = Vec::new();
    // No content can be read where nothing can: the engine's own area is left out by its address.
    let readable = mapping.protection.contains(Protection::READ);
    if readable && !is_engine_area(mapping) {
        match pagemap::scan(table, mapping.start, mapping.end, filter, &mut regions) {
            Ok(()) => {}
            // It went away meanwhile.
            Err(Errno::SRCH | Errno::FAULT) => {}
            Err(error) => return Err(kernel(pid, "scan pages")(error)),
        }
    }
    Ok(regions.iter().map(|region| (region.start..region.end, region.categories.contains(Categories::HUGE))).collect())
}

fn is_engine_area(mapping: &Mapping) -> bool {
    let area = brood_deltacr::ENGINE_AREA_ADDRESS;
    mapping.start < area + AREA_BYTES && area < mapping.end
}

/// Number of pages in a range of addresses.
pub(crate) fn pages(range: &Range<u64>) -> usize {
    ((range.end - range.start) / brood_pages::PAGE_SIZE as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn written_pages_are_found_and_locked_ones_are_not() {
        let mut plain = vec![0_u8; 64 * 4096];
        plain.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let survey = Survey::of(getpid(), &mut Vec::new()).unwrap();
        let address = std::ptr::from_ref(&plain[32 * 4096]) as u64;
        assert!(survey.pages.iter().any(|range| range.contains(&address)), "{address:#x} in {:x?}", survey.pages);
        assert!(survey.mappings.iter().all(|mapping| !mapping.shared));
        assert!(survey.data.iter().all(|data| survey.mappings.iter().any(|mapping| mapping.start == data.start)));
        assert!(survey.pages.is_sorted_by(|a, b| a.end <= b.start));
        drop(plain);
    }

    #[test]
    fn nothing_is_found_of_a_process_that_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        let survey = Survey::of(pid, &mut Vec::new()).unwrap();
        assert!(survey.pages.is_empty() && survey.mappings.is_empty());
    }
}
