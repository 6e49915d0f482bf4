//! The host's own figures, to set the others beside.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::figures::Samples;

/// Starts `true` and waits for it, over and over; in milliseconds.
///
/// # Errors
/// When it cannot be started.
pub fn fork_exec_true_ms(repetitions: usize) -> anyhow::Result<Samples> {
    repeat(repetitions, || Command::new("/bin/true"))
}

/// The same in a chroot, by the `chroot` program; in milliseconds.
///
/// # Errors
/// When it cannot be started.
pub fn chroot_true_ms(root: &Path, repetitions: usize) -> anyhow::Result<Samples> {
    repeat(repetitions, || {
        let mut command = Command::new("chroot");
        command.arg(root).arg("/bin/true");
        command
    })
}

fn repeat(repetitions: usize, command: impl Fn() -> Command) -> anyhow::Result<Samples> {
    let mut samples = Samples::new();
    for _ in 0..repetitions {
        let begin = Instant::now();
        let status = command().stdin(Stdio::null()).status().context("cannot start a command of the host")?;
        samples.push(begin.elapsed().as_secs_f64() * 1e3);
        if !status.success() {
            bail!("`true` failed on the host: {status}");
        }
    }
    Ok(samples)
}

/// Runs a command line in a chroot with `/proc` and `/dev` as programs expect them, and gives its
/// seconds. The mounts are in a mount namespace that ends with the command.
///
/// # Errors
/// When it cannot be started or fails.
pub fn chroot_seconds(root: &Path, command_line: &str) -> anyhow::Result<f64> {
    const ENTER: &str = "\
        mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" /bin/sh -c \"$1\"";
    let begin = Instant::now();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "/bin/sh", "-c", ENTER])
        .arg(root)
        .arg(command_line)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .output()
        .context("cannot run unshare")?;
    let seconds = begin.elapsed().as_secs_f64();
    if !output.status.success() {
        let tail = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let from = tail.len().saturating_sub(2000);
        let from = (from..tail.len()).find(|at| tail.is_char_boundary(*at)).unwrap_or(0);
        bail!("`{command_line}` failed in the chroot ({}): {}", output.status, &tail[from..]);
    }
    Ok(seconds)
}

/// A field of `/proc/meminfo`, in KiB.
pub fn memory_field(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Drops clean caches, so that what is free can be told from what is cached.
///
/// # Errors
/// Without root.
pub fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_runs_true() {
        assert_eq!(fork_exec_true_ms(3).unwrap().values().len(), 3);
        assert!(memory_field("MemAvailable").unwrap() > 0);
        assert_eq!(memory_field("Nothing"), None);
    }
}
