//! Whether memory is short.

use std::time::Duration;

/// What the host says about its memory at a moment.
#[derive(Clone, Copy, Debug)]
pub struct MemoryReading {
    /// Memory available without swapping, in percent of all.
    pub available_percent: f64,
    /// Share of the last ten seconds in which some task waited for memory, in percent ("some avg10" of pressure stall
    /// information).
    pub stalled_percent: f64,
}

/// How short memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is enough.
    #[default]
    Relaxed,
    /// Idle sandboxes of the policy `pressure` are squeezed.
    Short,
    /// Busy sandboxes are squeezed too, gently.
    Critical,
}

/// Where a level begins and where it ends. Between the two bounds it stays as it was.
struct Bounds {
    enter_available: f64,
    leave_available: f64,
    enter_stalled: f64,
    leave_stalled: f64,
}

const SHORT: Bounds = Bounds { enter_available: 20.0, leave_available: 30.0, enter_stalled: 5.0, leave_stalled: 1.0 };
const CRITICAL: Bounds =
    Bounds { enter_available: 8.0, leave_available: 14.0, enter_stalled: 25.0, leave_stalled: 8.0 };

/// A level is kept at least so long before it is lowered: reclaiming shows in the readings only after a while.
const MIN_STAY: Duration = Duration::from_secs(3);

/// Turns readings into a level that doesn't flap.
#[derive(Clone, Debug, Default)]
pub struct PressureGate {
    level: Level,
    since: Duration,
}

impl PressureGate {
    /// Hears a reading; returns the level from now on. Rising is immediate, falling goes one step at a time.
    pub fn update(&mut self, now: Duration, reading: MemoryReading) -> Level {
        let enters = |bounds: &Bounds| {
            reading.available_percent < bounds.enter_available || reading.stalled_percent > bounds.enter_stalled
        };
        let leaves = |bounds: &Bounds| {
            reading.available_percent > bounds.leave_available && reading.stalled_percent < bounds.leave_stalled
        };
        let may_fall = now.saturating_sub(self.since) >= MIN_STAY;
        let next = match self.level {
            _ if enters(&CRITICAL) => Level::Critical,
            Level::Critical if may_fall && leaves(&CRITICAL) => Level::Short,
            Level::Critical => Level::Critical,
            _ if enters(&SHORT) => Level::Short,
            Level::Short if may_fall && leaves(&SHORT) => Level::Relaxed,
            level => level,
        };
        if next != self.level {
            (self.level, self.since) = (next, now);
        }
        next
    }

    /// The level at present.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(available_percent: f64, stalled_percent: f64) -> MemoryReading {
        MemoryReading { available_percent, stalled_percent }
    }

    #[test]
    fn readings_around_a_bound_change_the_level_once() {
        let mut gate = PressureGate::default();
        let mut changes = 0;
        let mut last = Level::Relaxed;
        for second in 0..100 {
            let level =
                gate.update(Duration::from_secs(second), reading(20.0 + f64::from(second as u32 % 3) - 1.0, 0.0));
            changes += usize::from(level != last);
            last = level;
        }
        assert_eq!((changes, last), (1, Level::Short));
    }

    #[test]
    fn rising_is_immediate_and_falling_takes_its_time() {
        let mut gate = PressureGate::default();
        assert_eq!(gate.update(Duration::ZERO, reading(50.0, 40.0)), Level::Critical);
        assert_eq!(gate.update(Duration::from_secs(1), reading(90.0, 0.0)), Level::Critical);
        assert_eq!(gate.update(Duration::from_secs(4), reading(90.0, 0.0)), Level::Short);
        assert_eq!(gate.update(Duration::from_secs(5), reading(90.0, 0.0)), Level::Short);
        assert_eq!(gate.update(Duration::from_secs(8), reading(90.0, 0.0)), Level::Relaxed);
        assert_eq!(gate.update(Duration::from_secs(9), reading(15.0, 0.0)), Level::Short);
    }
}
