//! Capturing a stopped tree: survey first, then questions in batches, then memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brood_kernel::injection::Batch;
use brood_kernel::ptrace;
use brood_pager::PagedSpace;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::address_space::{AddressSpaceImage, MappedFile, MappingImage, MappingKind, MemoryLayout};
use crate::births_of_paged;
use crate::checks;
use crate::descriptors::table::{FileSurvey, OpenFiles};
use crate::descriptors::terminal::ControllingTerminal;
use crate::descriptors::{DescriptorImage, EndpointKind, Externals, OpenFileKind};
use crate::engine_area;
use crate::error::{Error, NamespacePid, RefusalKind, Result, kernel};
use crate::mappings;
use crate::memory;
use crate::owed_pages::{self, StoredPages};
use crate::page_store::PageStore;
use crate::proc_files;
use crate::process::{ProcessAttributes, ProcessImage, ProcessQuery, ProcessState};
use crate::refusal::refuse;
use crate::rollback::puppet_of;
use crate::thread::{ThreadImage, ThreadQuery};
use crate::timers;
use crate::tree::{Member, StoppedProcess, StoppedTree};
use crate::watcher::Watcher;

/// All processes of a sandbox but PID 1 at one moment. Immutable; shares pages with others.
#[derive(Debug, Clone)]
pub struct ProcessTreeImage {
    /// Processes, parents before their children.
    pub processes: Vec<Arc<ProcessImage>>,
    /// Open files that their descriptors refer to.
    pub open_files: Arc<OpenFiles>,
    pub(crate) store: Arc<PageStore>,
}

impl ProcessTreeImage {
    /// Whether it is this process, through this descriptor, that fills a set of watched
    /// descriptors: the first of those that have it.
    pub(crate) fn fills(&self, process: &ProcessImage, descriptor: &DescriptorImage) -> bool {
        let mut holders = self
            .processes
            .iter()
            .flat_map(|other| other.descriptors.iter().map(|descriptor| (other.pid, descriptor)))
            .filter(|(_, other)| other.file == descriptor.file);
        holders.next().is_some_and(|(pid, first)| pid == process.pid && first.number == descriptor.number)
    }
}

/// What a capture did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureStatistics {
    /// Processes, zombies included.
    pub processes: usize,
    /// Threads.
    pub threads: usize,
    /// Pages that were copied.
    pub copied_pages: usize,
    /// Time for looking at processes, mappings and descriptors.
    pub survey: Duration,
    /// Time for questions that run inside the processes.
    pub questions: Duration,
    /// Time for scanning page tables and copying pages.
    pub memory: Duration,
}

/// What the survey of a process brought.
struct Surveyed {
    mappings: Arc<[MappingImage]>,
    descriptors: Vec<DescriptorImage>,
    terminal: Option<ControllingTerminal>,
    working_directory: Box<str>,
    root_directory: Box<str>,
    program: Box<str>,
}

