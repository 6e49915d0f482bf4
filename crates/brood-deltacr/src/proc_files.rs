//! What `/proc` tells of a process: parsers for the files that a capture reads.
//!
//! Names and arguments in them come from inside the sandbox; parsers fail, they don't panic.

use brood_kernel::maps::read_proc_file;
use rustix::process::Pid;

use crate::error::{Error, Result, kernel};

/// Five capability sets, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapabilitySets {
    /// Kept across execution of files that ask for them.
    pub inheritable: u64,
    /// What may be made effective.
    pub permitted: u64,
    /// What is checked.
    pub effective: u64,
    /// The upper bound.
    pub bounding: u64,
    /// Kept across execution of ordinary programs.
    pub ambient: u64,
}

/// The parts of `/proc/PID/status` (or of a thread's) that a capture uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Name of the thread, escaped as the kernel does.
    pub name: String,
    /// State letter: R, S, D, T, t, Z, X.
    pub state: char,
    /// Parent, as the host sees it.
    pub parent: i32,
    /// Tracer, as the host sees it; zero if there is none.
    pub tracer: i32,
    /// Thread id in the innermost namespace, and how many namespaces deep it lies.
    pub inside: (i32, usize),
    /// Process group in the innermost namespace.
    pub group: i32,
    /// Session in the innermost namespace; zero if it lies outside.
    pub session: i32,
    /// Bits of the file creation mask.
    pub umask: u32,
    /// Capability sets.
    pub capabilities: CapabilitySets,
    /// Signals with a handler, as bits.
    pub caught: u64,
    /// Signals ignored, as bits.
    pub ignored: u64,
    /// Programs gain no privileges by execution.
    pub no_new_privileges: bool,
    /// 0 none, 1 strict, 2 filters.
    pub seccomp: u32,
    /// Number of threads.
    pub threads: usize,
    /// The lines about user, groups, capabilities, privileges and filters, as they stand: what a
    /// process can't take back once it gave it up.
    pub identity: String,
}

/// Keys of the lines that make up [`Status::identity`].
const IDENTITY_KEYS: [&str; 11] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
];

/// Reads `status` of a task: of a process, or of `/proc/PID/task/TID`.
///
/// # Errors
/// If the task is gone or the file isn't understood.
pub fn status(pid: Pid, tid: Pid, buffer: &mut Vec<u8>) -> Result<Status> {
    let path = format!("/proc/{}/task/{}/status", pid.as_raw_nonzero(), tid.as_raw_nonzero());
    read_proc_file(&path, buffer).map_err(kernel(tid, "read the status"))?;
    let text = String::from_utf8_lossy(buffer);
    parse_status(&text).ok_or(Error::Malformed { pid: tid.as_raw_nonzero().get(), what: "the status" })
}

fn parse_status(text: &str) -> Option<Status> {
    let mut status = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim_start();
        let last = || value.split_ascii_whitespace().next_back()?.parse::<i32>().ok();
        let bits = || u64::from_str_radix(value.trim(), 16).ok();
        match key {
            "Name" => status.name = value.to_owned(),
            "State" => status.state = value.chars().next()?,
            "PPid" => status.parent = last()?,
            "TracerPid" => status.tracer = last()?,
            "NSpid" => status.inside = (last()?, value.split_ascii_whitespace().count()),
            "NSpgid" => status.group = last()?,
            "NSsid" => status.session = last()?,
            "Umask" => status.umask = u32::from_str_radix(value.trim(), 8).ok()?,
            "CapInh" => status.capabilities.inheritable = bits()?,
            "CapPrm" => status.capabilities.permitted = bits()?,
            "CapEff" => status.capabilities.effective = bits()?,
            "CapBnd" => status.capabilities.bounding = bits()?,
            "CapAmb" => status.capabilities.ambient = bits()?,
            "SigCgt" => status.caught = bits()?,
            "SigIgn" => status.ignored = bits()?,
            "NoNewPrivs" => status.no_new_privileges = last()? != 0,
            "Seccomp" => status.seccomp = last()?.unsigned_abs(),
            "Threads" => status.threads = usize::try_from(last()?).ok()?,
            _ => {}
        }
        if IDENTITY_KEYS.contains(&key) {
            status.identity.push_str(line);
            status.identity.push('\n');
        }
    }
    (status.inside.0 != 0).then_some(status)
}

/// The parts of `/proc/PID/stat` that a capture uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stat {
    /// State letter.
    pub state: char,
    /// Process group, as the host sees it.
    pub group: i32,
    /// Number of the controlling terminal's device; zero if there is none.
    pub terminal: u64,
    /// Group in its foreground, as the host sees it; -1 if there is none.
    pub foreground: i32,
    /// Start time in clock ticks since boot: with the pid, this names a process for ever.
    pub start_time: u64,
    /// Start and end of code.
    pub code: (u64, u64),
    /// Bottom of the initial stack.
    pub stack: u64,
    /// Start and end of data.
    pub data: (u64, u64),
    /// Start of the heap.
    pub heap_start: u64,
    /// Start and end of the arguments.
    pub arguments: (u64, u64),
    /// Start and end of the environment.
    pub environment: (u64, u64),
    /// Wait status of a zombie.
    pub exit_status: i32,
}

