//! Creating, running `true`, killing.

use std::time::Instant;

use anyhow::{Context as _, bail};
use brood_api::Session;

use super::{Run, command, host_true};
use crate::figures::Samples;

/// Sandboxes of one request in `create_100_s`.
const TOGETHER: u32 = 100;

impl Run<'_> {
    /// One connection is kept, as a platform's client keeps it; a new one for each call is told beside.
    pub(super) async fn exec_true(&mut self) -> anyhow::Result<()> {
        (self.say)("running true in a live sandbox");
        host_true(self)?;
        let ids = self.create(1).await?;
        let id = ids.first().context("no sandbox was made")?;
        let request = command(&["/bin/true"]);
        let mut session = self.client.open_session(id, &request).await?;
        succeeded(&mut session).await?;
        let (mut kept, mut new) = (Samples::new(), Samples::new());
        for _ in 0..self.options.selection.times(2000) {
            let begin = Instant::now();
            session.run(id, &request).await?;
            succeeded(&mut session).await?;
            kept.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        for _ in 0..self.options.selection.times(500) {
            let begin = Instant::now();
            let mut session = self.client.open_session(id, &request).await?;
            succeeded(&mut session).await?;
            new.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        self.report.exec_true_ms = self.options.selection.keep("exec_true_ms", &kept)?;
        self.beside("exec_true_new_connection_ms", &new)?;
        drop(session);
        self.kill(&ids).await
    }

    pub(super) async fn create_true_kill(&mut self) -> anyhow::Result<()> {
        (self.say)("creating, running true, killing");
        let request = command(&["/bin/true"]);
        let (mut all, mut create, mut exec, mut kill) =
            (Samples::new(), Samples::new(), Samples::new(), Samples::new());
        for _ in 0..self.options.selection.times(500) {
            let begin = Instant::now();
            let ids = self.create(1).await?;
            let created = Instant::now();
            let id = ids.first().context("no sandbox was made")?;
            let mut session = self.client.open_session(id, &request).await?;
            succeeded(&mut session).await?;
            let ran = Instant::now();
            self.kill(&ids).await?;
            let end = Instant::now();
            for (samples, from, to) in [
                (&mut all, begin, end),
                (&mut create, begin, created),
                (&mut exec, created, ran),
                (&mut kill, ran, end),
            ] {
                samples.push((to - from).as_secs_f64() * 1e3);
            }
        }
        self.report.create_true_kill_ms = self.options.selection.keep("create_true_kill_ms", &all)?;
        self.beside("create_ms", &create)?;
        self.beside("first_exec_true_ms", &exec)?;
        self.beside("kill_ms", &kill)
    }

    pub(super) async fn create_100(&mut self) -> anyhow::Result<()> {
        (self.say)("creating 100 at once");
        let mut samples = Samples::new();
        for _ in 0..self.options.selection.times(20) {
            let begin = Instant::now();
            let ids = self.create(TOGETHER).await?;
            samples.push(begin.elapsed().as_secs_f64());
            self.kill(&ids).await?;
        }
        self.report.create_100_s = self.options.selection.keep("create_100_s", &samples)?;
        Ok(())
    }
}

async fn succeeded(session: &mut Session) -> anyhow::Result<()> {
    let report = session.wait().await?;
    match report.shell_code() {
        0 => Ok(()),
        code => bail!("`true` ended with {code} inside"),
    }
}
