//! Squeezing sandboxes and bringing their pages back.
//!
//! A sandbox' cohort are the sandboxes that were made from the same checkpoint or warm template; sandboxes without
//! processes at their beginning are of one cohort with those of the same template.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use brood_deltacr::{PageStore, Paging, ProcessTreeImage, Seed};
use brood_memory_engine::engine::{EngineSettings, MemoryEngine};
use brood_memory_engine::guardian::{self, Guardian};
use brood_memory_engine::{Machinery, SandboxMemory, TemplatePages};
use brood_pager::{Custodian, Pager};
use brood_pages::codec::Codec;
use brood_pages::pool::CohortId;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, ErrorKind, Result};
use crate::sandbox::Sandbox;
use crate::transaction::Capturing;

/// What a squeeze did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SqueezeInfo {
    /// Processes looked at.
    pub processes: usize,
    /// Private pages that were present and could be squeezed.
    pub private_pages: usize,
    /// Private pages left alone: of files, locked, part of huge pages.
    pub left_alone_pages: usize,
    /// Pages whose memory was given up.
    pub given_up_pages: usize,
    /// Of these, pages that are kept nowhere: the template's, or zeros.
    pub dropped_pages: usize,
    /// Pages that were written meanwhile, and stay.
    pub changed_pages: usize,
    /// Bytes given up.
    pub bytes_before: u64,
    /// Bytes of the pool that hold them now, what they share with siblings not counted.
    pub bytes_after: u64,
    /// Pages by how they are kept, most frequent first.
    pub by_codec: Vec<CodecShare>,
    /// Time for copying and encoding, while the tasks ran, in microseconds.
    pub encoding_us: u64,
    /// Time that the tasks stood still, all together, in microseconds.
    pub standstill_us: u64,
    /// The longest time in a row that they did, in microseconds.
    pub standstill_longest_us: u64,
}

/// How many pages a codec has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecShare {
    /// Its name.
    pub codec: String,
    /// Pages.
    pub pages: usize,
}

/// What bringing pages back did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RestoreInfo {
    /// Pages put in place.
    pub pages: usize,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// The life of the guardian: to be called by the program that [`EngineSettings::guardian`] names.
///
/// [`EngineSettings::guardian`]: crate::engine::EngineSettings::guardian
pub fn run_guardian() {
    guardian::run(std::io::stdin());
}

pub(crate) fn start_guardian(command: &[OsString]) -> Result<Arc<Guardian>> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| EngineError::new(ErrorKind::Invalid, "the guardian's program is not named"))?;
    let mut started = std::process::Command::new(program);
    started.args(arguments);
    Guardian::start(started).map_err(|error| EngineError::system("cannot start the guardian", error))
}

/// What a sandbox' memory takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Bytes of present private pages.
    pub private_bytes: u64,
    /// Of these, bytes that can't be squeezed.
    pub left_alone_bytes: u64,
    /// Bytes of page tables.
    pub page_table_bytes: u64,
    /// Squeezed pages that are absent.
    pub squeezed_pages: usize,
    /// Bytes of tables of squeezed pages.
    pub metadata_bytes: u64,
    /// Bytes that its cohort shares beside encoded pages: references' tables, indexes, dictionaries.
    pub cohort_metadata_bytes: u64,
    /// Bytes of memory of its cohort's encoded pages, reference pages included.
    pub cohort_pool_bytes: u64,
}

/// Starts the pager, has forks get their pages from it, and makes the pool. On a host that doesn't allow that, all pages
/// are copied before a fork runs, and nothing can be squeezed.
pub(crate) fn start(seed: &mut Seed, guardian: Option<&Arc<Guardian>>) -> Option<Machinery> {
    let settings = brood_pager::Settings::default();
    let pager = match guardian {
        Some(guardian) => Pager::with_custodian(settings, Arc::clone(guardian) as Arc<dyn Custodian>),
        None => Pager::new(settings),
    };
    let pager = match pager {
        Ok(pager) => Arc::new(pager),
        Err(error) => {
            tracing::error!(%error, "no pager: forks copy all memory before they run, nothing can be squeezed");
            return None;
        }
    };
    let made = seed.page_with(Arc::clone(&pager)).and_then(|()| Paging::new(pager));
    let paging = match made {
        Ok(paging) => Arc::new(paging),
        Err(error) => {
            let error = EngineError::caused_by(ErrorKind::Unsupported, "pages cannot be supplied on touch", error);
            let error = error.chain();
            tracing::error!(error, "forks copy all memory before they run, nothing can be squeezed");
            return None;
        }
    };
    match MemoryEngine::new(EngineSettings::default()) {
        Ok(engine) => Some(Machinery { engine, paging }),
        Err(error) => {
            tracing::error!(%error, "nothing can be squeezed");
            None
        }
    }
}

