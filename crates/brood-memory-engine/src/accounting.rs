//! What the memory of sandboxes takes, squeezed or not.

use brood_deltacr::Tree;
use brood_kernel::maps::read_proc_file;
use rustix::process::Pid;

use crate::cohort::SharedCohort;
use crate::error::Result;
use crate::survey::{Survey, pages};

/// What a sandbox' processes have for themselves alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrivateMemory {
    /// Present private pages that could be squeezed.
    pub pages: usize,
    /// Present private pages that can't.
    pub left_alone_pages: usize,
    /// Bytes of their page tables.
    pub page_table_bytes: u64,
}

/// Looks at all processes of a tree, which run on.
///
/// # Errors
/// If PID 1 is gone.
pub fn private_memory(tree: &Tree) -> Result<PrivateMemory> {
    let mut memory = PrivateMemory::default();
    let mut buffer = Vec::new();
    for pid in tree.running()? {
        let survey = Survey::of(pid, &mut buffer)?;
        memory.pages += survey.pages.iter().map(pages).sum::<usize>();
        // What is still a file's is in neither, nor are pages of it that nobody wrote.
        memory.pages += survey.written_data;
        memory.left_alone_pages += survey.left_alone;
        memory.page_table_bytes += page_table_bytes(pid, &mut buffer);
    }
    Ok(memory)
}

/// Bytes of a process' page tables; none if it is gone.
fn page_table_bytes(pid: Pid, buffer: &mut Vec<u8>) -> u64 {
    if read_proc_file(&format!("/proc/{}/status", pid.as_raw_nonzero()), buffer).is_err() {
        return 0;
    }
    let line = buffer.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"VmPTE:"));
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    let kib = text.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Bytes of what a cohort's sandboxes share beside entries: references' tables, indexes, dictionaries.
#[must_use]
pub fn cohort_metadata_bytes(cohort: &SharedCohort) -> usize {
    let cohort = cohort.lock();
    cohort.metadata_bytes() + cohort.dictionaries().memory_bytes()
}
