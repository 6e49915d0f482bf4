//! Descriptor tables of a whole tree: which open files there are and who shares them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use brood_kernel::kcmp;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::epoll::EpollSet;
use super::event_counter::EventCounter;
use super::external::{Endpoint, EndpointKind, ExternalFile, Externals};
use super::memory_file::{MemoryFile, SharedMemoryImage};
use super::path::PathFile;
use super::pipe::{PipeEnd, PipeImage, other_side_is_closed};
use super::signal_descriptor::SignalDescriptor;
use super::terminal::TerminalState;
use super::timer_descriptor::TimerDescriptor;
use super::{OpenFileImage, OpenFileKind};
use crate::address_space::ObjectIdentity;
use crate::error::{Error, RefusalKind, Result, kernel};
use crate::page_store::PageStore;
use crate::proc_files::{self, DescriptorInformation};
use crate::refusal::refuse;
use crate::tree::StoppedProcess;

/// Major numbers of the terminal sides of pseudo-terminals.
const TERMINAL_MAJORS: std::ops::RangeInclusive<u32> = 136..=143;

/// An index into a tree's list of open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenFileIndex(pub usize);

/// A descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorImage {
    /// Its number.
    pub number: i32,
    /// Closed when a program is executed.
    pub close_on_exec: bool,
    /// What it refers to.
    pub file: OpenFileIndex,
}

/// All open files of a tree.
#[derive(Debug, Clone, Default)]
pub struct OpenFiles {
    /// The files, each once however many descriptors refer to it.
    pub files: Vec<OpenFileImage>,
    /// Pipes with ends among them.
    pub pipes: BTreeMap<ObjectIdentity, PipeImage>,
    /// Shared memory, mapped or open.
    pub memories: BTreeMap<ObjectIdentity, SharedMemoryImage>,
    /// Terminals of the engine.
    pub terminals: BTreeMap<ObjectIdentity, TerminalState>,
}

/// What is looked at to find out whether two descriptors may share one open file.
type Resemblance = (ObjectIdentity, u32, u64);

/// A descriptor as it was found.
struct Found<'a> {
    process: &'a StoppedProcess,
    number: i32,
    link: String,
    stat: Stat,
    information: DescriptorInformation,
}

impl Found<'_> {
    fn identity(&self) -> ObjectIdentity {
        ObjectIdentity { device: self.stat.st_dev, inode: self.stat.st_ino }
    }

    fn refuse(&self, kind: RefusalKind, reason: impl Into<String>) -> Error {
        refuse(self.process, Some(self.number), kind, reason)
    }
}

/// The survey of a tree's open files.
#[derive(Debug)]
pub(crate) struct FileSurvey<'a> {
    externals: &'a dyn Externals,
    store: &'a Arc<PageStore>,
    files: Vec<OpenFileImage>,
    /// A process and descriptor through which each file can be reached.
    holders: Vec<(Pid, i32)>,
    resembling: HashMap<Resemblance, Vec<OpenFileIndex>>,
    memories: BTreeMap<ObjectIdentity, SharedMemoryImage>,
    /// What can't be captured is noted as something else instead of being refused.
    tolerant: bool,
}

impl<'a> FileSurvey<'a> {
    pub(crate) fn new(externals: &'a dyn Externals, store: &'a Arc<PageStore>) -> Self {
        let memories = BTreeMap::new();
        Self {
            externals,
            store,
            files: Vec::new(),
            holders: Vec::new(),
            resembling: HashMap::new(),
            memories,
            tolerant: false,
        }
    }

    /// From here on nothing is refused: the survey is only to be compared with another.
    pub(crate) fn tolerate(&mut self) {
        self.tolerant = true;
    }

    /// Takes in the descriptors of a process.
    pub(crate) fn add_process(&mut self, process: &StoppedProcess) -> Result<Vec<DescriptorImage>> {
        let mut buffer = Vec::new();
        let mut descriptors = Vec::new();
        for number in proc_files::numbered_entries(process.pid, "fd")? {
            let found = look_at(process, number, &mut buffer)?;
            let close_on_exec = found.information.flags & OFlags::CLOEXEC.bits() != 0;
            let file = self.file_of(&found)?;
            descriptors.push(DescriptorImage { number, close_on_exec, file });
        }
        Ok(descriptors)
    }

