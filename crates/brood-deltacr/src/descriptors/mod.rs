//! Descriptors: one file for each kind of open file, with capture and restore side by side.
//!
//! Two descriptors may share one open file (after `dup` or `fork`), and with it the offset; an
//! image keeps open files once and lets descriptors refer to them.

pub mod epoll;
pub mod event_counter;
pub mod external;
pub mod memory_file;
pub mod path;
pub mod pipe;
pub mod signal_descriptor;
pub mod table;
pub mod terminal;
pub mod timer_descriptor;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

pub use external::{Endpoint, EndpointKind, ExternalKey, Externals};
pub use table::{DescriptorImage, OpenFileIndex};

use crate::address_space::ObjectIdentity;
use crate::root::SandboxRoot;

/// Flags of an open file that can be set again after it was opened.
pub(crate) const SETTABLE_FLAGS: u32 = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT) as u32;

/// What an open file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenFileKind {
    /// A file, directory or harmless device with a path inside the sandbox.
    Path(path::PathFile),
    /// One end of a pipe between processes of the tree.
    Pipe(pipe::PipeEnd),
    /// The sandbox's side of something that the engine holds the other side of.
    External(external::ExternalFile),
    /// A memfd.
    Memory(memory_file::MemoryFile),
    /// An event counter.
    EventCounter(event_counter::EventCounter),
    /// A timer that is read.
    Timer(timer_descriptor::TimerDescriptor),
    /// Signals that are read.
    Signals(signal_descriptor::SignalDescriptor),
    /// A set of watched descriptors.
    Epoll(epoll::EpollSet),
}

/// An open file, which one or more descriptors refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFileImage {
    /// What it is.
    pub kind: OpenFileKind,
    /// Flags as in open(2), without `O_CLOEXEC`.
    pub flags: u32,
    /// Offset in bytes.
    pub position: u64,
}

/// What open files are made from again.
pub(crate) struct ReopenContext<'a> {
    pub(crate) root: &'a SandboxRoot,
    pub(crate) externals: &'a dyn Externals,
    pub(crate) pipes: &'a BTreeMap<ObjectIdentity, pipe::MadePipe>,
    pub(crate) memories: &'a BTreeMap<ObjectIdentity, OwnedFd>,
}

impl OpenFileImage {
    /// Opens or makes the file again, in the engine; sets flags and offset.
    pub(crate) fn reopen(&self, context: &ReopenContext<'_>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::from_bits_retain(self.flags);
        let file = match &self.kind {
            OpenFileKind::Path(file) => file.reopen(context.root, self.flags)?,
            OpenFileKind::Pipe(end) => end.reopen(context.pipes, self.flags)?,
            OpenFileKind::External(file) => return file.reopen(context.externals),
            OpenFileKind::Memory(file) => file.reopen(context.memories, self.flags)?,
            OpenFileKind::EventCounter(counter) => counter.make()?,
            OpenFileKind::Timer(timer) => timer.make()?,
            OpenFileKind::Signals(signals) => signals.make()?,
            OpenFileKind::Epoll(_) => rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?,
        };
        if flags.bits() & SETTABLE_FLAGS != 0 && !matches!(self.kind, OpenFileKind::Path(_)) {
            rustix::fs::fcntl_setfl(&file, OFlags::from_bits_retain(self.flags & SETTABLE_FLAGS))?;
        }
        self.set_position(file.as_fd())?;
        Ok(file)
    }

    /// Opens a file with a path again, in the engine; sets flags and offset.
    pub(crate) fn reopen_path(&self, root: &SandboxRoot) -> Result<OwnedFd, Errno> {
        let OpenFileKind::Path(path) = &self.kind else { return Err(Errno::INVAL) };
        let file = path.reopen(root, self.flags)?;
        self.set_position(file.as_fd())?;
        Ok(file)
    }

    fn set_position(&self, file: rustix::fd::BorrowedFd<'_>) -> Result<(), Errno> {
        let seeks = matches!(self.kind, OpenFileKind::Path(_) | OpenFileKind::Memory(_));
        if seeks && self.position != 0 {
            match rustix::fs::seek(file, SeekFrom::Start(self.position)) {
                Ok(_) | Err(Errno::SPIPE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
