//! Work inside, against the same work in a plain chroot of the same root.
//!
//! The chroot is an ordinary directory on the file system of the daemon's state, filled from the
//! template. Both sides run in alternation, who begins changing each time, and the ratio is that of
//! the medians. The time is that of the whole call as the caller sees it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};
use brood_api::SessionEvent;
use brood_api::session::Session;
use serde_json::json;

use super::template::PROJECT_DIRECTORY;
use super::{Run, Scratch, command};
use crate::figures::Samples;
use crate::host;

/// Pairs of runs behind each ratio.
const PAIRS: usize = 15;

impl Run<'_> {
    pub(super) async fn ratios(&mut self) -> anyhow::Result<()> {
        super::template::prepare_project(self).await?;
        (self.say)("filling the plain chroot");
        let ids = self.create_of(super::template::PROJECT_NAME, 1).await?;
        let id = ids.first().context("no sandbox was made")?;
        let root = Scratch::new(self.options.scratch.join("chroot"))?;
        self.fill(id, root.path()).await?;
        let chroot_true = host::chroot_true_ms(root.path(), self.options.selection.times(300))?;
        self.beside("host_chroot_true_ms", &chroot_true)?;
        if self.options.selection.wants("native_ratio") {
            (self.say)("running a test-suite inside and in the chroot");
            let line = format!("cd {PROJECT_DIRECTORY} && python3 -m pytest -q -p no:cacheprovider");
            self.report.native_ratio = Some(self.compare("native", id, root.path(), &line).await?);
        }
        if self.options.selection.wants("files_ratio") {
            (self.say)("working on many files inside and in the chroot");
            self.report.files_ratio = Some(self.compare("files", id, root.path(), &files_job()).await?);
        }
        self.kill(&ids).await
    }

    /// Unpacks the sandbox's root with the host's tar, which keeps owners and modes.
    async fn fill(&self, id: &str, root: &Path) -> anyhow::Result<()> {
        // An archive made inside has the ids that root has inside, as a chroot needs them.
        let request =
            command(&["tar", "-c", "--one-file-system", "--exclude=./proc/*", "--exclude=./sys/*", "-C", "/", "."]);
        let mut session = self.client.open_session(id, &request).await?;
        let mut unpack = Command::new("tar")
            .args(["-x", "--numeric-owner", "-p", "-C"])
            .arg(root)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run tar")?;
        let mut pipe = unpack.stdin.take().context("tar has no standard input")?;
        loop {
            match session.next().await? {
                Some(SessionEvent::Output { stream: brood_api::session::OutputStream::Stdout, bytes }) => {
                    std::io::Write::write_all(&mut pipe, &bytes).context("tar does not take the archive")?;
                }
                // GNU tar gives 1 when a file changed while it read it, which logs do.
                Some(SessionEvent::Exit(report)) if report.shell_code() <= 1 => break,
                Some(SessionEvent::Exit(report)) => bail!("tar ended with {} inside", report.shell_code()),
                Some(_) => {}
                None => bail!("the session ended early"),
            }
        }
        drop(pipe);
        let status = unpack.wait().context("cannot wait for tar")?;
        if !status.success() {
            bail!("the root could not be unpacked: {status}");
        }
        for name in ["proc", "dev", "sys", "tmp"] {
            std::fs::create_dir_all(root.join(name)).with_context(|| format!("cannot create {name} in the chroot"))?;
        }
        Ok(())
    }

    async fn compare(&mut self, name: &str, id: &str, root: &Path, line: &str) -> anyhow::Result<f64> {
        let (mut inside, mut outside) = (Samples::new(), Samples::new());
        // Once each for the caches, unmeasured.
        self.inside_seconds(id, line).await?;
        host::chroot_seconds(root, line)?;
        for pair in 0..self.options.selection.times(PAIRS) {
            for side in 0..2 {
                if (pair + side) % 2 == 0 {
                    inside.push(self.inside_seconds(id, line).await?);
                } else {
                    outside.push(host::chroot_seconds(root, line)?);
                }
            }
        }
        self.beside(&format!("{name}_inside_s"), &inside)?;
        self.beside(&format!("{name}_chroot_s"), &outside)?;
        self.report.beside.insert(format!("{name}_command"), json!(line));
        match (inside.median(), outside.median()) {
            (Some(inside), Some(outside)) if outside > 0.0 => Ok(inside / outside),
            _ => bail!("no samples of {name}"),
        }
    }

    async fn inside_seconds(&self, id: &str, line: &str) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let mut session = self.client.open_session(id, &command(&["/bin/sh", "-c", line])).await?;
        let output = ended(&mut session).await;
        let seconds = begin.elapsed().as_secs_f64();
        output.with_context(|| format!("`{line}` failed inside"))?;
        Ok(seconds)
    }
}

/// Reads on to the end; a failure is told with the last of the output.
async fn ended(session: &mut Session) -> anyhow::Result<()> {
    let mut tail = Vec::new();
    while let Some(event) = session.next().await? {
        match event {
            SessionEvent::Output { bytes, .. } => {
                tail.extend_from_slice(&bytes);
                tail.drain(..tail.len().saturating_sub(2000));
            }
            SessionEvent::Exit(report) if report.shell_code() == 0 => return Ok(()),
            SessionEvent::Exit(report) => {
                bail!("it ended with {}: {}", report.shell_code(), String::from_utf8_lossy(&tail));
            }
            _ => {}
        }
    }
    bail!("the session ended early");
}

/// Untar, git, grep and a compiler over a tree that is made afresh each time.
fn files_job() -> String {
    let library = "/usr/lib/python3";
    format!(
        "set -e; d=/var/tmp/files-job; rm -rf $d; mkdir -p $d; cd $d; \
         tar cf tree.tar -C {PROJECT_DIRECTORY} . -C {library} .; mkdir tree; tar xf tree.tar -C tree; cd tree; \
         git init -q; git -c core.autocrlf=false add .; \
         git -c user.name=b -c user.email=b@localhost commit -q -m x; git status --short; \
         grep -r import . | wc -l; \
         i=0; while [ $i -lt 20 ]; do printf 'int f%d(void) {{ return %d; }}\\n' $i $i > f$i.c; i=$((i+1)); done; \
         gcc -O1 -c f*.c; cd /; rm -rf $d"
    )
}
