//! Timers that are read (timerfd).

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::proc_files::DescriptorInformation;

/// A timer that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerDescriptor {
    /// Number of the clock that it counts.
    pub clock: i32,
    /// Expirations that nobody has read yet.
    pub ticks: u64,
    /// Interval in seconds and nanoseconds; zeros if it fires once.
    pub interval: (i64, i64),
    /// Time left in seconds and nanoseconds; zeros if it isn't armed.
    pub left: (i64, i64),
}

/// The shortest time that still arms a timer.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 1 };

impl TimerDescriptor {
    pub(crate) fn capture(information: &DescriptorInformation) -> Option<Self> {
        Some(Self {
            clock: information.value("clockid")?.parse().ok()?,
            ticks: information.value("ticks")?.parse().ok()?,
            interval: pair(information.value("it_interval")?)?,
            left: pair(information.value("it_value")?)?,
        })
    }

    /// Makes a timer that counts the rest of the time from now. Expirations that nobody had
    /// read make it fire at once.
    pub(crate) fn make(&self) -> Result<OwnedFd, Errno> {
        let clock = match self.clock {
            libc::CLOCK_REALTIME => TimerfdClockId::Realtime,
            libc::CLOCK_MONOTONIC => TimerfdClockId::Monotonic,
            libc::CLOCK_BOOTTIME => TimerfdClockId::Boottime,
            _ => return Err(Errno::INVAL),
        };
        let timer = timerfd_create(clock, TimerfdFlags::CLOEXEC)?;
        let left = Timespec { tv_sec: self.left.0, tv_nsec: self.left.1 };
        let interval = Timespec { tv_sec: self.interval.0, tv_nsec: self.interval.1 };
        // A periodic timer without time left is about to fire, or has and was not read.
        let is_due = self.ticks > 0 || (self.left == (0, 0) && self.interval != (0, 0));
        let value = if is_due { SOON } else { left };
        let setting = Itimerspec { it_interval: interval, it_value: value };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(timer)
    }
}

/// Parses `(seconds, nanoseconds)`.
fn pair(text: &str) -> Option<(i64, i64)> {
    let (seconds, nanoseconds) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some((seconds.trim().parse().ok()?, nanoseconds.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_timer_keeps_its_interval_and_the_time_left() {
        let image = TimerDescriptor { clock: libc::CLOCK_MONOTONIC, ticks: 0, interval: (3, 5), left: (1000, 0) };
        let timer = image.make().unwrap();
        let me = rustix::process::getpid();
        let information = crate::proc_files::descriptor_information(me, timer.as_raw_fd(), &mut Vec::new()).unwrap();
        let seen = TimerDescriptor::capture(&information).unwrap();
        assert_eq!((seen.clock, seen.interval, seen.left.0), (libc::CLOCK_MONOTONIC, (3, 5), 999));
    }

    #[test]
    fn unread_expirations_are_not_lost() {
        let image = TimerDescriptor { clock: libc::CLOCK_MONOTONIC, ticks: 2, interval: (0, 0), left: (0, 0) };
        let timer = image.make().unwrap();
        let mut ticks = [0; 8];
        rustix::io::read(&timer, &mut ticks).unwrap();
        assert_eq!(u64::from_ne_bytes(ticks), 1);
    }
}
