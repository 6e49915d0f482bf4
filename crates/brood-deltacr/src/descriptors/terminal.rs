//! Terminals whose other side the engine holds: settings, window size, who is in the foreground.
//!
//! What was typed and not read yet, or written and not shown yet, is the engine's side's business
//! and is not carried over into a fork.

use std::fmt;
use std::os::fd::BorrowedFd;

use brood_kernel::injection::Batch;
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::address_space::ObjectIdentity;
use crate::error::NamespacePid;

/// Settings and size of a terminal.
#[derive(Clone)]
pub struct TerminalState {
    settings: Termios,
    size: Winsize,
}

impl TerminalState {
    pub(crate) fn capture(terminal: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Self { settings: tcgetattr(terminal)?, size: tcgetwinsize(terminal)? })
    }

    pub(crate) fn apply(&self, terminal: BorrowedFd<'_>) -> Result<(), Errno> {
        tcsetattr(terminal, OptionalActions::Now, &self.settings)?;
        tcsetwinsize(terminal, self.size)
    }
}

impl fmt::Debug for TerminalState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns) = (self.size.ws_row, self.size.ws_col);
        formatter.debug_struct("TerminalState").field("rows", &rows).field("columns", &columns).finish_non_exhaustive()
    }
}

/// The terminal that a session leader controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllingTerminal {
    /// The terminal; `inode` is the number of its device.
    pub terminal: ObjectIdentity,
    /// A descriptor of the leader that refers to it.
    pub descriptor: i32,
    /// The group in the foreground.
    pub foreground: Option<NamespacePid>,
}

impl ControllingTerminal {
    /// Makes the terminal the session's, in a batch of a session leader that has none.
    pub(crate) fn acquire(&self, batch: &mut Batch) {
        batch.call(libc::SYS_ioctl, &[u64::from(self.descriptor.unsigned_abs()), libc::TIOCSCTTY, 0]);
        self.set_foreground(batch);
    }

    /// Puts a group into the foreground, in a batch of the session leader.
    pub(crate) fn set_foreground(&self, batch: &mut Batch) {
        if let Some(group) = self.foreground {
            let group = batch.data(&group.0.to_ne_bytes());
            batch.call(libc::SYS_ioctl, &[u64::from(self.descriptor.unsigned_abs()), libc::TIOCSPGRP, group]);
        }
    }
}