    /// Takes in memory that is mapped, reached through one of its mappings.
    pub(crate) fn add_mapped_memory(
        &mut self,
        process: &StoppedProcess,
        identity: ObjectIdentity,
        mapping: (u64, u64),
    ) -> Result<()> {
        if self.memories.contains_key(&identity) {
            return Ok(());
        }
        let path = format!("/proc/{}/map_files/{:x}-{:x}", process.pid.as_raw_nonzero(), mapping.0, mapping.1);
        let failed = || kernel(process.pid, "copy shared memory");
        let link = rustix::fs::readlink(&*path, Vec::new()).map_err(failed())?;
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
        let file = file.map_err(failed())?;
        let image = SharedMemoryImage::capture(file.as_fd(), &link.to_string_lossy(), self.store);
        self.memories.insert(identity, image.map_err(failed())?);
        Ok(())
    }

    fn file_of(&mut self, found: &Found<'_>) -> Result<OpenFileIndex> {
        let flags = found.information.flags & !OFlags::CLOEXEC.bits();
        let resemblance = (found.identity(), flags, found.information.position);
        let me = (found.process.pid, found.number);
        for candidate in self.resembling.get(&resemblance).into_iter().flatten() {
            let other = self.holders[candidate.0];
            let order = kcmp::files(me, other).map_err(kernel(found.process.pid, "compare descriptors"))?;
            if order == std::cmp::Ordering::Equal {
                return Ok(*candidate);
            }
        }
        let kind = match self.kind_of(found) {
            Err(Error::Refused(_)) if self.tolerant => OpenFileKind::Path(PathFile { path: "".into() }),
            kind => kind?,
        };
        let index = OpenFileIndex(self.files.len());
        self.files.push(OpenFileImage { kind, flags, position: found.information.position });
        self.holders.push(me);
        self.resembling.entry(resemblance).or_default().push(index);
        Ok(index)
    }

    fn kind_of(&mut self, found: &Found<'_>) -> Result<OpenFileKind> {
        if found.information.value("lock").is_some() {
            return Err(found.refuse(RefusalKind::File, format!("{} is locked", found.link)));
        }
        let format = FileType::from_raw_mode(found.stat.st_mode);
        match format {
            FileType::Fifo => self.pipe_kind(found),
            FileType::Socket => {
                let reason = format!("{} is not the engine's", found.link);
                self.external(found, EndpointKind::Socket, found.identity())
                    .ok_or_else(|| found.refuse(RefusalKind::Socket, reason))
            }
            FileType::CharacterDevice if TERMINAL_MAJORS.contains(&rustix::fs::major(found.stat.st_rdev)) => {
                let identity = ObjectIdentity { device: found.stat.st_dev, inode: found.stat.st_rdev };
                let reason = format!("{} is not the engine's", found.link);
                self.external(found, EndpointKind::Terminal, identity)
                    .ok_or_else(|| found.refuse(RefusalKind::Terminal, reason))
            }
            _ if found.link.starts_with("anon_inode:") => anonymous_kind(found),
            FileType::RegularFile if found.link.starts_with("/memfd:") => self.memory_kind(found),
            _ => path_kind(found),
        }
    }

    fn pipe_kind(&mut self, found: &Found<'_>) -> Result<OpenFileKind> {
        if let Some(kind) = self.external(found, EndpointKind::Pipe, found.identity()) {
            return Ok(kind);
        }
        if !found.link.starts_with("pipe:") {
            return Err(found.refuse(RefusalKind::Pipe, format!("{} is a named pipe", found.link)));
        }
        Ok(OpenFileKind::Pipe(PipeEnd { pipe: found.identity() }))
    }

    fn external(&self, found: &Found<'_>, kind: EndpointKind, identity: ObjectIdentity) -> Option<OpenFileKind> {
        let access = OFlags::from_bits_retain(found.information.flags) & OFlags::RWMODE;
        let (reads, writes) = (access != OFlags::WRONLY, access != OFlags::RDONLY);
        let endpoint = Endpoint { kind, identity, reads, writes };
        let key = self.externals.identify(&endpoint)?;
        Some(OpenFileKind::External(ExternalFile { key, endpoint }))
    }

    fn memory_kind(&mut self, found: &Found<'_>) -> Result<OpenFileKind> {
        let memory = found.identity();
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.memories.entry(memory)
            && !self.tolerant
        {
            let failed = || kernel(found.process.pid, "copy a memory file");
            let path = format!("/proc/{}/fd/{}", found.process.pid.as_raw_nonzero(), found.number);
            let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            let file = file.map_err(failed())?;
            let image = SharedMemoryImage::capture(file.as_fd(), &found.link, self.store);
            vacant.insert(image.map_err(failed())?);
        }
        Ok(OpenFileKind::Memory(MemoryFile { memory }))
    }

