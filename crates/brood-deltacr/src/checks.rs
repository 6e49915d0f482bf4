//! What can be said about a tree without looking at mappings and descriptors: relations and
//! modes that no copy could have.

use std::cmp::Ordering;

use brood_kernel::kcmp;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{RefusalKind, Result, kernel};
use crate::refusal::refuse;
use crate::timers;
use crate::tree::StoppedProcess;

/// Segment of 64-bit code.
const CODE_SEGMENT_64: u64 = 0x33;
/// Namespaces that every process must share with PID 1.
const NAMESPACES: [&str; 7] = ["user", "mnt", "net", "ipc", "uts", "pid", "cgroup"];

/// Refuses what can't be captured, before anything is touched.
pub(crate) fn check(processes: &[StoppedProcess], init: Pid) -> Result<()> {
    let mut buffer = Vec::new();
    let namespaces = namespaces_of(init)?;
    for process in processes {
        let refused = |kind, reason: String| Err(refuse(process, None, kind, reason));
        if process.status.session == 0 || process.status.group == 0 {
            return refused(RefusalKind::Process, "its session or group lies outside the sandbox".into());
        }
        if process.is_zombie() {
            continue;
        }
        if process.status.state == 'Z' {
            return refused(RefusalKind::Process, "its first thread has ended before the others".into());
        }
        if process.threads.iter().any(|thread| thread.registers.cs != CODE_SEGMENT_64) {
            return refused(RefusalKind::Process, "it runs 32-bit code".into());
        }
        if process.status.seccomp == 1 {
            return refused(RefusalKind::Seccomp, "strict mode".into());
        }
        let own = namespaces_of(process.pid)?;
        if let Some((_, name)) = own.iter().zip(NAMESPACES).find(|(own, _)| !namespaces.contains(own)) {
            return refused(RefusalKind::Namespace, format!("it has a {name} namespace of its own"));
        }
        for timer in timers::list(process.pid, &mut buffer)? {
            if timer.id > timers::TIMER_ID_MAX || timer.clock < 0 {
                return refused(RefusalKind::Signal, format!("timer {} on clock {}", timer.id, timer.clock));
            }
        }
    }
    check_sharing(processes)
}

fn namespaces_of(pid: Pid) -> Result<Vec<Vec<u8>>> {
    let read = |name: &&str| {
        let path = format!("/proc/{}/ns/{name}", pid.as_raw_nonzero());
        let link = rustix::fs::readlink(path, Vec::new()).map_err(kernel(pid, "read namespaces"))?;
        Ok(link.into_bytes())
    };
    NAMESPACES.iter().map(read).collect()
}

/// Refuses processes that share what only threads may share here.
fn check_sharing(processes: &[StoppedProcess]) -> Result<()> {
    let mut alive: Vec<&StoppedProcess> = processes.iter().filter(|process| !process.is_zombie()).collect();
    for (compare, what) in [
        (kcmp::address_spaces as fn(Pid, Pid) -> std::result::Result<Ordering, Errno>, "memory"),
        (kcmp::descriptor_tables, "descriptors"),
    ] {
        let mut failed = None;
        alive.sort_by(|one, other| {
            compare(one.pid, other.pid).unwrap_or_else(|error| {
                failed = Some((one.pid, error));
                Ordering::Less
            })
        });
        if let Some((pid, error)) = failed {
            return Err(kernel(pid, "compare processes")(error));
        }
        for pair in alive.windows(2) {
            if compare(pair[0].pid, pair[1].pid) == Ok(Ordering::Equal) {
                let reason = format!("it shares its {what} with process {}", pair[1].inside);
                return Err(refuse(pair[0], None, RefusalKind::Process, reason));
            }
        }
    }
    Ok(())
}
