//! The engine's side of captured processes: which pipes and terminals are ours, and new ones for
//! a fork.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use brood_deltacr::address_space::ObjectIdentity;
use brood_deltacr::descriptors::{Endpoint, EndpointKind, ExternalKey, Externals};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::checkpoint::ProcessRecord;
use crate::error::Result;
use crate::process::Streams;
use crate::spawn;

/// Major number of the terminal sides of pseudo-terminals (Documentation/admin-guide/devices.txt).
const TERMINAL_MAJOR: u32 = 136;

/// Which of a process's streams an end belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    Input = 0,
    Output = 1,
    Error = 2,
    Terminal = 3,
}

/// The name of an end: the process that it was made for, and the stream.
pub(crate) fn key(pid: u32, slot: Slot) -> ExternalKey {
    ExternalKey(u64::from(pid) << 2 | slot as u64)
}

/// The process that an end was made for.
pub(crate) fn process_of(key: ExternalKey) -> u64 {
    key.0 >> 2
}

/// The identity of a pipe, from either end.
pub(crate) fn pipe_identity(pipe: BorrowedFd<'_>) -> Option<ObjectIdentity> {
    let status = rustix::fs::fstat(pipe).ok()?;
    Some(ObjectIdentity { device: status.st_dev, inode: status.st_ino })
}

/// The device number of the terminal whose other side is `master`.
pub(crate) fn terminal_number(master: BorrowedFd<'_>) -> Option<u64> {
    let name = rustix::pty::ptsname(master, Vec::new()).ok()?;
    let number = name.to_str().ok()?.rsplit('/').next()?.parse().ok()?;
    Some(rustix::fs::makedev(TERMINAL_MAJOR, number))
}

/// The ends of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    pipes: HashMap<ObjectIdentity, ExternalKey>,
    terminals: HashMap<u64, ExternalKey>,
    /// The process's ends of what was made for a fork.
    supplied: Mutex<HashMap<ExternalKey, OwnedFd>>,
}

impl Endpoints {
    pub(crate) fn add_pipe(&mut self, pipe: BorrowedFd<'_>, key: ExternalKey) {
        if let Some(identity) = pipe_identity(pipe) {
            self.pipes.insert(identity, key);
        }
    }

    pub(crate) fn add_terminal(&mut self, master: BorrowedFd<'_>, key: ExternalKey) {
        if let Some(number) = terminal_number(master) {
            self.terminals.insert(number, key);
        }
    }

    /// Makes new pipes and terminals for the processes of a checkpoint; our ends, by process.
    pub(crate) fn supply(&mut self, records: &[ProcessRecord], init: Pid, owner: u32) -> Result<HashMap<u32, Streams>> {
        let mut ours = HashMap::new();
        for record in records {
            let pid = record.info.pid;
            let streams = if record.info.terminal {
                let (master, slave) = open_terminal(init, owner)
                    .map_err(|error| crate::error::EngineError::system("cannot make a terminal for a fork", error))?;
                self.put(key(pid, Slot::Terminal), slave);
                Streams::Terminal { master }
            } else {
                let (streams, [input, output, error]) = spawn::pipes(record.has_input, (owner, owner))?;
                self.put(key(pid, Slot::Input), input);
                self.put(key(pid, Slot::Output), output);
                self.put(key(pid, Slot::Error), error);
                streams
            };
            ours.insert(pid, streams);
        }
        Ok(ours)
    }

    fn put(&self, key: ExternalKey, descriptor: OwnedFd) {
        self.supplied.lock().unwrap_or_else(PoisonError::into_inner).insert(key, descriptor);
    }
}

impl Externals for Endpoints {
    fn identify(&self, endpoint: &Endpoint) -> Option<ExternalKey> {
        match endpoint.kind {
            EndpointKind::Pipe => self.pipes.get(&endpoint.identity).copied(),
            EndpointKind::Terminal => self.terminals.get(&endpoint.identity.inode).copied(),
            EndpointKind::Socket => None,
        }
    }

    fn reopen(&self, key: ExternalKey) -> io::Result<OwnedFd> {
        let supplied = self.supplied.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = supplied.get(&key).ok_or(io::ErrorKind::NotFound)?;
        descriptor.as_fd().try_clone_to_owned()
    }
}

/// Opens a pseudo-terminal in a sandbox's own instance.
fn open_terminal(init: Pid, owner: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let path = PathBuf::from(format!("/proc/{}/root/dev/pts/ptmx", init.as_raw_nonzero()));
    // /dev/pts is a mount that the sandbox cannot change, so no part of the path is its own.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let peer = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, peer)?;
    rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(owner)), None)?;
    Ok((spawn::nonblocking(master)?, slave))
}
