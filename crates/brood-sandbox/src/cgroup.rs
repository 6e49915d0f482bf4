//! Control groups: what a sandbox may use, what it used, and the end of all that a call started.
//!
//! ```text
//! <version 2>/brood/<sandbox>/          PID 1; limits where version 2 has the controllers
//! <version 2>/brood/<sandbox>/c<n>/     one tool call and everything that it started
//! <version 1, each controller>/brood/<sandbox>/   limits on hosts that bind controllers to version 1
//! ```
//!
//! PID 1 is born in its version 2 group (`CLONE_INTO_CGROUP`); moving a process costs milliseconds
//! there, because the kernel waits for all processors. Version 1 knows no other way, so on such
//! hosts the version 2 hierarchy is switched to `favordynmods` (Linux 6.0), which makes moves of
//! all hierarchies cheap.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::SandboxId;
use crate::model::ResourceLimits;

/// Length of a period in which a share of processor time is counted, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// One limit or account, and the directory of the hierarchy that has it.
#[derive(Debug, Clone)]
enum Controller {
    /// In the version 2 hierarchy.
    Unified,
    /// In a version 1 hierarchy mounted here.
    Version1(PathBuf),
}

/// The host's hierarchies, and our directory in each.
#[derive(Debug)]
pub(crate) struct CgroupRoot {
    unified: PathBuf,
    memory: Controller,
    cpu: Controller,
    cpuacct: Controller,
    pids: Controller,
}

/// Reads `/proc/self/mountinfo`; each line's mount point, kind and super options.
fn cgroup_mounts(mountinfo: &str) -> impl Iterator<Item = (PathBuf, &str, &str)> {
    mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let mut after = after.split(' ');
        let kind = after.next().filter(|kind| kind.starts_with("cgroup"))?;
        Some((PathBuf::from(point), kind, after.nth(1)?))
    })
}

impl CgroupRoot {
    /// Finds the hierarchies and makes a directory called `name` in each.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")
            .map_err(|error| EngineError::system("cannot read /proc/self/mountinfo", error))?;
        let unified_mount = cgroup_mounts(&mountinfo).find(|(_, kind, _)| *kind == "cgroup2").ok_or_else(|| {
            let remedy = "no cgroup2 file system is mounted: mount it with \
                          `mount -t cgroup2 none /sys/fs/cgroup` (or /sys/fs/cgroup/unified on hybrid hosts)";
            EngineError::new(ErrorKind::Unsupported, remedy)
        })?;
        let (unified_point, _, unified_options) = unified_mount;
        let available = fs::read_to_string(unified_point.join("cgroup.controllers")).unwrap_or_default();
        let locate = |controller: &str| {
            if available.split_whitespace().any(|found| found == controller) {
                return Ok(Controller::Unified);
            }
            let version1 = cgroup_mounts(&mountinfo)
                .find(|(_, kind, options)| *kind == "cgroup" && options.split(',').any(|option| option == controller));
            version1.map(|(point, ..)| Controller::Version1(point.join(name))).ok_or_else(|| {
                let message = format!("the host has no {controller} control group controller: enable it in the kernel");
                EngineError::new(ErrorKind::Unsupported, message)
            })
        };
        let root = Self {
            unified: unified_point.join(name),
            memory: locate("memory")?,
            cpu: locate("cpu")?,
            // Version 2 accounts processor time in every group without a controller.
            cpuacct: locate("cpuacct").unwrap_or(Controller::Unified),
            pids: locate("pids")?,
        };
        root.prepare(&unified_point, unified_options)?;
        Ok(root)
    }

    fn prepare(&self, unified_point: &Path, unified_options: &str) -> Result<()> {
        let directories = std::iter::once(&self.unified).chain(self.version1());
        for directory in directories {
            make_directory(directory)?;
        }
        let wanted = [("memory", &self.memory), ("cpu", &self.cpu), ("pids", &self.pids)];
        for (name, controller) in wanted {
            if matches!(controller, Controller::Unified) {
                for parent in [unified_point, &self.unified] {
                    write(&parent.join("cgroup.subtree_control"), &format!("+{name}"))?;
                }
            }
        }
        if self.version1().next().is_some() {
            favor_dynamic_changes(unified_point, unified_options);
        }
        Ok(())
    }

    fn version1(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.memory, &self.cpu, &self.cpuacct, &self.pids].into_iter().filter_map(|controller| match controller {
            Controller::Version1(path) => Some(path),
            Controller::Unified => None,
        })
    }

    /// Kills and removes what an earlier daemon left. How many sandboxes that were.
    pub(crate) fn remove_leftovers(&self) -> usize {
        let mut found = 0;
        let directories = std::iter::once(&self.unified).chain(self.version1());
        for directory in directories {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found += usize::from(directory == &self.unified);
                    let _unused = fs::write(entry.path().join("cgroup.kill"), "1");
                    remove_tree(&entry.path());
                }
            }
        }
        found
    }

    /// Removes our directories; for a clean end.
    pub(crate) fn remove(&self) {
        for directory in std::iter::once(&self.unified).chain(self.version1()) {
            let _unused = fs::remove_dir(directory);
        }
    }
}

