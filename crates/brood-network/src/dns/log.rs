//! What sandboxes looked up.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::SystemTime;

/// Look-ups remembered for each sandbox.
const ENTRIES_MAX: usize = 256;

/// What was decided about a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedVerdict {
    /// It was answered.
    Allowed,
    /// The policy denies the name.
    Denied,
    /// No name server answered.
    Failed,
}

/// One look-up of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUp {
    /// When the answer was sent.
    pub at: SystemTime,
    /// The name, in lower case and without a final dot.
    pub name: String,
    /// The record type: 1 is A, 28 AAAA.
    pub record_type: u16,
    /// What was decided.
    pub verdict: LoggedVerdict,
    /// The addresses in the answer.
    pub addresses: Vec<IpAddr>,
}

/// The last look-ups of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct LookUpLog(VecDeque<LookUp>);

impl LookUpLog {
    pub(crate) fn push(&mut self, entry: LookUp) {
        if self.0.len() == ENTRIES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }

    pub(crate) fn entries(&self) -> Vec<LookUp> {
        self.0.iter().cloned().collect()
    }
}