/// The memory of a sandbox that began as `origin`, or empty.
pub(crate) fn of_sandbox(
    machinery: &Machinery,
    template: &str,
    origin: Option<&ProcessTreeImage>,
    store: &Arc<PageStore>,
) -> SandboxMemory {
    // While a sandbox holds it, an image is where it is: forks of the same state share it.
    let first = origin.and_then(|image| image.processes.first());
    let name = first.map_or_else(|| template.to_owned(), |process| format!("{template} {:p}", Arc::as_ptr(process)));
    let hash = blake3::hash(name.as_bytes());
    let id = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let processes = origin.map(|image| image.processes.as_slice()).unwrap_or_default();
    let pages: HashMap<i32, TemplatePages> = processes
        .iter()
        .filter_map(|process| {
            let memory = process.memory.as_ref()?;
            Some((process.pid.0, TemplatePages::new(memory.pages.clone(), Arc::clone(store))))
        })
        .collect();
    SandboxMemory::new(machinery.clone(), machinery.engine.cohort(CohortId(id)), pages)
}

fn memory_error(error: brood_memory_engine::Error) -> EngineError {
    let is_full = matches!(
        error,
        brood_memory_engine::Error::Pool(
            brood_pages::pool::PoolError::Full { .. } | brood_pages::pool::PoolError::OutOfNames
        )
    );
    let kind = if is_full { ErrorKind::Exhausted } else { ErrorKind::Internal };
    EngineError::caused_by(kind, "memory cannot be squeezed", error)
}

impl Sandbox {
    /// Has the sandbox killed should this process die: its pages are in the pager's care from now on.
    pub(crate) fn guard(&self, capturing: &Capturing) {
        if let Some(guardian) = &capturing.guardian {
            guardian.watch_sandbox(self.init.descriptor.as_fd());
        }
    }

    /// Encodes the sandbox' private pages and gives their memory back to the host. Calls in flight go on; they stand
    /// still for some milliseconds at a time.
    ///
    /// # Errors
    /// `NotFound` when it is gone, `Unsupported` on a host without the means, `Exhausted` when the pool is full.
    pub fn squeeze(&self) -> Result<SqueezeInfo> {
        self.ensure_running()?;
        let capturing = self.core.capturing()?;
        let Some(machinery) = &capturing.memory else {
            let message = "this host cannot supply pages on touch: see the daemon's log";
            return Err(EngineError::new(ErrorKind::Unsupported, message));
        };
        self.guard(&capturing);
        let mut history = self.history()?;
        let (tree, memory) =
            history.memory(|origin| of_sandbox(machinery, self.request.template.as_str(), origin, &capturing.pages));
        let report = memory.squeeze(tree, &|| self.ensure_running().is_ok()).map_err(memory_error)?;
        tracing::debug!(sandbox = %self.id(), ?report, "squeezed");
        Ok(info_of(&report))
    }

    /// What its memory takes, and what its cohort shares.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn memory_figures(&self) -> Result<MemoryFigures> {
        self.ensure_running()?;
        let capturing = self.core.capturing()?;
        let mut history = self.history()?;
        let private = brood_memory_engine::private_memory(history.tree()).map_err(memory_error)?;
        let page = brood_pages::PAGE_SIZE;
        let mut figures = MemoryFigures {
            private_bytes: ((private.pages + private.left_alone_pages) * page) as u64,
            left_alone_bytes: (private.left_alone_pages * page) as u64,
            page_table_bytes: private.page_table_bytes,
            ..MemoryFigures::default()
        };
        if let (Some((tree, memory)), Some(machinery)) = (history.existing_memory(), &capturing.memory) {
            figures.squeezed_pages = memory.absent_pages(tree);
            figures.metadata_bytes = memory.usage().iter().map(|(_, usage)| usage.metadata_bytes as u64).sum();
            let (_, pool_metadata) = machinery.engine.pool_usage();
            figures.cohort_metadata_bytes =
                (brood_memory_engine::cohort_metadata_bytes(memory.cohort()) + pool_metadata) as u64;
            figures.cohort_pool_bytes = machinery.engine.cohort_usage(memory.cohort().id()).resident_bytes;
        }
        Ok(figures)
    }

    /// Brings all squeezed pages back.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn restore_pages(&self) -> Result<RestoreInfo> {
        self.ensure_running()?;
        let mut history = self.history()?;
        let report = history.existing_memory().map(|(tree, memory)| memory.restore(tree)).unwrap_or_default();
        Ok(RestoreInfo { pages: report.pages, elapsed_us: micros(report.elapsed) })
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn info_of(report: &brood_memory_engine::SqueezeReport) -> SqueezeInfo {
    let shares = Codec::ALL.iter().zip(report.pages_by_codec);
    let mut by_codec: Vec<CodecShare> = shares
        .filter(|(_, pages)| *pages > 0)
        .map(|(codec, pages)| CodecShare { codec: codec.name().to_owned(), pages })
        .collect();
    if report.dropped_pages > 0 {
        by_codec.push(CodecShare { codec: "kept nowhere".to_owned(), pages: report.dropped_pages });
    }
    by_codec.sort_by_key(|share| std::cmp::Reverse(share.pages));
    SqueezeInfo {
        processes: report.processes,
        private_pages: report.private_pages,
        left_alone_pages: report.left_alone_pages,
        given_up_pages: report.given_up_pages,
        dropped_pages: report.dropped_pages,
        changed_pages: report.changed_pages,
        bytes_before: (report.given_up_pages * brood_pages::PAGE_SIZE) as u64,
        bytes_after: report.frame_bytes,
        by_codec,
        encoding_us: micros(report.encoding),
        standstill_us: micros(report.standstill),
        standstill_longest_us: micros(report.standstill_longest),
    }
}
