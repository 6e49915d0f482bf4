//! The squeezed memory of one sandbox, process by process.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brood_deltacr::{Paging, Tree};
use brood_pager::{OwedMap, PageAddress, SpaceId};
use brood_pages::PageNumber;
use rustix::process::Pid;

use crate::cohort::{Kin, LineageName, SharedCohort};
use crate::engine::MemoryEngine;
use crate::program;
use crate::report::RestoreReport;
use crate::squeezed::{SqueezedPages, SqueezedUsage};
use crate::template::TemplatePages;

/// What squeezes of all sandboxes work with.
#[derive(Clone, Debug)]
pub struct Machinery {
    /// Pool and cohorts.
    pub engine: Arc<MemoryEngine>,
    /// The pager that answers the faults of squeezed processes, and what it takes to put one into its care.
    pub paging: Arc<Paging>,
}

/// One sandbox' squeezed memory.
///
/// Dropping it leaves squeezed processes in the pager's care: they get their pages for as long as they live.
#[derive(Debug)]
pub struct SandboxMemory {
    pub(crate) machinery: Machinery,
    pub(crate) cohort: Arc<SharedCohort>,
    template: HashMap<i32, TemplatePages>,
    processes: Mutex<Processes>,
}

/// A process that was squeezed at least once.
#[derive(Debug)]
pub(crate) struct SqueezedProcess {
    space: SpaceId,
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
    pub(crate) fn kin(&self, processes: &Processes, tree: &Tree, pid: Pid) -> Kin {
        let known = processes.get(&pid).zip(tree.space(pid));
        if let Some((process, _)) = known.filter(|(process, space)| process.space == space.id() && space.is_alive()) {
            return process.kin.clone();
        }
        let inside = program::number_inside(pid);
        match inside.and_then(|inside| Some((inside, self.template.get(&inside)?))) {
            Some((inside, pages)) => self.cohort.kin(LineageName::Template(inside), || Some(pages.clone())),
            None => self.cohort.kin(LineageName::Program(program::hash(pid)), || None),
        }
    }

    /// What is kept of a process whose address space is `space`, whatever was there before.
    pub(crate) fn process<'p>(
        processes: &'p mut Processes,
        pid: Pid,
        space: SpaceId,
        kin: &Kin,
    ) -> &'p mut SqueezedProcess {
        let fresh = || SqueezedProcess { space, kin: kin.clone(), pages: None };
        let process = processes.entry(pid).or_insert_with(fresh);
        if process.space != space {
            *process = fresh();
        }
        process
    }

    /// Brings all pages of the sandbox' processes back that were squeezed, on this thread.
    pub fn restore(&self, tree: &Tree) -> RestoreReport {
        let started = Instant::now();
        let mut pages = 0;
        for (_, space) in tree.spaces() {
            let owed = space.owed();
            let ranges: Vec<Range<PageAddress>> =
                squeezed_ranges(&owed).map(|(start, end, _)| PageAddress::of(start)..PageAddress::of(end)).collect();
            pages += space.fill_now(&ranges);
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

    /// Its cohort.
    #[must_use]
    pub fn cohort(&self) -> &Arc<SharedCohort> {
        &self.cohort
    }

    /// Squeezed pages that are absent at present, all processes together.
    #[must_use]
    pub fn absent_pages(&self, tree: &Tree) -> usize {
        let absent = |owed: &OwedMap| {
            squeezed_ranges(owed)
                .map(|(start, end, pages)| still_absent(owed, start, end, pages).count())
                .sum::<usize>()
        };
        tree.spaces().map(|(_, space)| absent(&space.owed())).sum()
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
