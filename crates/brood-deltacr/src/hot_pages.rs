//! Which pages the copies of an image touch first: they are copied ahead, in one batch, before a
//! copy runs.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use brood_kernel::shared_pages::PAGE_BYTES;
use brood_pager::{Observer, PageAddress};

use crate::process::ProcessImage;

/// Most pages that are copied ahead. A copy that has not done anything yet is to cost less than
/// 400 KB of memory of its own, of which this is the largest part.
const HOT_PAGES_MAX: usize = 64;

/// Most pages of arguments and of environment that count as essential; more is not shown by any
/// tool.
const TEXT_PAGES_MAX: usize = 32;

/// Learned from the faults of an image's copies.
#[derive(Debug, Default)]
pub(crate) struct HotPages {
    pages: Mutex<BTreeSet<u64>>,
}

impl HotPages {
    /// The pages to copy ahead: those learned, and the [`essential`] ones.
    pub(crate) fn ranges(&self, process: &ProcessImage) -> Vec<Range<PageAddress>> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pages.extend(essential_pages(process));
        ranges(pages)
    }
}

/// The pages that must be there before a process runs: the kernel and the engine reach them by
/// ways that don't wait for the pager (`/proc/PID/cmdline`, `/proc/PID/mem`).
pub(crate) fn essential(process: &ProcessImage) -> Vec<Range<PageAddress>> {
    ranges(essential_pages(process))
}

fn essential_pages(process: &ProcessImage) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for thread in &process.threads {
        let registers = &thread.registers;
        let own = [registers.rsp, registers.rip, registers.fs_base, thread.rseq.address, thread.robust_list];
        pages.extend(own.map(|at| PageAddress::of(at).get()));
    }
    let layout = process.memory.as_ref().map(|memory| &memory.layout);
    for (start, end) in layout.into_iter().flat_map(|layout| [layout.arguments, layout.environment]) {
        let first = PageAddress::of(start).get();
        pages.extend((first..end).step_by(PAGE_BYTES).take(TEXT_PAGES_MAX));
    }
    pages
}

fn ranges(pages: BTreeSet<u64>) -> Vec<Range<PageAddress>> {
    let page = |start: u64| PageAddress::of(start)..PageAddress::of(start.saturating_add(PAGE_BYTES as u64));
    pages.into_iter().map(page).collect()
}

impl Observer for HotPages {
    fn touched(&self, address: PageAddress) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if pages.len() < HOT_PAGES_MAX {
            pages.insert(address.get());
        }
    }
}
