//! Ends whose other side the engine holds: output pipes, terminals, connections of the daemon.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::address_space::ObjectIdentity;

/// What an end belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// A pipe.
    Pipe,
    /// The terminal side of a pseudo-terminal; its identity holds the device's number.
    Terminal,
    /// A socket.
    Socket,
}

/// An end, found in a process, that may be the engine's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// What it belongs to.
    pub kind: EndpointKind,
    /// Device and inode number; both ends of a pipe have the same.
    pub identity: ObjectIdentity,
    /// The process can read from it.
    pub reads: bool,
    /// The process can write to it.
    pub writes: bool,
}

/// The engine's name for an end: the same in every sandbox forked from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExternalKey(pub u64);

/// What lies outside a process tree: answered by whoever holds the other sides.
pub trait Externals: fmt::Debug {
    /// The name of an end, if its other side is the engine's.
    fn identify(&self, endpoint: &Endpoint) -> Option<ExternalKey>;

    /// The end that stands for `key` in the sandbox being restored. It is handed to the process
    /// as it is: with its own flags.
    ///
    /// # Errors
    /// If the other side can't be made.
    fn reopen(&self, key: ExternalKey) -> std::io::Result<OwnedFd>;
}

/// No end reaches outside.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExternals;

impl Externals for NoExternals {
    fn identify(&self, _endpoint: &Endpoint) -> Option<ExternalKey> {
        None
    }

    fn reopen(&self, _key: ExternalKey) -> std::io::Result<OwnedFd> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// An open file that belongs to the engine. Two are equal if they have one name: a fork's ends are
/// other objects than those that were captured, and stand for the same.
#[derive(Debug, Clone, Copy)]
pub struct ExternalFile {
    /// Its name.
    pub key: ExternalKey,
    /// What it was when it was captured, to know it again.
    pub endpoint: Endpoint,
}

impl PartialEq for ExternalFile {
    fn eq(&self, other: &Self) -> bool {
        let shape = |file: &Self| (file.key, file.endpoint.kind, file.endpoint.reads, file.endpoint.writes);
        shape(self) == shape(other)
    }
}

impl Eq for ExternalFile {}

impl ExternalFile {
    pub(crate) fn reopen(&self, externals: &dyn Externals) -> Result<OwnedFd, Errno> {
        externals.reopen(self.key).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