impl StoppedTree<'_> {
    /// Captures the tree. Pages that didn't change since the tree's last capture, rollback or
    /// restore are shared with that image.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything is touched; other errors leave the tree able to go on.
    pub fn capture(
        &mut self,
        store: &Arc<PageStore>,
        externals: &dyn Externals,
    ) -> Result<(ProcessTreeImage, CaptureStatistics)> {
        let started = Instant::now();
        let mut statistics = CaptureStatistics { processes: self.processes.len(), ..CaptureStatistics::default() };
        let (surveyed, open_files) = self.survey(store, externals)?;
        statistics.survey = started.elapsed();
        self.prepare_areas()?;
        births_of_paged::find(self)?;
        let mut processes = Vec::with_capacity(self.processes.len());
        for (index, surveyed) in surveyed.into_iter().enumerate() {
            processes.push(self.capture_process(index, surveyed, store, &mut statistics)?);
        }
        let image = ProcessTreeImage { processes, open_files: Arc::new(open_files), store: Arc::clone(store) };
        Ok((image, statistics))
    }

    /// Looks at everything that might be refused, without touching any process.
    fn survey(
        &mut self,
        store: &Arc<PageStore>,
        externals: &dyn Externals,
    ) -> Result<(Vec<Option<Surveyed>>, OpenFiles)> {
        checks::check(&self.processes, self.tree.init())?;
        let mut buffer = Vec::new();
        let mut files = FileSurvey::new(externals, store);
        let mut surveyed = Vec::with_capacity(self.processes.len());
        for process in &self.processes {
            if process.is_zombie() {
                surveyed.push(None);
                continue;
            }
            let member = self.tree.members.entry(process.pid).or_default();
            member.start_time = process.start_time;
            let mappings = mappings::survey(process, process.area, &mut member.known, &mut buffer)?;
            for mapping in mappings.iter() {
                if let MappingKind::Shared(MappedFile::Memory(identity))
                | MappingKind::Private(MappedFile::Memory(identity)) = &mapping.kind
                {
                    files.add_mapped_memory(process, *identity, (mapping.start, mapping.end))?;
                }
            }
            surveyed.push(Some(Surveyed {
                mappings,
                terminal: None,
                descriptors: files.add_process(process)?,
                working_directory: link(process, "cwd")?,
                root_directory: link(process, "root")?,
                program: link(process, "exe")?,
            }));
        }
        let files = files.finish(&self.processes)?;
        for (process, surveyed) in self.processes.iter().zip(&mut surveyed) {
            if let Some(surveyed) = surveyed {
                surveyed.terminal = controlling_terminal(process, &self.processes, &surveyed.descriptors, &files)?;
            }
        }
        Ok((surveyed, files))
    }

    /// Makes sure that code can be run in every process, and that none is left in the middle of
    /// a restartable sequence.
    pub(crate) fn prepare_areas(&mut self) -> Result<()> {
        let mut buffer = Vec::new();
        for process in self.processes.iter_mut().filter(|process| !process.is_zombie()) {
            engine_area::leave_restartable_sequences(process)?;
            let known = process.area;
            let member = self.tree.members.entry(process.pid).or_default();
            member.start_time = process.start_time;
            let (area, is_new) = engine_area::ensure(process, known, self.tree.syscall_offset, &mut buffer)?;
            if is_new {
                // The memory may still be the one that is watched: programs can remove the area.
                let watcher = member.watcher.take().filter(Watcher::is_alive);
                *member = Member { start_time: process.start_time, watcher, ..Member::default() };
            }
            (process.area, member.area) = (Some(area), Some(area));
        }
        Ok(())
    }

    fn capture_process(
        &mut self,
        index: usize,
        surveyed: Option<Surveyed>,
        store: &Arc<PageStore>,
        statistics: &mut CaptureStatistics,
    ) -> Result<Arc<ProcessImage>> {
        let process = &self.processes[index];
        let relations = relations(process, &self.processes, self.tree.init())?;
        let Some(surveyed) = surveyed else { return zombie(process, relations) };
        let started = Instant::now();
        let (threads, attributes) = ask(process)?;
        statistics.threads += threads.len();
        statistics.questions += started.elapsed();

        let started = Instant::now();
        let member = self.tree.members.entry(process.pid).or_default();
        watch(process, member, &surveyed.mappings)?;
        let base = member.base.as_ref().map(|base| base.pages.clone()).unwrap_or_default();
        let hot = member.base.as_ref().map(|base| Arc::clone(&base.hot)).unwrap_or_default();
        // Before the scan: what is supplied in between is present then.
        let owed = member.watcher.as_ref().and_then(Watcher::space).map(PagedSpace::owed).unwrap_or_default();
        let owed = owed_pages::owed_slots(&owed, &surveyed.mappings, store)?;
        let scan = memory::scan(process, &surveyed.mappings, true)?;
        // From here on the kernel's marks are gone: should copying fail, everything is copied
        // the next time.
        member.base = None;
        let (pages, copied) = memory::copy_written(process, &surveyed.mappings, &scan, base, owed, store)?;
        let layout = layout(process, &attributes, surveyed.program)?;
        let image = AddressSpaceImage { mappings: surveyed.mappings, pages, layout, hot };
        if let Some(space) = member.watcher.as_ref().and_then(Watcher::space) {
            // The image has everything that is owed; older ones can go.
            let source = StoredPages::source(image.pages.clone(), store);
            space.change(|owed| owed.resupply(&source));
        }
        member.base = Some(image.clone());
        statistics.copied_pages += copied;
        statistics.memory += started.elapsed();

        let terminal = surveyed.terminal;
        let leader = process.threads.first().ok_or(gone(process.pid))?;
        let pending = ptrace::pending_signals(leader.tid, true).map_err(kernel(leader.tid, "read pending signals"))?;
        Ok(Arc::new(ProcessImage {
            pid: process.inside,
            parent: relations,
            group: NamespacePid(process.status.group),
            session: NamespacePid(process.status.session),
            name: process.status.name.as_str().into(),
            state: leader.job_control_signal().map_or(ProcessState::Running, ProcessState::Stopped),
            threads,
            memory: Some(image),
            descriptors: surveyed.descriptors,
            working_directory: surveyed.working_directory,
            root_directory: surveyed.root_directory,
            umask: process.status.umask,
            out_of_memory_score: out_of_memory_score(process.pid)?,
            pending,
            terminal,
            attributes,
        }))
    }
}

