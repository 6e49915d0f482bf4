//! What can go wrong, and what is refused on purpose.

use std::fmt;

use brood_kernel::injection::InjectionError;
use rustix::io::Errno;
use thiserror::Error;

/// A process or thread id as the sandbox sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacePid(pub i32);

impl NamespacePid {
    /// PID 1 of the sandbox, which is the engine's own and never captured.
    pub const INIT: Self = Self(1);
}

impl fmt::Display for NamespacePid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The kind of thing that can't be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The process as such: its mode, its tracer, its relations.
    Process,
    /// A mapping.
    Mapping,
    /// A file or directory.
    File,
    /// A pipe or fifo.
    Pipe,
    /// A terminal.
    Terminal,
    /// A socket.
    Socket,
    /// An event source: epoll, inotify and the like.
    EventSource,
    /// A device.
    Device,
    /// A namespace other than the sandbox's.
    Namespace,
    /// A signal or timer.
    Signal,
    /// A seccomp filter.
    Seccomp,
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Process => "process",
            Self::Mapping => "mapping",
            Self::File => "file",
            Self::Pipe => "pipe",
            Self::Terminal => "terminal",
            Self::Socket => "socket",
            Self::EventSource => "event source",
            Self::Device => "device",
            Self::Namespace => "namespace",
            Self::Signal => "signal or timer",
            Self::Seccomp => "seccomp filter",
        })
    }
}

/// Something that can't be captured. Nothing was changed when this is returned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot capture {kind} of process {pid} ({name}){}: {reason}", at_descriptor(*.descriptor))]
pub struct Refusal {
    /// The process, as the sandbox sees it.
    pub pid: NamespacePid,
    /// Its name.
    pub name: String,
    /// The descriptor, if it is about one.
    pub descriptor: Option<i32>,
    /// What sort of thing it is.
    pub kind: RefusalKind,
    /// Why not, and what it is exactly.
    pub reason: String,
}

fn at_descriptor(descriptor: Option<i32>) -> String {
    descriptor.map(|number| format!(" at descriptor {number}")).unwrap_or_default()
}

/// Why a process tree could not be captured, restored or rolled back.
#[derive(Debug, Error)]
pub enum Error {
    /// It holds something that isn't supported. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// A request to the kernel failed.
    #[error("cannot {action} of process {pid}")]
    Kernel {
        /// The process, as the host sees it.
        pid: i32,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// Code could not be run in a process.
    #[error("a process could not be worked on")]
    Injection(#[from] InjectionError),
    /// A process or thread could not be stopped within the time allowed.
    #[error("task {tid} does not stop")]
    DoesNotStop {
        /// The task, as the host sees it.
        tid: i32,
    },
    /// New processes appeared faster than they could be stopped.
    #[error("the process tree keeps growing while it is being stopped")]
    KeepsGrowing,
    /// The page store could not take or give pages.
    #[error("cannot {action} in the page store")]
    Store {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// A file of the image could not be opened in the target.
    #[error("cannot open {path} in the sandbox")]
    File {
        /// The path inside the sandbox.
        path: String,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// An image doesn't fit the host (another kernel build, another processor).
    #[error("the image does not fit this host: {reason}")]
    DoesNotFit {
        /// What differs.
        reason: String,
    },
    /// Something in `/proc` could not be understood.
    #[error("cannot understand {what} of process {pid}")]
    Malformed {
        /// The process, as the host sees it.
        pid: i32,
        /// What was read.
        what: &'static str,
    },
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn kernel(pid: rustix::process::Pid, action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Kernel { pid: pid.as_raw_nonzero().get(), action, source }
}

pub(crate) fn store(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Store { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_process_descriptor_kind_and_reason() {
        let refusal = Refusal {
            pid: NamespacePid(7),
            name: "redis".into(),
            descriptor: Some(5),
            kind: RefusalKind::Socket,
            reason: "sockets of family 17 are not supported".into(),
        };
        let text = "cannot capture socket of process 7 (redis) at descriptor 5: sockets of family 17 are not supported";
        assert_eq!(refusal.to_string(), text);
    }
}
