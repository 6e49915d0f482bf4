//! Checkpoints and rollbacks of one sandbox, beside what else brings a state back.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, bail};

use super::Run;
use super::template::{COLD, WARM};
use crate::figures::Samples;

/// Pages that a call of the rounds changes.
const PAGES: usize = 1000;
/// Changed pages of `standstill_by_pages`.
const PAGES_STEPS: [usize; 6] = [10, 100, 500, 1000, 2000, 4000];
/// MiB that are added for `standstill_by_size`.
const SIZE_STEPS: [usize; 5] = [0, 64, 128, 256, 512];

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

impl Run<'_> {
    /// A call, a checkpoint, another call, a rollback; what the session says must be right.
    pub(super) async fn rounds(&mut self) -> anyhow::Result<()> {
        (self.say)("checkpoint and rollback");
        let id = self.create_one(WARM).await?;
        let (mut standstill, mut whole, mut rollback) = (Samples::new(), Samples::new(), Samples::new());
        let mut asked = self.join(&id).await?;
        for _ in 0..self.options.selection.times(200) {
            let before = asked.ask(&format!("work({PAGES})")).await?;
            let begin = Instant::now();
            let checkpoint = self.checkpoint(&id).await?;
            whole.push(milliseconds(begin));
            standstill.push(checkpoint.standstill_us as f64 / 1e3);
            asked.ask(&format!("work({PAGES})")).await?;
            let begin = Instant::now();
            self.client.rollback(&id, checkpoint.id.as_str()).await?;
            rollback.push(milliseconds(begin));
            asked = self.join(&id).await?;
            let after = asked.ask("state['calls']").await?;
            if after != before {
                bail!("after a rollback the session has {after} calls instead of {before}");
            }
        }
        self.report.standstill_ms = self.options.selection.keep("standstill_ms", &standstill)?;
        self.report.rollback_ms = self.options.selection.keep("rollback_ms", &rollback)?;
        self.beside("checkpoint_whole_ms", &whole)?;
        self.copy_of_the_tree(&id).await?;
        drop(asked);
        self.kill(&[id]).await?;
        self.replay().await
    }

    /// What brings files back without checkpoints, and only these: a copy of the working tree.
    async fn copy_of_the_tree(&mut self, id: &str) -> anyhow::Result<()> {
        let mut samples = Samples::new();
        for _ in 0..self.options.selection.times(30) {
            let begin = Instant::now();
            self.succeed(id, &["cp", "-a", "/tree", "/copy"]).await?;
            samples.push(milliseconds(begin));
            self.succeed(id, &["rm", "-r", "/copy"]).await?;
        }
        self.beside("copy_tree_ms", &samples)
    }

    /// What brings processes back without checkpoints: another sandbox, and the calls once more.
    async fn replay(&mut self) -> anyhow::Result<()> {
        let mut samples = Samples::new();
        for _ in 0..self.options.selection.times(30) {
            let begin = Instant::now();
            let id = self.create_one(COLD).await?;
            let mut asked = self.start(&id).await?;
            asked.ask(&format!("work({PAGES})")).await?;
            samples.push(milliseconds(begin));
            drop(asked);
            self.kill(&[id]).await?;
        }
        self.beside("kill_and_replay_ms", &samples)
    }

    pub(super) async fn by_pages(&mut self) -> anyhow::Result<()> {
        (self.say)("standstill by changed pages");
        let id = self.create_one(WARM).await?;
        let mut figures = BTreeMap::new();
        for pages in PAGES_STEPS {
            let median = self.median_standstill(&id, pages, &format!("standstill_pages_{pages}")).await?;
            figures.insert(format!("{pages:06}"), median);
        }
        self.report.standstill_by_pages = Some(figures);
        self.kill(&[id]).await
    }

    pub(super) async fn by_size(&mut self) -> anyhow::Result<()> {
        (self.say)("standstill by total size");
        let mut figures = BTreeMap::new();
        for added in SIZE_STEPS {
            let id = self.create_one(WARM).await?;
            if added > 0 {
                self.join(&id).await?.ask(&format!("grow({added})")).await?;
            }
            let median = self.median_standstill(&id, 100, &format!("standstill_size_{added}")).await?;
            // The session itself has about 64 MiB.
            figures.insert(format!("{:06}", 64 + added), median);
            self.kill(&[id]).await?;
        }
        self.report.standstill_by_size = Some(figures);
        Ok(())
    }

    /// Of repeated checkpoints after calls that change so many pages, but for the first.
    async fn median_standstill(&self, id: &str, pages: usize, name: &str) -> anyhow::Result<f64> {
        let mut asked = self.join(id).await?;
        let mut samples = Samples::new();
        for number in 0..=self.options.selection.times(40) {
            asked.ask(&format!("work({pages})")).await?;
            let standstill = self.checkpoint(id).await?.standstill_us;
            if number > 0 {
                samples.push(standstill as f64 / 1e3);
            }
        }
        let distribution = self.options.selection.keep(name, &samples)?;
        Ok(distribution.context("no samples")?.p50)
    }

    /// A computation before any checkpoint, and the same right after one each.
    pub(super) async fn tracking(&mut self) -> anyhow::Result<()> {
        (self.say)("what tracking of written pages costs");
        let (mut free, mut tracked) = (Samples::new(), Samples::new());
        for _ in 0..self.options.selection.times(20) {
            let id = self.create_one(COLD).await?;
            let mut asked = self.start(&id).await?;
            asked.ask("compute()").await?;
            free.push(asked.ask("compute()").await?.parse()?);
            self.checkpoint(&id).await?;
            tracked.push(asked.ask("compute()").await?.parse()?);
            drop(asked);
            self.kill(&[id]).await?;
        }
        let ratio = tracked.median().context("no samples")? / free.median().context("no samples")?;
        self.beside("compute_before_s", &free)?;
        self.beside("compute_after_checkpoint_s", &tracked)?;
        self.report.tracking_slowdown = Some(ratio);
        Ok(())
    }
}
