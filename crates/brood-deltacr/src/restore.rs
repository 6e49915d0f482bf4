//! Restoring a tree in a sandbox's namespaces.
//!
//! All processes are made first, from an empty seed, then filled one by one, then let go at
//! once. Until then they die with the engine.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use brood_kernel::ptrace;
use rustix::fs::OFlags;
use rustix::process::Pid;

use crate::address_space::{MappedFile, ObjectIdentity};
use crate::births::{Made, Nursery, end};
use crate::capture::ProcessTreeImage;
use crate::creation::{self, Relations};
use crate::descriptors::pipe::MadePipe;
use crate::descriptors::table::duplicate;
use crate::descriptors::{Externals, OpenFileImage, OpenFileKind, ReopenContext, memory_file};
use crate::error::{Error, NamespacePid, Result, kernel};
use crate::proc_files;
use crate::process::{ProcessImage, ProcessState};
use crate::revive;
use crate::root::SandboxRoot;
use crate::seed::Seed;
use crate::thread;
use crate::tree::{Member, StoppedProcess, Tree};

/// Where a tree is restored.
#[derive(Clone, Copy)]
pub struct RestoreTarget<'a> {
    /// PID 1 of the sandbox, as the host sees it.
    pub init: Pid,
    /// The sandbox's root directory.
    pub root: &'a SandboxRoot,
    /// Puts a process of the host's into the sandbox's control groups; its children follow.
    pub place: &'a dyn Fn(Pid) -> std::io::Result<()>,
}

impl std::fmt::Debug for RestoreTarget<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RestoreTarget")
            .field("init", &self.init)
            .field("root", self.root)
            .finish_non_exhaustive()
    }
}

/// What each descriptor of each process refers to.
pub(crate) type OpenDescriptors = HashMap<(Pid, i32), OpenFileImage>;

/// Files that several processes need, opened once in the engine.
#[derive(Debug)]
pub(crate) struct Supplies<'a> {
    pub(crate) image: &'a ProcessTreeImage,
    pub(crate) root: &'a SandboxRoot,
    externals: &'a dyn Externals,
    /// The image's open files, once some process needed them.
    open: BTreeMap<usize, OwnedFd>,
    /// Open files to take where the caller has no others.
    spare: BTreeMap<usize, OwnedFd>,
    /// Mapped files by name and whether they can be written through.
    mapped: BTreeMap<(MappedFile, bool), OwnedFd>,
    pipes: BTreeMap<ObjectIdentity, MadePipe>,
    memories: BTreeMap<ObjectIdentity, OwnedFd>,
}

impl<'a> Supplies<'a> {
    /// Makes what is shared: pipes and memory.
    pub(crate) fn new(
        image: &'a ProcessTreeImage,
        root: &'a SandboxRoot,
        externals: &'a dyn Externals,
    ) -> Result<Self> {
        let own = rustix::process::getpid();
        let mut pipes = BTreeMap::new();
        for (identity, pipe) in &image.open_files.pipes {
            pipes.insert(*identity, pipe.make().map_err(kernel(own, "make a pipe"))?);
        }
        let mut memories = BTreeMap::new();
        for (identity, memory) in &image.open_files.memories {
            memories.insert(*identity, memory.make(&image.store).map_err(kernel(own, "make shared memory"))?);
        }
        let (open, spare, mapped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { image, root, externals, open, spare, mapped, pipes, memories })
    }

    /// Opens one of the image's open files, if that wasn't done yet.
    pub(crate) fn provide_open(&mut self, index: usize) -> Result<()> {
        if self.open.contains_key(&index) {
            return Ok(());
        }
        let file = &self.image.open_files.files[index];
        let context =
            ReopenContext { root: self.root, externals: self.externals, pipes: &self.pipes, memories: &self.memories };
        let opened = file.reopen(&context);
        let opened = opened.or_else(|error| self.spare.remove(&index).ok_or(error));
        let path = || format!("{:?}", file.kind);
        let opened = opened.map_err(|source| Error::File { path: path(), source })?;
        if let OpenFileKind::External(external) = &file.kind
            && let Some(state) = self.image.open_files.terminals.get(&external.endpoint.identity)
        {
            state.apply(opened.as_fd()).map_err(|source| Error::File { path: path(), source })?;
        }
        self.open.insert(index, opened);
        Ok(())
    }

    /// Opens a mapped file, if that wasn't done yet.
    pub(crate) fn provide_mapped(&mut self, file: &MappedFile, writable: bool) -> Result<()> {
        let key = (file.clone(), writable);
        if self.mapped.contains_key(&key) {
            return Ok(());
        }
        let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let opened = match file {
            MappedFile::Path(path) => {
                let opened = self.root.open(path, flags);
                opened.map_err(|source| Error::File { path: path.to_string(), source })?
            }
            MappedFile::Memory(identity) => {
                let memory = self.memories.get(identity).ok_or(rustix::io::Errno::NOENT);
                memory
                    .and_then(|memory| memory_file::reopen(memory, flags.bits()))
                    .map_err(kernel(rustix::process::getpid(), "open shared memory"))?
            }
        };
        self.mapped.insert(key, opened);
        Ok(())
    }