/// Switches the version 2 hierarchy to cheap moves. What it had set before stays set, since a
/// reconfiguration replaces all options.
fn favor_dynamic_changes(point: &Path, options: &str) {
    if options.split(',').any(|option| option == "favordynmods") {
        return;
    }
    let kept = options.split(',').filter(|option| !matches!(*option, "rw" | "ro"));
    let reconfigured = (|| {
        let context = rustix::mount::fspick(rustix::fs::CWD, point, rustix::mount::FsPickFlags::FSPICK_CLOEXEC)?;
        for option in kept.chain(["favordynmods"]) {
            rustix::mount::fsconfig_set_flag(context.as_fd(), option)?;
        }
        rustix::mount::fsconfig_reconfigure(context.as_fd())
    })();
    match reconfigured {
        Ok(()) => {
            tracing::info!(hierarchy = %point.display(), "favordynmods switched on: creating sandboxes stays fast")
        }
        Err(error) => tracing::warn!(%error, "favordynmods is not to be had: creating a sandbox may take 10 ms longer"),
    }
}

/// The groups of one sandbox. They are removed by [`remove`](Self::remove), not on drop, because
/// that needs the processes gone.
#[derive(Debug)]
pub(crate) struct SandboxCgroup {
    unified: PathBuf,
    directory: OwnedFd,
    memory: PathBuf,
    memory_is_unified: bool,
    cpuacct: PathBuf,
    cpuacct_is_unified: bool,
    pids: PathBuf,
    /// Version 1 directories that PID 1 has to be moved to.
    version1: Vec<PathBuf>,
    owner: u32,
}

impl SandboxCgroup {
    /// Makes the groups and sets the limits. `owner` is the host id of the root inside: PID 1 may
    /// start children in the calls' groups.
    pub(crate) fn create(root: &CgroupRoot, id: &SandboxId, limits: &ResourceLimits, owner: u32) -> Result<Self> {
        let unified = root.unified.join(id.as_str());
        let place = |controller: &Controller| match controller {
            Controller::Unified => unified.clone(),
            Controller::Version1(path) => path.join(id.as_str()),
        };
        make_directory(&unified)?;
        let version1: Vec<PathBuf> = root.version1().map(|path| path.join(id.as_str())).collect();
        let made = version1.iter().try_for_each(|path| make_directory(path));
        let opened = made.and_then(|()| open_directory(&unified));
        let directory = match opened {
            Ok(directory) => directory,
            Err(error) => {
                version1.iter().chain([&unified]).for_each(|path| remove_tree(path));
                return Err(error);
            }
        };
        let (cpu, cpu_is_unified) = (place(&root.cpu), matches!(root.cpu, Controller::Unified));
        let group = Self {
            directory,
            memory: place(&root.memory),
            memory_is_unified: matches!(root.memory, Controller::Unified),
            cpuacct: place(&root.cpuacct),
            cpuacct_is_unified: matches!(root.cpuacct, Controller::Unified),
            pids: place(&root.pids),
            version1,
            owner,
            unified: unified.clone(),
        };
        group.set_limits(limits, &cpu, cpu_is_unified).inspect_err(|_error| group.remove())?;
        Ok(group)
    }