/// Watches all private mappings of a process.
fn watch(process: &StoppedProcess, member: &mut Member, mappings: &[MappingImage]) -> Result<()> {
    if let Some(watcher) = &member.watcher {
        match memory::watch_all(process.pid, watcher.userfaultfd(), mappings) {
            // The memory that it watched is no more: the process executed a program, and has
            // something where the area was.
            Err(Error::Kernel { source: Errno::NOMEM | Errno::SRCH, .. }) => {}
            result => return result,
        }
    }
    member.base = None;
    let watcher = Watcher::tracking(&puppet_of(process)?)?;
    memory::watch_all(process.pid, watcher.userfaultfd(), mappings)?;
    member.watcher = Some(watcher);
    Ok(())
}

fn gone(pid: Pid) -> Error {
    Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the threads" }
}

/// The parent as the sandbox sees it.
fn relations(process: &StoppedProcess, all: &[StoppedProcess], init: Pid) -> Result<NamespacePid> {
    let parent = process.status.parent;
    if parent == init.as_raw_nonzero().get() {
        return Ok(NamespacePid::INIT);
    }
    let found = all.iter().find(|other| other.pid.as_raw_nonzero().get() == parent);
    found.map(|other| other.inside).ok_or(gone(process.pid))
}

/// The terminal that a session leader controls, which must be one of its descriptors.
fn controlling_terminal(
    process: &StoppedProcess,
    all: &[StoppedProcess],
    descriptors: &[DescriptorImage],
    files: &OpenFiles,
) -> Result<Option<ControllingTerminal>> {
    let mut buffer = Vec::new();
    let stat = proc_files::stat(process.pid, &mut buffer)?;
    if process.status.session != process.inside.0 || stat.terminal == 0 {
        return Ok(None);
    }
    let descriptor = descriptors.iter().find_map(|descriptor| match &files.files[descriptor.file.0].kind {
        OpenFileKind::External(file)
            if file.endpoint.kind == EndpointKind::Terminal && file.endpoint.identity.inode == stat.terminal =>
        {
            Some((file.endpoint.identity, descriptor.number))
        }
        _ => None,
    });
    let reason = "it leads the session of a terminal that it has no descriptor of";
    let (terminal, descriptor) = descriptor.ok_or_else(|| refuse(process, None, RefusalKind::Terminal, reason))?;
    let mut foreground = None;
    for other in all {
        if proc_files::stat(other.pid, &mut buffer)?.group == stat.foreground {
            foreground = Some(NamespacePid(other.status.group));
        }
    }
    Ok(Some(ControllingTerminal { terminal, descriptor, foreground }))
}