    /// Takes over open files instead of making them.
    pub(crate) fn keep(&mut self, files: BTreeMap<usize, OwnedFd>) {
        self.open.extend(files);
    }

    /// Takes over open files for where the caller has no others.
    pub(crate) fn keep_spare(&mut self, files: BTreeMap<usize, OwnedFd>) {
        self.spare.extend(files);
    }

    /// Gives terminals that processes have their former settings.
    pub(crate) fn reset_terminals(&self, current: &OpenDescriptors) -> Result<()> {
        for (identity, state) in &self.image.open_files.terminals {
            // By name: in a fork it is another terminal than the captured one.
            let captured = self.image.open_files.files.iter().find_map(|file| match &file.kind {
                OpenFileKind::External(external) if external.endpoint.identity == *identity => Some(external.key),
                _ => None,
            });
            let holder = current.iter().find(
                |(_, file)| matches!(&file.kind, OpenFileKind::External(external) if Some(external.key) == captured),
            );
            if let Some(((pid, number), _)) = holder {
                let terminal = duplicate(*pid, *number).and_then(|terminal| state.apply(terminal.as_fd()));
                terminal.map_err(kernel(*pid, "reset a terminal"))?;
            }
        }
        Ok(())
    }

    /// Gives memory that processes share and still have its former content, in place.
    pub(crate) fn reset_memories(&mut self, processes: &[StoppedProcess]) -> Result<()> {
        for (identity, memory) in &self.image.open_files.memories {
            if let Some((pid, living)) = find_memory(processes, *identity)? {
                memory.reset(living.as_fd(), &self.image.store).map_err(kernel(pid, "reset shared memory"))?;
                self.memories.insert(*identity, living);
            }
        }
        Ok(())
    }

    pub(crate) fn open(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.open.get(&index).map(AsFd::as_fd)
    }

    pub(crate) fn mapped(&self, file: &MappedFile, writable: bool) -> Option<BorrowedFd<'_>> {
        self.mapped.get(&(file.clone(), writable)).map(AsFd::as_fd)
    }
}

/// The open files of an image that reach outside, as processes have them at present. A rollback
/// keeps these, where a fork gets others.
pub(crate) fn external_files(image: &ProcessTreeImage, current: &OpenDescriptors) -> Result<BTreeMap<usize, OwnedFd>> {
    let mut kept = BTreeMap::new();
    for (index, wanted) in image.open_files.files.iter().enumerate() {
        let OpenFileKind::External(file) = &wanted.kind else { continue };
        let same = current.iter().find(|(_, open)| open.kind == OpenFileKind::External(*file));
        if let Some(((pid, number), _)) = same {
            kept.insert(index, duplicate(*pid, *number).map_err(kernel(*pid, "keep a descriptor"))?);
        }
    }
    Ok(kept)
}

/// Opens shared memory through a descriptor or mapping of some process, if any still has it.
fn find_memory(processes: &[StoppedProcess], identity: ObjectIdentity) -> Result<Option<(Pid, OwnedFd)>> {
    for process in processes.iter().filter(|process| !process.is_zombie()) {
        for directory in ["map_files", "fd"] {
            let path = format!("/proc/{}/{directory}", process.pid.as_raw_nonzero());
            let Ok(entries) = std::fs::read_dir(path) else { continue };
            for entry in entries.filter_map(std::io::Result::ok) {
                let Ok(stat) = rustix::fs::stat(entry.path()) else { continue };
                if (stat.st_dev, stat.st_ino) == (identity.device, identity.inode) {
                    let flags = OFlags::RDWR | OFlags::CLOEXEC;
                    let opened = rustix::fs::open(entry.path(), flags, rustix::fs::Mode::empty());
                    return Ok(Some((process.pid, opened.map_err(kernel(process.pid, "open shared memory"))?)));
                }
            }
        }
    }
    Ok(None)
}

/// A restored tree, complete and still stopped. Dropping it kills its processes.
#[derive(Debug)]
pub struct RestoredTree {
    tree: Tree,
    nursery: Nursery,
    /// Every thread, with the job control signal that its process is to be stopped by.
    tasks: Vec<(Pid, i32)>,
}

impl ProcessTreeImage {
    /// Makes the image's processes in a sandbox whose PID 1 runs and which has no others with
    /// their ids.
    ///
    /// # Errors
    /// If the image doesn't fit the host, a file can't be opened or the kernel refuses; no
    /// process is left behind.
    pub fn restore(&self, seed: &Seed, target: &RestoreTarget<'_>, externals: &dyn Externals) -> Result<RestoredTree> {
        self.restore_with(seed, target, externals, BTreeMap::new())
    }