    fn set_limits(&self, limits: &ResourceLimits, cpu: &Path, cpu_is_unified: bool) -> Result<()> {
        let memory = limits.memory_bytes.to_string();
        if self.memory_is_unified {
            write(&self.memory.join("memory.max"), &memory)?;
            // Swap would let a sandbox use more than its limit; a kernel without swap lacks the file.
            write_if_there(&self.memory.join("memory.swap.max"), "0")?;
        } else {
            write(&self.memory.join("memory.limit_in_bytes"), &memory)?;
            write_if_there(&self.memory.join("memory.memsw.limit_in_bytes"), &memory)?;
        }
        write(&self.pids.join("pids.max"), &limits.pids.to_string())?;
        if let Some(cpus) = limits.cpus {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "validated to be 0.01 to 4096")]
            let quota = (cpus * CPU_PERIOD_US as f64) as u64;
            if cpu_is_unified {
                write(&cpu.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?;
            } else {
                write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        // The kernel asks for write access to the group of both ends and to their common parent.
        self.give_to_owner(&self.unified)
    }

    fn give_to_owner(&self, directory: &Path) -> Result<()> {
        let path = directory.join("cgroup.procs");
        std::os::unix::fs::chown(&path, Some(self.owner), None)
            .map_err(|error| EngineError::system(format!("cannot change the owner of {}", path.display()), error))
    }

    /// The version 2 group that PID 1 is born in.
    pub(crate) fn birth_group(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Moves a process to the version 1 groups.
    pub(crate) fn adopt(&self, pid: Pid) -> Result<()> {
        let text = pid.as_raw_nonzero().to_string();
        self.version1.iter().try_for_each(|path| write(&path.join("cgroup.procs"), &text))
    }

    /// Makes the group of a tool call.
    pub(crate) fn create_call(&self, number: u32) -> Result<CallCgroup> {
        let path = self.unified.join(format!("c{number}"));
        make_directory(&path)?;
        let made = open_directory(&path).and_then(|directory| self.give_to_owner(&path).map(|()| directory));
        match made {
            Ok(directory) => Ok(CallCgroup { path, directory, was_killed: AtomicBool::new(false) }),
            Err(error) => {
                remove_tree(&path);
                Err(error)
            }
        }
    }

    /// Bytes charged now.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let name = if self.memory_is_unified { "memory.current" } else { "memory.usage_in_bytes" };
        read_number(&self.memory.join(name))
    }

    /// Highest value of that.
    pub(crate) fn memory_peak_bytes(&self) -> Result<u64> {
        let name = if self.memory_is_unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        read_number(&self.memory.join(name))
    }

    /// Processes that the kernel killed because the memory was used up.
    pub(crate) fn out_of_memory_kills(&self) -> Result<u64> {
        let name = if self.memory_is_unified { "memory.events" } else { "memory.oom_control" };
        read_field(&self.memory.join(name), "oom_kill")
    }

    /// Processor time, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<u64> {
        if self.cpuacct_is_unified {
            read_field(&self.cpuacct.join("cpu.stat"), "usage_usec")
        } else {
            Ok(read_number(&self.cpuacct.join("cpuacct.usage"))? / 1000)
        }
    }

    /// Tasks alive.
    pub(crate) fn pids(&self) -> Result<u32> {
        let count = read_number(&self.pids.join("pids.current"))?;
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Removes the groups; the processes must be gone.
    pub(crate) fn remove(&self) {
        for path in self.version1.iter().chain([&self.unified]) {
            remove_tree(path);
        }
    }
}

/// The group of one tool call.
///
/// Once killed, a group is of no more use: the kernel tells processes born before a kill from those
/// born after it by a counter, which it takes from the parent's group where a child is born
/// directly into another one, so that every later child is killed at birth (seen on Linux 6.18).
#[derive(Debug)]
pub(crate) struct CallCgroup {
    path: PathBuf,
    directory: OwnedFd,
    was_killed: AtomicBool,
}

impl CallCgroup {
    /// Kills everything that the call started.
    pub(crate) fn kill(&self) -> Result<()> {
        self.was_killed.store(true, Ordering::Release);
        write(&self.path.join("cgroup.kill"), "1")
    }

