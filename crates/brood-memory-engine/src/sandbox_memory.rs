//! The squeezed memory of one sandbox, process by process.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brood_deltacr::{ProcessIdentity, StoppedTree};
use brood_pager::{Adoption, OwedMap, PageAddress, PagedSpace, Pager};
use brood_pages::PageNumber;
use rustix::process::Pid;

use crate::cohort::{Kin, LineageName, SharedCohort};
use crate::engine::MemoryEngine;
use crate::error::{Error, Result};
use crate::program;
use crate::report::RestoreReport;
use crate::squeezed::{SqueezedPages, SqueezedUsage};
use crate::template::TemplatePages;

/// What squeezes of all sandboxes work with.
#[derive(Clone, Debug)]
pub struct Machinery {
    /// Pool and cohorts.
    pub engine: Arc<MemoryEngine>,
    /// Answers the faults of squeezed processes.
    pub pager: Arc<Pager>,
    /// `/dev/userfaultfd`.
    pub device: Arc<OwnedFd>,
}

/// One sandbox' squeezed memory.
///
/// Dropping it leaves squeezed processes in the pager's care: they get their pages for as long as they live.
#[derive(Debug)]
pub struct SandboxMemory {
    pub(crate) machinery: Machinery,
    pub(crate) cohort: Arc<SharedCohort>,
    template: HashMap<i32, TemplatePages>,
    processes: Mutex<HashMap<Pid, SqueezedProcess>>,
}

/// A process that was squeezed at least once.
#[derive(Debug)]
pub(crate) struct SqueezedProcess {
    start_time: u64,
    pub(crate) paged: PagedSpace,
    pub(crate) kin: Kin,
    /// Its squeezed pages, those brought back since included.
    pub(crate) pages: Option<Arc<SqueezedPages>>,
}

pub(crate) type Processes = HashMap<Pid, SqueezedProcess>;

impl SandboxMemory {
    /// Of a sandbox of `cohort`. `template` are the pages of the template's processes, by their numbers inside the
    /// sandbox.
    #[must_use]
    pub fn new(machinery: Machinery, cohort: Arc<SharedCohort>, template: HashMap<i32, TemplatePages>) -> Self {
        Self { machinery, cohort, template, processes: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which process of the cohort a process is: the template's of the same number, or one known by its program.
    pub(crate) fn kin(&self, processes: &Processes, pid: Pid) -> Kin {
        if let Some(process) = processes.get(&pid).filter(|process| process.paged.is_alive()) {
            return process.kin.clone();
        }
        let inside = program::number_inside(pid);
        match inside.and_then(|inside| Some((inside, self.template.get(&inside)?))) {
            Some((inside, pages)) => self.cohort.kin(LineageName::Template(inside), || Some(pages.clone())),
            None => self.cohort.kin(LineageName::Program(program::hash(pid)), || None),
        }
    }

    /// Sees to it that the faults of a stopped process are answered.
    pub(crate) fn serve<'p>(
        &self,
        processes: &'p mut Processes,
        stopped: &mut StoppedTree<'_>,
        identity: ProcessIdentity,
        kin: &Kin,
    ) -> Result<&'p mut SqueezedProcess> {
        let ProcessIdentity { pid, start_time } = identity;
        let known = processes.get(&pid).is_some_and(|known| known.start_time == start_time && known.paged.is_alive());
        if !known {
            processes.remove(&pid);
            let paged = match Self::inherited(processes, stopped, pid)? {
                Some(paged) => paged,
                None => {
                    let made = stopped.make_userfaultfd(pid, self.machinery.device.as_fd())?;
                    self.machinery.pager.adopt(made, Adoption::default())
                }
            };
            processes.insert(pid, SqueezedProcess { start_time, paged, kin: kin.clone(), pages: None });
        }
        processes.get_mut(&pid).ok_or(Error::Gone { pid: pid.as_raw_nonzero().get() })
    }

    /// The address space that the pager took over when a squeezed process forked this one.
    fn inherited(processes: &Processes, stopped: &mut StoppedTree<'_>, pid: Pid) -> Result<Option<PagedSpace>> {
        let mut children: Vec<PagedSpace> = processes.values().flat_map(|process| process.paged.children()).collect();
        for index in 0..children.len() {
            if stopped.is_served_by(pid, children[index].userfaultfd())? {
                return Ok(Some(children.swap_remove(index)));
            }
        }
        Ok(None)
    }

    /// Brings all pages back that were squeezed, on this thread.
    pub fn restore(&self) -> RestoreReport {
        let started = Instant::now();
        let processes = self.lock();
        let mut pages = 0;
        for process in processes.values() {
            let owed = process.paged.owed();
            let ranges: Vec<Range<PageAddress>> =
                squeezed_ranges(&owed).map(|(start, end, _)| PageAddress::of(start)..PageAddress::of(end)).collect();
            pages += process.paged.fill_now(&ranges);
        }
        RestoreReport { pages, elapsed: started.elapsed() }
    }

    /// What the squeezed pages take, brought-back ones included until the next squeeze; by process.
    #[must_use]
    pub fn usage(&self) -> Vec<(Pid, SqueezedUsage)> {
        let processes = self.lock();
        let usage = |process: &SqueezedProcess| process.pages.as_ref().map(|pages| pages.usage()).unwrap_or_default();
        processes.iter().map(|(pid, process)| (*pid, usage(process))).collect()
    }

    /// Pages that are absent at present, all processes together.
    #[must_use]
    pub fn absent_pages(&self) -> usize {
        let processes = self.lock();
        let absent = |process: &SqueezedProcess| {
            let owed = process.paged.owed();
            squeezed_ranges(&owed)
                .map(|(start, end, pages)| still_absent(&owed, start, end, pages).count())
                .sum::<usize>()
        };
        processes.values().map(absent).sum()
    }
}

/// Owed ranges whose pages are squeezed ones, known by the addresses at which they are.
pub(crate) fn squeezed_ranges(owed: &OwedMap) -> impl Iterator<Item = (u64, u64, &SqueezedPages)> {
    owed.ranges().filter_map(|(start, range)| {
        let pages = range.source.as_any().downcast_ref::<SqueezedPages>()?;
        (range.origin == start).then_some((start, range.end, pages))
    })
}

/// The pages of a range that haven't been brought back or given up since.
pub(crate) fn still_absent<'o>(
    owed: &'o OwedMap,
    start: u64,
    end: u64,
    pages: &'o SqueezedPages,
) -> impl Iterator<Item = PageNumber> + 'o {
    let range = PageNumber::containing(start)..PageNumber::containing(end);
    pages.pages(range).filter(|page| owed.settled_mask(page.0 / 64) >> (page.0 % 64) & 1 == 0)
}