    /// Looks into the pipes, whose ends are all known now.
    pub(crate) fn finish(self, processes: &[StoppedProcess]) -> Result<OpenFiles> {
        let mut pipes = BTreeMap::new();
        for (index, file) in self.files.iter().enumerate() {
            let OpenFileKind::Pipe(PipeEnd { pipe }) = file.kind else { continue };
            let (pid, number) = self.holders[index];
            let end = duplicate(pid, number).map_err(kernel(pid, "reach a pipe"))?;
            let writes = file.flags & OFlags::RWMODE.bits() != OFlags::RDONLY.bits();
            let has_other_side = self.files.iter().any(|other| {
                let other_writes = other.flags & OFlags::RWMODE.bits() != OFlags::RDONLY.bits();
                other.kind == file.kind && other_writes != writes
            });
            let reach_outside =
                !has_other_side && !other_side_is_closed(end.as_fd()).map_err(kernel(pid, "look at a pipe"))?;
            if reach_outside && !self.tolerant {
                let process = processes.iter().find(|process| process.pid == pid);
                let gone = Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "a pipe" };
                let reason = "the other end is held outside the sandbox's processes";
                return Err(process.map_or(gone, |process| refuse(process, Some(number), RefusalKind::Pipe, reason)));
            }
            if !writes {
                let image = PipeImage::capture(end.as_fd()).map_err(kernel(pid, "copy a pipe's content"))?;
                pipes.insert(pipe, image);
            } else {
                let capacity = rustix::pipe::fcntl_getpipe_size(&end).map_err(kernel(pid, "look at a pipe"))?;
                pipes.entry(pipe).or_insert(PipeImage { content: Vec::new(), capacity });
            }
        }
        let terminals = self.terminals()?;
        Ok(OpenFiles { files: self.files, pipes, memories: self.memories, terminals })
    }
}

impl FileSurvey<'_> {
    /// Settings of the terminals among the files.
    fn terminals(&self) -> Result<BTreeMap<ObjectIdentity, TerminalState>> {
        let mut terminals = BTreeMap::new();
        for (file, (pid, number)) in self.files.iter().zip(&self.holders) {
            let OpenFileKind::External(external) = &file.kind else { continue };
            let identity = external.endpoint.identity;
            if external.endpoint.kind != EndpointKind::Terminal || terminals.contains_key(&identity) {
                continue;
            }
            let state = duplicate(*pid, *number).and_then(|terminal| TerminalState::capture(terminal.as_fd()));
            terminals.insert(identity, state.map_err(kernel(*pid, "look at a terminal"))?);
        }
        Ok(terminals)
    }
}

/// A descriptor of this process for an open file of another one: the same open file.
pub(crate) fn duplicate(pid: Pid, number: i32) -> std::result::Result<OwnedFd, Errno> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
}

fn look_at<'a>(process: &'a StoppedProcess, number: i32, buffer: &mut Vec<u8>) -> Result<Found<'a>> {
    let path = format!("/proc/{}/fd/{number}", process.pid.as_raw_nonzero());
    let failed = || kernel(process.pid, "look at a descriptor");
    let link = rustix::fs::readlink(&*path, Vec::new()).map_err(failed())?;
    let stat = rustix::fs::stat(&*path).map_err(failed())?;
    let information = proc_files::descriptor_information(process.pid, number, buffer)?;
    let link = link.into_string().unwrap_or_else(|bytes| bytes.into_cstring().to_string_lossy().into_owned());
    Ok(Found { process, number, link, stat, information })
}

fn anonymous_kind(found: &Found<'_>) -> Result<OpenFileKind> {
    let information = &found.information;
    let name = found.link.strip_prefix("anon_inode:").unwrap_or_default();
    let kind = match name {
        "[eventfd]" => EventCounter::capture(information).map(OpenFileKind::EventCounter),
        "[timerfd]" => TimerDescriptor::capture(information).map(OpenFileKind::Timer),
        "[signalfd]" => SignalDescriptor::capture(information).map(OpenFileKind::Signals),
        "[eventpoll]" => EpollSet::capture(information).map(OpenFileKind::Epoll),
        _ => return Err(found.refuse(RefusalKind::EventSource, format!("{name} is not supported"))),
    };
    kind.ok_or(Error::Malformed { pid: found.process.pid.as_raw_nonzero().get(), what: "an event source" })
}

fn path_kind(found: &Found<'_>) -> Result<OpenFileKind> {
    let path = format!("/proc/{}/fd/{}", found.process.pid.as_raw_nonzero(), found.number);
    let system = rustix::fs::statfs(&*path).map_err(kernel(found.process.pid, "look at a descriptor"))?;
    let kind = match FileType::from_raw_mode(found.stat.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => RefusalKind::Device,
        _ => RefusalKind::File,
    };
    PathFile::capture(&found.link, &found.stat, system.f_type.cast_unsigned())
        .map(OpenFileKind::Path)
        .map_err(|reason| found.refuse(kind, reason))
}
