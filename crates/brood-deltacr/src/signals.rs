//! Signals of a process: what is done on each, and those that wait.

use brood_kernel::injection::{Batch, BatchResults, Output};
use brood_kernel::ptrace::SignalInformation;

use crate::words::{bytes_of_u64, u64_at};

/// Highest signal number.
const SIGNALS: i32 = 64;
/// Bytes of a signal set in the kernel's interface.
pub(crate) const SIGNAL_SET_BYTES: u64 = 8;
/// Bytes of the kernel's `struct sigaction`: handler, flags, restorer, mask.
const ACTION_BYTES: usize = 32;

/// What a process does on a signal, as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalAction {
    /// The signal.
    pub signal: i32,
    /// Handler address, or 0 for the default and 1 to ignore it.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where handlers return to.
    pub restorer: u64,
    /// Signals blocked meanwhile, as bits.
    pub mask: u64,
}

/// Questions about actions in a batch.
#[derive(Debug)]
pub(crate) struct ActionsQuery {
    asked: Vec<(i32, Output)>,
}

impl ActionsQuery {
    /// Asks about the signals in `interesting`, and about SIGCHLD, whose flags matter even
    /// where its action is the default.
    pub(crate) fn ask(batch: &mut Batch, interesting: u64) -> Self {
        let wanted = interesting | 1 << (libc::SIGCHLD - 1);
        let asked = (1..=SIGNALS)
            .filter(|signal| wanted & (1 << (signal - 1)) != 0)
            .map(|signal| {
                let output = batch.output(ACTION_BYTES);
                let number = u64::from(signal.unsigned_abs());
                batch.call(libc::SYS_rt_sigaction, &[number, 0, output.address, SIGNAL_SET_BYTES]);
                (signal, output)
            })
            .collect();
        Self { asked }
    }

    pub(crate) fn read(&self, results: &BatchResults) -> Vec<SignalAction> {
        let action = |(signal, output): &(i32, Output)| {
            let bytes = results.output(*output);
            let word = |index: usize| u64_at(bytes, index * 8);
            SignalAction { signal: *signal, handler: word(0), flags: word(1), restorer: word(2), mask: word(3) }
        };
        let is_plain_default = |action: &SignalAction| action.handler == 0 && action.flags == 0 && action.mask == 0;
        self.asked.iter().map(action).filter(|action| !is_plain_default(action)).collect()
    }
}

/// Sets actions; those of all other signals are the default afterwards.
pub(crate) fn restore_actions(batch: &mut Batch, actions: &[SignalAction]) {
    let default = batch.data(&[0; ACTION_BYTES]);
    for signal in (1..=SIGNALS).filter(|signal| !matches!(*signal, libc::SIGKILL | libc::SIGSTOP)) {
        let action = actions.iter().find(|action| action.signal == signal);
        let record = action.map_or(default, |action| {
            batch.data(&bytes_of_u64(&[action.handler, action.flags, action.restorer, action.mask]))
        });
        let number = u64::from(signal.unsigned_abs());
        batch.call(libc::SYS_rt_sigaction, &[number, record, 0, SIGNAL_SET_BYTES]);
    }
}

/// Puts actions back in a process that changed some: those in `current` (as bits) and those of
/// the image are set, the rest are defaults before and after.
pub(crate) fn reset_actions(batch: &mut Batch, actions: &[SignalAction], current: u64) {
    let default = batch.data(&[0; ACTION_BYTES]);
    let in_image = |signal: i32| actions.iter().find(|action| action.signal == signal);
    let settable = (1..=SIGNALS).filter(|signal| !matches!(*signal, libc::SIGKILL | libc::SIGSTOP));
    for signal in settable.filter(|signal| current & (1 << (signal - 1)) != 0 || in_image(*signal).is_some()) {
        let record = in_image(signal).map_or(default, |action| {
            batch.data(&bytes_of_u64(&[action.handler, action.flags, action.restorer, action.mask]))
        });
        batch.call(libc::SYS_rt_sigaction, &[u64::from(signal.unsigned_abs()), record, 0, SIGNAL_SET_BYTES]);
    }
}

/// Takes signals that wait out of their queues.
pub(crate) fn discard_pending(batch: &mut Batch, pending: &[SignalInformation]) {
    let now = batch.data(&[0; 16]);
    for information in pending.iter().filter(|information| (1..=SIGNALS).contains(&information.number())) {
        let set = batch.data(&bytes_of_u64(&[1 << (information.number() - 1)]));
        batch.attempt(libc::SYS_rt_sigtimedwait, &[set, 0, now, SIGNAL_SET_BYTES]);
    }
}

/// Queues signals to the calling process, or to one of its threads. They must be blocked.
///
/// The kernel lets a process queue signals with any origin to itself only.
pub(crate) fn restore_pending(batch: &mut Batch, process: u64, thread: Option<u64>, pending: &[SignalInformation]) {
    for information in pending {
        let record = batch.data(&information.0);
        let number = u64::from(information.number().unsigned_abs());
        match thread {
            Some(thread) => batch.attempt(libc::SYS_rt_tgsigqueueinfo, &[process, thread, number, record]),
            None => batch.attempt(libc::SYS_rt_sigqueueinfo, &[process, number, record]),
        };
    }
}