fn zombie(process: &StoppedProcess, parent: NamespacePid) -> Result<Arc<ProcessImage>> {
    let status = proc_files::stat(process.pid, &mut Vec::new())?.exit_status;
    Ok(Arc::new(ProcessImage {
        pid: process.inside,
        parent,
        group: NamespacePid(process.status.group),
        session: NamespacePid(process.status.session),
        name: process.status.name.as_str().into(),
        state: ProcessState::Zombie(status),
        threads: Vec::new(),
        memory: None,
        descriptors: Vec::new(),
        working_directory: "/".into(),
        root_directory: "/".into(),
        umask: 0,
        out_of_memory_score: 0,
        pending: Vec::new(),
        terminal: None,
        attributes: ProcessAttributes::default(),
    }))
}

/// Reads a link of `/proc/PID` that names a file inside the sandbox.
pub(crate) fn link(process: &StoppedProcess, name: &'static str) -> Result<Box<str>> {
    let path = format!("/proc/{}/{name}", process.pid.as_raw_nonzero());
    let target = rustix::fs::readlink(path, Vec::new()).map_err(kernel(process.pid, "read a directory"))?;
    let target = target.into_string().map_err(|_| refuse(process, None, RefusalKind::File, format!("odd {name}")))?;
    if target.ends_with(mappings::DELETED) {
        return Err(refuse(process, None, RefusalKind::File, format!("its {name} {target} has no name any more")));
    }
    Ok(target.into())
}

fn out_of_memory_score(pid: Pid) -> Result<i32> {
    let mut buffer = Vec::new();
    let path = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    brood_kernel::maps::read_proc_file(&path, &mut buffer).map_err(kernel(pid, "read the out-of-memory score"))?;
    let malformed = Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the out-of-memory score" };
    String::from_utf8_lossy(&buffer).trim().parse().map_err(|_| malformed)
}

/// Runs the questions in each thread.
fn ask(process: &StoppedProcess) -> Result<(Vec<ThreadImage>, ProcessAttributes)> {
    let mut buffer = Vec::new();
    let mut inside_ids: HashMap<i32, i32> = HashMap::new();
    let mut threads = Vec::with_capacity(process.threads.len());
    let mut attributes = ProcessAttributes::default();
    let area = process.area.ok_or(gone(process.pid))?;
    for (position, thread) in process.threads.iter().enumerate() {
        let status = proc_files::status(process.pid, thread.tid, &mut buffer)?;
        inside_ids.insert(thread.tid.as_raw_nonzero().get(), status.inside.0);
        let mut batch = Batch::new(area);
        let query = ThreadQuery::ask(&mut batch);
        let process_query = if position == 0 {
            let interesting = status.caught | status.ignored;
            let posix = timers::list(process.pid, &mut buffer)?;
            Some(ProcessQuery::ask(&mut batch, interesting, posix))
        } else {
            None
        };
        let results = engine_area::run(process, thread, &batch)?;
        let too_many = || refuse(process, None, RefusalKind::Process, "it has too many supplementary groups");
        threads.push(query.read(&results, thread, &status)?.ok_or_else(too_many)?);
        if let Some(query) = process_query {
            attributes = query.read(&results);
        }
    }
    for timer in &mut attributes.timers.posix {
        timer.thread = inside_ids.get(&timer.thread).copied().unwrap_or(0);
    }
    Ok((threads, attributes))
}

fn layout(process: &StoppedProcess, attributes: &ProcessAttributes, program: Box<str>) -> Result<MemoryLayout> {
    let mut auxiliary = Vec::new();
    let stat = proc_files::stat(process.pid, &mut auxiliary)?;
    let path = format!("/proc/{}/auxv", process.pid.as_raw_nonzero());
    brood_kernel::maps::read_proc_file(&path, &mut auxiliary)
        .map_err(kernel(process.pid, "read the auxiliary vector"))?;
    Ok(MemoryLayout {
        code: stat.code,
        data: stat.data,
        heap: (stat.heap_start, attributes.heap_end),
        stack: stat.stack,
        arguments: stat.arguments,
        environment: stat.environment,
        auxiliary,
        program,
    })
}
