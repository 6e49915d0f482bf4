//! Runs mmdebstrap and hands its output on while it works.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::DebianError;
use super::apt::AptConfiguration;
use crate::UnpackError;
use crate::progress::{Progress, ProgressItem};
use crate::source::PackageSet;

/// Longest line that is passed on, in bytes.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines kept for the error message.
const LINES_KEPT: usize = 200;
/// Lines shown in the error message.
const LINES_SHOWN: usize = 5;
/// How often a silent tool is asked whether it was cancelled, in nanoseconds.
const CANCEL_INTERVAL_NS: i64 = 200_000_000;

/// Installs `set` and gives the archive to `consume` as it is written. Returns what that returned, and how the tool ended.
///
/// The stream ends with an error if the tool fails, so that `consume` never takes a broken archive for a whole one.
pub(super) fn run<T>(
    set: &PackageSet,
    apt: &AptConfiguration,
    work: &Path,
    item: &ProgressItem,
    progress: &dyn Progress,
    consume: impl FnOnce(&mut ToolOutput<'_>) -> T,
) -> Result<(T, Result<(), DebianError>), DebianError> {
    let mut child = command(set, apt, work)?.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => DebianError::NotInstalled { tool: "setpriv", package: "util-linux" },
        _ => DebianError::io("run", "mmdebstrap", source),
    })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(DebianError::io("run", "mmdebstrap", io::Error::other("no pipes to it")));
    };
    let output = ToolOutput { child, stdout, progress, status: None };
    std::thread::scope(|scope| {
        let lines = scope.spawn(|| pass_lines_on(stderr, item, progress));
        // Moved in here, so that a panic of `consume` ends the tool before the scope waits for the thread.
        let mut output = output;
        let consumed = consume(&mut output);
        let status = output.end();
        let said = lines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let status = status.map_err(|source| DebianError::io("wait for", "mmdebstrap", source))?;
        Ok((consumed, judge(status, &said)))
    })
}

fn command(set: &PackageSet, apt: &AptConfiguration, work: &Path) -> Result<Command, DebianError> {
    // The thread's death kills unshare, which kills the first process of the new process namespace, which ends all
    // others in it; and the mounts go with the mount namespace.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap"]);
    // Essential packages and apt itself: the smallest system in which more can be installed.
    command.args(["--mode=root", "--variant=apt", "--format=tar"]);
    // dpkg flushes every file otherwise, which takes most of the time. It stays on in the image, as in Docker's, because
    // what makes files of a sandbox durable is a checkpoint and not dpkg.
    command.arg("--dpkgopt=force-unsafe-io");
    if !set.packages.is_empty() {
        command.arg(format!("--include={}", set.packages.join(",")));
        // Asked once the lists are there: a misspelt name is found before the system is installed and not after. The
        // names hold nothing that a shell would interpret; `PackageSet` is only made by the parser of sources.
        let simulate = "APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\" apt-get --simulate --quiet=2 install";
        command.arg(format!("--extract-hook={simulate} {} >/dev/null", set.packages.join(" ")));
    }
    for option in &apt.options {
        command.arg(format!("--aptopt={option}"));
    }
    command.args([&*set.suite, "-"]);
    for (name, text) in [("host.list", &apt.lines), ("host.sources", &apt.stanzas)] {
        if !text.is_empty() {
            let path = work.join(name);
            fs::write(&path, text).map_err(|source| DebianError::io("write", path.display().to_string(), source))?;
            command.arg(path);
        }
    }
    command.env("TMPDIR", work).env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// The archive as the tool writes it.
pub(super) struct ToolOutput<'a> {
    child: Child,
    stdout: ChildStdout,
    progress: &'a dyn Progress,
    status: Option<ExitStatus>,
}

impl ToolOutput<'_> {
    /// Stops the tool if it still runs, and waits for its end.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }

    /// Waits until there is something to read, or until cancelled.
    fn wait_for_output(&self) -> io::Result<()> {
        let interval = Timespec { tv_sec: 0, tv_nsec: CANCEL_INTERVAL_NS };
        loop {
            match rustix::event::poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&interval)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            if self.progress.is_cancelled() {
                return Err(io::Error::other(UnpackError::Cancelled));
            }
        }
    }
}

impl Drop for ToolOutput<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "cannot end mmdebstrap");
        }
    }
}

impl Read for ToolOutput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The tool is silent for minutes while it installs.
        self.wait_for_output()?;
        let count = self.stdout.read(buffer)?;
        if count == 0 && !buffer.is_empty() && self.status.is_none() {
            let status = self.child.wait()?;
            self.status = Some(status);
        }
        match self.status {
            Some(status) if !status.success() => Err(io::Error::other(format!("mmdebstrap failed: {status}"))),
            _ => Ok(count),
        }
    }
}

/// Reports each line of `stderr`, and returns the last of them.
fn pass_lines_on(stderr: ChildStderr, item: &ProgressItem, progress: &dyn Progress) -> VecDeque<String> {
    let mut reader = BufReader::new(stderr);
    let mut kept = VecDeque::new();
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return kept,
            Ok(_) => {}
        }
        let text: String = String::from_utf8_lossy(&line).chars().filter(|character| !character.is_control()).collect();
        if text.is_empty() {
            continue;
        }
        progress.message(item, &text);
        if kept.len() == LINES_KEPT {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}

/// Makes an error of a failed run, from what apt said.
fn judge(status: ExitStatus, lines: &VecDeque<String>) -> Result<(), DebianError> {
    if status.success() {
        return Ok(());
    }
    let errors: Vec<_> = lines.iter().filter(|line| line.starts_with("E: ")).collect();
    // unshare says so when it cannot start the tool.
    if lines.iter().any(|line| line.contains("failed to execute mmdebstrap")) {
        return Err(DebianError::NotInstalled { tool: "mmdebstrap", package: "mmdebstrap" });
    }
    let missing = ["Unable to locate package", "does not have a Release file", "no installation candidate"];
    let absent: Vec<_> = errors.iter().filter(|line| missing.iter().any(|text| line.contains(text))).collect();
    if !absent.is_empty() {
        let said: Vec<_> = absent.iter().map(|line| line.trim_start_matches("E: ")).collect();
        return Err(DebianError::NotFound { said: said.join("; ") });
    }
    let shown = if errors.is_empty() { lines.iter().collect() } else { errors };
    let last = shown.iter().rev().take(LINES_SHOWN).rev().map(|line| line.as_str()).collect::<Vec<_>>();
    Err(DebianError::Failed { status: status.to_string(), said: last.join("; ") })
}