    /// As [`restore`](Self::restore), with some open files for where the caller has no others.
    pub(crate) fn restore_with(
        &self,
        seed: &Seed,
        target: &RestoreTarget<'_>,
        externals: &dyn Externals,
        spare: BTreeMap<usize, OwnedFd>,
    ) -> Result<RestoredTree> {
        let relations: Vec<Relations> = self
            .processes
            .iter()
            .map(|process| Relations {
                pid: process.pid,
                parent: process.parent,
                group: process.group,
                session: process.session,
            })
            .collect();
        let births = creation::plan(&relations)
            .map_err(|refused| Error::DoesNotFit { reason: format!("process {}: {}", refused.pid, refused.reason) })?;
        let mut supplies = Supplies::new(self, target.root, externals)?;
        supplies.keep_spare(spare);
        let nursery = Nursery::make_all(seed, target, &births)?;
        let mut tree = Tree::new(target.init)?;
        let mut tasks = Vec::new();
        self.end_zombies(&nursery)?;
        for made in &nursery.made {
            let image = self.process(made.inside)?;
            if !matches!(image.state, ProcessState::Zombie(_)) {
                let (member, threads) = revive::revive(made, image, seed, &mut supplies)?;
                tree.members.insert(made.puppet.pid, member);
                let signal = match image.state {
                    ProcessState::Stopped(signal) => signal,
                    _ => 0,
                };
                tasks.extend(
                    threads.into_iter().enumerate().map(|(index, tid)| (tid, if index == 0 { signal } else { 0 })),
                );
            }
        }
        Ok(RestoredTree { tree, nursery, tasks })
    }

    /// The image of a process.
    pub(crate) fn process(&self, pid: NamespacePid) -> Result<&Arc<ProcessImage>> {
        let found = self.processes.iter().find(|process| process.pid == pid);
        found.ok_or_else(|| Error::DoesNotFit { reason: format!("process {pid} is not in the image") })
    }

    fn end_zombies(&self, nursery: &Nursery) -> Result<()> {
        for made in &nursery.made {
            if let ProcessState::Zombie(status) = self.process(made.inside)?.state {
                become_zombie(made, status)?;
            }
        }
        Ok(())
    }
}

/// Lets a process end with a wait status.
fn become_zombie(made: &Made, status: i32) -> Result<()> {
    let puppet = &made.puppet;
    if libc::WIFSIGNALED(status) {
        // The task stands in the stop of a batch's end, in which a signal can be handed to it.
        let mut batch = puppet.batch();
        batch.call(libc::SYS_getpid, &[]);
        puppet.run(&batch)?;
        ptrace::set_signal_mask(puppet.tid, 0).map_err(kernel(puppet.tid, "end a process"))?;
        ptrace::resume(puppet.tid, libc::WTERMSIG(status)).map_err(kernel(puppet.tid, "end a process"))?;
        let stop = ptrace::wait(puppet.tid, true).map_err(kernel(puppet.tid, "end a process"))?;
        return if stop.is_none_or(|stop| stop.is_end()) { Ok(()) } else { end(puppet.pid) };
    }
    let mut batch = puppet.batch();
    batch.call(libc::SYS_exit_group, &[u64::from(libc::WEXITSTATUS(status).unsigned_abs())]);
    match puppet.run(&batch) {
        Err(Error::Injection(brood_kernel::injection::InjectionError::Ended { .. })) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => end(puppet.pid),
    }
}

impl RestoredTree {
    /// Lets all processes go.
    ///
    /// # Errors
    /// If a task can't be let go; all are killed then.
    pub fn run(self) -> Result<Tree> {
        for (tid, signal) in &self.tasks {
            ptrace::detach(*tid, *signal).map_err(kernel(*tid, "let a task go"))?;
        }
        drop(self.nursery.release());
        Ok(self.tree)
    }

    /// The processes as the host sees them, with their ids inside.
    #[must_use]
    pub fn pids(&self) -> Vec<(NamespacePid, Pid)> {
        self.nursery.made.iter().map(|made| (made.inside, made.puppet.pid)).collect()
    }
}

/// Finishes what only the engine can do for a process, and sets its registers.
pub(crate) fn finish(pid: Pid, image: &ProcessImage, threads: &[Pid], member: &mut Member) -> Result<()> {
    let mut buffer = Vec::new();
    member.start_time = proc_files::stat(pid, &mut buffer)?.start_time;
    let path = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    if let Err(error) = std::fs::write(path, image.out_of_memory_score.to_string()) {
        // Lowering it is not allowed everywhere; the score is advice.
        tracing::debug!(?pid, %error, "the out-of-memory score stays");
    }
    for (tid, thread) in threads.iter().zip(&image.threads) {
        thread::restore_registers(*tid, thread)?;
    }
    Ok(())
}
