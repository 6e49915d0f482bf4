//! Who a process is: its number inside the sandbox, its program.

use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;

use brood_kernel::maps::read_proc_file;
use rustix::process::Pid;
use xxhash_rust::xxh3::Xxh3Default;

/// The process' number in the innermost namespace; none if it is gone.
pub(crate) fn number_inside(pid: Pid) -> Option<i32> {
    let mut text = Vec::new();
    read_proc_file(&format!("/proc/{}/status", pid.as_raw_nonzero()), &mut text).ok()?;
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().last()?.parse().ok()
}

/// A hash of executable and arguments, equal for siblings that were started alike. What is hashed comes from inside the
/// sandbox; a collision only makes two kinds of processes share references.
pub(crate) fn hash(pid: Pid) -> u64 {
    let mut hasher = Xxh3Default::new();
    if let Ok(path) = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())) {
        hasher.write(path.as_os_str().as_bytes());
    }
    let mut arguments = Vec::new();
    if read_proc_file(&format!("/proc/{}/cmdline", pid.as_raw_nonzero()), &mut arguments).is_ok() {
        hasher.write(&[0]);
        hasher.write(&arguments);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart_by_executable_and_arguments() {
        let start = |argument: &str| std::process::Command::new("sleep").arg(argument).spawn().unwrap();
        let mut children = [start("101"), start("101"), start("102")];
        let pids = children.each_ref().map(Pid::from_child);
        // The parent goes on before the child has its arguments.
        for (pid, argument) in pids.into_iter().zip(["101", "101", "102"]) {
            let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
            let expected = format!("sleep\0{argument}\0");
            while std::fs::read(&path).unwrap() != expected.as_bytes() {
                std::thread::yield_now();
            }
        }
        let [one, same, other] = pids.map(hash);
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert_eq!(number_inside(pids[0]).map(|number| number > 0), Some(true));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