/// Reads `stat` of a process.
///
/// # Errors
/// If the process is gone or the file isn't understood.
pub fn stat(pid: Pid, buffer: &mut Vec<u8>) -> Result<Stat> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    read_proc_file(&path, buffer).map_err(kernel(pid, "read the state"))?;
    parse_stat(&String::from_utf8_lossy(buffer))
        .ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the state" })
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name, in parentheses, may itself contain parentheses and spaces.
    let rest = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Fields are counted from 1 in proc(5); the first behind the name is number 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        group: fields.get(5 - 3)?.parse().ok()?,
        terminal: number(7)?,
        foreground: fields.get(8 - 3)?.parse().ok()?,
        start_time: number(22)?,
        code: (number(26)?, number(27)?),
        stack: number(28)?,
        data: (number(45)?, number(46)?),
        heap_start: number(47)?,
        arguments: (number(48)?, number(49)?),
        environment: (number(50)?, number(51)?),
        exit_status: fields.get(52 - 3)?.parse().ok()?,
    })
}

/// Lists numbered entries of a `/proc` directory, such as tasks or descriptors, in order.
///
/// # Errors
/// If the process is gone.
pub fn numbered_entries(pid: Pid, directory: &'static str) -> Result<Vec<i32>> {
    let failed = |error: std::io::Error| {
        let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        kernel(pid, "list tasks or descriptors")(source)
    };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/{directory}", pid.as_raw_nonzero())).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Lists the children of all threads of a process.
///
/// # Errors
/// If the file isn't understood. A process that is gone has no children.
pub fn children(pid: Pid, buffer: &mut Vec<u8>) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    let Ok(tasks) = numbered_entries(pid, "task") else { return Ok(found) };
    for tid in tasks {
        let path = format!("/proc/{}/task/{tid}/children", pid.as_raw_nonzero());
        if read_proc_file(&path, buffer).is_err() {
            continue;
        }
        for number in buffer.split(|byte| *byte == b' ').filter(|number| !number.is_empty()) {
            let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            let child = number.and_then(Pid::from_raw);
            found.push(child.ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "the children" })?);
        }
    }
    Ok(found)
}

/// The body of `/proc/PID/fdinfo/N`, line by line as keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DescriptorInformation {
    /// Offset in the file.
    pub position: u64,
    /// Flags as in open(2), with O_CLOEXEC for the descriptor's own flag.
    pub flags: u32,
    /// Lines of the particular kind of file.
    pub lines: Vec<(String, String)>,
}

impl DescriptorInformation {
    /// The value of the first line with a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.lines.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Reads what the kernel tells of a descriptor.
///
/// # Errors
/// If the descriptor is gone or the file isn't understood.
pub fn descriptor_information(pid: Pid, descriptor: i32, buffer: &mut Vec<u8>) -> Result<DescriptorInformation> {
    let path = format!("/proc/{}/fdinfo/{descriptor}", pid.as_raw_nonzero());
    read_proc_file(&path, buffer).map_err(kernel(pid, "read a descriptor"))?;
    parse_descriptor(&String::from_utf8_lossy(buffer))
        .ok_or(Error::Malformed { pid: pid.as_raw_nonzero().get(), what: "a descriptor" })
}

fn parse_descriptor(text: &str) -> Option<DescriptorInformation> {
    let mut information = DescriptorInformation::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "pos" => information.position = value.parse::<i64>().ok()?.cast_unsigned(),
            "flags" => information.flags = u32::from_str_radix(value, 8).ok()?,
            _ => information.lines.push((key.trim().to_owned(), value.to_owned())),
        }
    }
    Some(information)
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;

    use super::*;

    #[test]
    fn this_process_is_understood() {
        let mut buffer = Vec::new();
        let me = rustix::process::getpid();
        let status = status(me, me, &mut buffer).unwrap();
        assert_eq!(status.inside.0, me.as_raw_nonzero().get());
        assert!(status.threads >= 1);
        let stat = stat(me, &mut buffer).unwrap();
        assert!(stat.start_time > 0 && stat.code.0 < stat.code.1 && stat.environment.0 <= stat.environment.1);
        let information = descriptor_information(me, 0, &mut buffer).unwrap();
        assert!(information.value("mnt_id").is_some());
    }

    #[test]
    fn a_session_is_told_by_its_leader() {
        // This process's own session may lie outside of its process-id namespace, and is 0 then.
        let mut command = std::process::Command::new("setsid");
        let mut child = command
            .args(["sh", "-c", "echo ready; cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_child(&child);
        let status = status(pid, pid, &mut Vec::new()).unwrap();
        assert_eq!((status.session, status.group), (pid.as_raw_nonzero().get(), pid.as_raw_nonzero().get()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn hostile_names_do_not_shift_fields() {
        let tail = "S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0 0 10 20 30 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 \
            40 50 60 70 80 90 100 256";
        let stat = parse_stat(&format!("12 (a) Z 9 (b) {tail}")).unwrap();
        assert_eq!((stat.state, stat.start_time, stat.exit_status), ('S', 777, 256));
        assert_eq!((stat.code, stat.heap_start), ((10, 20), 60));
        assert_eq!(parse_stat("12 (a"), None);
        assert_eq!(parse_status("Name:\tx\n"), None);
    }

    #[test]
    fn children_of_this_process_are_listed() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut buffer = Vec::new();
        let found = children(rustix::process::getpid(), &mut buffer).unwrap();
        assert!(found.contains(&Pid::from_child(&child)));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