    /// Moves a process here.
    pub(crate) fn adopt(&self, pid: Pid) -> Result<()> {
        write(&self.path.join("cgroup.procs"), &pid.as_raw_nonzero().to_string())
    }

    /// Whether another call can be born in it.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.was_killed.load(Ordering::Acquire)
    }

    /// Removes it; the processes must be gone.
    pub(crate) fn remove(&self) {
        remove_tree(&self.path);
    }

    /// Whether something that the call started is still alive.
    pub(crate) fn is_populated(&self) -> bool {
        read_field(&self.path.join("cgroup.events"), "populated").is_ok_and(|populated| populated == 1)
    }
}

impl AsFd for CallCgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(EngineError::system(format!("cannot make the control group {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| EngineError::system(format!("cannot open {}", path.display()), error))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |error| EngineError::system(format!("cannot write {text:?} to {}", path.display()), error);
    // One `write` on an existing file: control files know neither creation nor truncation.
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| failed(e.into()))?;
    rustix::io::write(&file, text.as_bytes()).map(|_written| ()).map_err(|error| failed(io::Error::from(error)))
}

fn write_if_there(path: &Path, text: &str) -> Result<()> {
    if path.exists() { write(path, text) } else { Ok(()) }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| EngineError::system(format!("cannot read {}", path.display()), error))
}

fn malformed(path: &Path) -> EngineError {
    EngineError::new(ErrorKind::Internal, format!("{} does not hold what it should", path.display()))
}

fn read_number(path: &Path) -> Result<u64> {
    read(path)?.trim().parse().map_err(|_error| malformed(path))
}

/// The number behind `name` in a file of `name number` lines.
fn read_field(path: &Path, name: &str) -> Result<u64> {
    let text = read(path)?;
    let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    field.ok_or_else(|| malformed(path))
}

/// Removes a group with its children, deepest first. A group that still has dying processes is
/// tried again for a moment: the kernel lets go of them shortly after their parent saw the end.
fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    for attempt in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                // There is no event for "the last zombie left a group" in version 1.
                std::thread::sleep(std::time::Duration::from_micros(50 << attempt.min(8)));
            }
            _ => return,
        }
    }
    tracing::error!(group = %path.display(), "a control group cannot be removed: a process in it does not die");
}

/// About two seconds in all.
const REMOVE_ATTEMPTS: u32 = 160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_hosts_are_understood() {
        let text = "25 1 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:1 - cgroup cgroup rw,cpu,cpuacct\n\
                    26 1 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
                    27 1 8:1 / / rw - ext4 /dev/sda rw\n";
        let mounts: Vec<_> = cgroup_mounts(text).collect();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0], (PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), "cgroup", "rw,cpu,cpuacct"));
        assert_eq!(mounts[1].1, "cgroup2");
    }

    #[test]
    fn a_sandbox_has_limits_and_leaves_nothing() {
        let name = format!("brood-test-{}", std::process::id());
        let root = CgroupRoot::open(&name).unwrap();
        let id = SandboxId::random();
        let limits = ResourceLimits { memory_bytes: 64 << 20, pids: 7, cpus: Some(0.5), disk_bytes: None };
        let group = SandboxCgroup::create(&root, &id, &limits, 100_000_000).unwrap();
        assert_eq!(read_number(&group.pids.join("pids.max")).unwrap(), 7);
        assert_eq!(group.out_of_memory_kills().unwrap(), 0);
        let call = group.create_call(0).unwrap();
        assert!(!call.is_populated());
        call.kill().unwrap();
        drop(call);
        assert_eq!(root.remove_leftovers(), 1);
        root.remove();
        let left = std::iter::once(&root.unified).chain(root.version1()).filter(|path| path.exists()).count();
        assert_eq!(left, 0);
    }
}
