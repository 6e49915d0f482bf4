//! Which children the daemon wants to hear of, and the reaping of all.

use core::mem::MaybeUninit;

use brood_init_protocol::{Exited, Kind, TRACKED_PROCESSES_MAX};

use crate::control::Control;
use crate::sys::{linux, syscall};

/// The tool calls alive. A table without order: few are alive at a time, and it must not grow.
pub struct Processes {
    pids: &'static mut [u32; TRACKED_PROCESSES_MAX],
    count: usize,
}

impl Processes {
    /// An empty table. To be made once: it stands in static memory.
    pub fn new() -> Self {
        static mut TABLE: [u32; TRACKED_PROCESSES_MAX] = [0; TRACKED_PROCESSES_MAX];
        // SAFETY: this function is called once, from the only thread, so this is the only
        // reference.
        let pids = unsafe { (&raw mut TABLE).as_mut_unchecked() };
        Self { pids, count: 0 }
    }

    /// Whether there is no room for one more.
    pub fn is_full(&self) -> bool {
        self.count == TRACKED_PROCESSES_MAX
    }

    /// Takes note of a process; there must be room.
    pub fn track(&mut self, pid: u32) {
        if !self.contains(pid) {
            self.pids[self.count] = pid;
            self.count += 1;
        }
    }

    /// Whether it is a tool call that has not been reaped.
    pub fn contains(&self, pid: u32) -> bool {
        self.pids[..self.count].contains(&pid)
    }

    fn forget(&mut self, pid: u32) -> bool {
        let Some(index) = self.pids[..self.count].iter().position(|known| *known == pid) else {
            return false;
        };
        self.count -= 1;
        self.pids[index] = self.pids[self.count];
        true
    }

    /// Collects every dead child and reports those that are tracked.
    pub fn reap(&mut self, control: &Control) {
        loop {
            let mut status = 0i32;
            let mut usage = MaybeUninit::<linux::rusage>::zeroed();
            let flags = linux::WNOHANG | linux::__WALL;
            // SAFETY: both results outlive the call.
            let reaped = unsafe { syscall!(__NR_wait4, -1isize, &raw mut status, flags, usage.as_mut_ptr()) };
            let Some(pid) = reaped.ok().filter(|pid| *pid > 0) else { return };
            if self.forget(pid as u32) {
                // SAFETY: zeros are a valid `rusage`, and the kernel has filled it.
                let usage = unsafe { usage.assume_init() };
                let microseconds = |time: linux::__kernel_old_timeval| (time.tv_sec * 1_000_000 + time.tv_usec) as u64;
                let exited = Exited {
                    pid: pid as u32,
                    wait_status: status as u32,
                    cpu_us: microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
                    resident_peak_kib: usage.ru_maxrss as u64,
                };
                // A daemon that cannot be told is gone; the main loop finds that out next.
                let _ = control.send(Kind::Exited, 0, &exited.encode(), None);
            }
        }
    }
}
