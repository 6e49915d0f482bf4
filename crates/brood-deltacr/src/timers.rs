//! Interval timers and POSIX timers of a process.

use brood_kernel::injection::{Batch, BatchResults, Output};
use brood_kernel::maps::read_proc_file;
use rustix::process::Pid;

use crate::error::{Error, Result, kernel};

/// `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`.
const INTERVAL_TIMERS: u64 = 3;
/// Bytes of a timer's setting: interval and remaining time.
const SETTING_BYTES: usize = 32;
/// Bytes of the kernel's `struct sigevent`.
const EVENT_BYTES: usize = 64;
/// Highest timer id that is restored: ids are reached by making and deleting timers.
pub(crate) const TIMER_ID_MAX: u32 = 2000;

/// Interval and time left of a timer, in the kernel's form (seconds and fractions).
pub type TimerSetting = [u8; SETTING_BYTES];

/// A POSIX timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixTimer {
    /// Its id.
    pub id: u32,
    /// The clock that it counts.
    pub clock: i32,
    /// How it notifies: `SIGEV_*`, with `SIGEV_THREAD_ID` set if it is bound to a thread.
    pub notify: i32,
    /// The signal that it sends.
    pub signal: i32,
    /// The value that goes with the signal.
    pub value: u64,
    /// The thread that gets it, for `SIGEV_THREAD_ID`, as the sandbox sees it.
    pub thread: i32,
    /// Interval and time left.
    pub setting: TimerSetting,
}

/// All timers of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timers {
    /// The three interval timers.
    pub intervals: [TimerSetting; INTERVAL_TIMERS as usize],
    /// POSIX timers, lowest id first.
    pub posix: Vec<PosixTimer>,
}

/// Questions about timers in a batch.
#[derive(Debug)]
pub(crate) struct TimersQuery {
    intervals: [Output; INTERVAL_TIMERS as usize],
    posix: Vec<(PosixTimer, Output)>,
}

/// Lists the POSIX timers of a process, without their settings.
pub(crate) fn list(pid: Pid, buffer: &mut Vec<u8>) -> Result<Vec<PosixTimer>> {
    read_proc_file(&format!("/proc/{}/timers", pid.as_raw_nonzero()), buffer).map_err(kernel(pid, "list timers"))?;
    let malformed = Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the timers" };
    parse(&String::from_utf8_lossy(buffer)).ok_or(malformed)
}

fn parse(text: &str) -> Option<Vec<PosixTimer>> {
    let mut timers: Vec<PosixTimer> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(": ")?;
        match (key, timers.last_mut()) {
            ("ID", _) => timers.push(PosixTimer {
                id: value.parse().ok()?,
                clock: 0,
                notify: 0,
                signal: 0,
                value: 0,
                thread: 0,
                setting: [0; SETTING_BYTES],
            }),
            ("signal", Some(timer)) => {
                let (signal, value) = value.split_once('/')?;
                timer.signal = signal.parse().ok()?;
                timer.value = u64::from_str_radix(value, 16).ok()?;
            }
            ("notify", Some(timer)) => {
                let (kind, target) = value.split_once('/')?;
                timer.notify = match kind {
                    "signal" => libc::SIGEV_SIGNAL,
                    "none" => libc::SIGEV_NONE,
                    "thread" => libc::SIGEV_THREAD,
                    _ => return None,
                };
                if let Some(thread) = target.strip_prefix("tid.") {
                    timer.notify |= libc::SIGEV_THREAD_ID;
                    timer.thread = thread.parse().ok()?;
                }
            }
            ("ClockID", Some(timer)) => timer.clock = value.parse().ok()?,
            _ => {}
        }
    }
    timers.sort_by_key(|timer| timer.id);
    Some(timers)
}

impl TimersQuery {
    pub(crate) fn ask(batch: &mut Batch, posix: Vec<PosixTimer>) -> Self {
        let intervals = [0, 1, 2].map(|which| {
            let output = batch.output(SETTING_BYTES);
            batch.call(libc::SYS_getitimer, &[which, output.address]);
            output
        });
        let posix = posix
            .into_iter()
            .map(|timer| {
                let output = batch.output(SETTING_BYTES);
                batch.call(libc::SYS_timer_gettime, &[u64::from(timer.id), output.address]);
                (timer, output)
            })
            .collect();
        Self { intervals, posix }
    }

    pub(crate) fn read(&self, results: &BatchResults) -> Timers {
        let setting = |output: &Output| {
            let mut setting = [0; SETTING_BYTES];
            setting.copy_from_slice(results.output(*output));
            setting
        };
        Timers {
            intervals: self.intervals.each_ref().map(setting),
            posix: self
                .posix
                .iter()
                .map(|(timer, output)| PosixTimer { setting: setting(output), ..timer.clone() })
                .collect(),
        }
    }
}

/// Sets the interval timers, and makes and sets the POSIX timers in a process that has none.
/// They count from now.
pub(crate) fn restore(batch: &mut Batch, timers: &Timers) {
    let id = batch.output(8);
    let highest = timers.posix.last().map(|timer| timer.id);
    for number in 0..highest.map_or(0, |highest| highest + 1) {
        let timer = timers.posix.iter().find(|timer| timer.id == number);
        let clock = timer.map_or(0, |timer| i64::from(timer.clock)).cast_unsigned();
        let event = batch.data(&timer.map_or_else(silent_event, event));
        batch.call(libc::SYS_timer_create, &[clock, event, id.address]);
        if timer.is_none() {
            batch.call(libc::SYS_timer_delete, &[u64::from(number)]);
        }
    }
    arm(batch, timers);
}

/// Sets the timers of a process that has the same ones.
pub(crate) fn arm(batch: &mut Batch, timers: &Timers) {
    for timer in &timers.posix {
        let setting = batch.data(&timer.setting);
        batch.call(libc::SYS_timer_settime, &[u64::from(timer.id), 0, setting]);
    }
    for (which, setting) in (0..).zip(&timers.intervals) {
        let setting = batch.data(setting);
        batch.call(libc::SYS_setitimer, &[which, setting]);
    }
}

fn event(timer: &PosixTimer) -> [u8; EVENT_BYTES] {
    let mut event = [0; EVENT_BYTES];
    event[0..8].copy_from_slice(&timer.value.to_le_bytes());
    event[8..12].copy_from_slice(&timer.signal.to_le_bytes());
    event[12..16].copy_from_slice(&timer.notify.to_le_bytes());
    event[16..20].copy_from_slice(&timer.thread.to_le_bytes());
    event
}

fn silent_event() -> [u8; EVENT_BYTES] {
    let mut event = [0; EVENT_BYTES];
    event[12..16].copy_from_slice(&libc::SIGEV_NONE.to_le_bytes());
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_listed_by_id() {
        let text = "ID: 3\nsignal: 34/000000000000beef\nnotify: signal/tid.12\nClockID: 1\n\
            ID: 0\nsignal: 10/0000000000000007\nnotify: none/pid.12\nClockID: 0\n";
        let timers = parse(text).unwrap();
        assert_eq!((timers[0].id, timers[0].signal, timers[0].notify), (0, 10, libc::SIGEV_NONE));
        assert_eq!((timers[1].id, timers[1].clock, timers[1].value, timers[1].thread), (3, 1, 0xbeef, 12));
        assert_eq!(timers[1].notify, libc::SIGEV_THREAD_ID);
        assert_eq!(parse("ID: x"), None);
        assert!(parse("").unwrap().is_empty());
    }
}
