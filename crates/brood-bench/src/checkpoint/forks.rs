//! Forks of the warm template, one by one and many at once.

use std::time::{Duration, Instant};

use brood_api::types::Fork;

use super::Run;
use super::template::WARM;
use crate::figures::Samples;

/// Time between two forks, as between two tasks of an agent: ready ones are made meanwhile. Without
/// it `fork_restored_ms` is what counts.
const GAP: Duration = Duration::from_millis(400);
/// Forks of one request in `fork_100_ms`.
const TOGETHER: u32 = 100;

impl Run<'_> {
    async fn fork(&self, from: &str, count: u32) -> anyhow::Result<Vec<String>> {
        let forks = self.client.fork(&Fork { from: from.to_owned(), count }).await?;
        Ok(forks.iter().map(|sandbox| sandbox.id.to_string()).collect())
    }

    pub(super) async fn one_fork(&mut self) -> anyhow::Result<()> {
        (self.say)("forking the warm template");
        // The daemon has been started since the template was built, and runs its start command now.
        let first = self.fork(WARM, 1).await?;
        self.kill(&first).await?;
        let (mut running, mut answer) = (Samples::new(), Samples::new());
        for _ in 0..self.options.selection.times(200) {
            tokio::time::sleep(GAP).await;
            let begin = Instant::now();
            let ids = self.fork(WARM, 1).await?;
            running.push(begin.elapsed().as_secs_f64() * 1e3);
            for id in &ids {
                self.join(id).await?.ask("1").await?;
            }
            answer.push(begin.elapsed().as_secs_f64() * 1e3);
            self.kill(&ids).await?;
        }
        self.report.fork_running_ms = self.options.selection.keep("fork_running_ms", &running)?;
        self.report.fork_answer_ms = self.options.selection.keep("fork_answer_ms", &answer)?;
        self.restored_forks().await
    }

    /// Forks of a checkpoint, none of which is ready ahead of time.
    async fn restored_forks(&mut self) -> anyhow::Result<()> {
        let id = self.create_one(WARM).await?;
        let checkpoint = self.checkpoint(&id).await?.id;
        let mut samples = Samples::new();
        for _ in 0..self.options.selection.times(100) {
            let begin = Instant::now();
            let ids = self.fork(checkpoint.as_str(), 1).await?;
            samples.push(begin.elapsed().as_secs_f64() * 1e3);
            self.kill(&ids).await?;
        }
        self.beside("fork_restored_ms", &samples)?;
        self.kill(&[id]).await
    }

    pub(super) async fn many_forks(&mut self) -> anyhow::Result<()> {
        (self.say)("forking the warm template 100 times at once");
        let (mut together, mut unshared) = (Samples::new(), Samples::new());
        for _ in 0..self.options.selection.times(20) {
            let begin = Instant::now();
            let ids = self.fork(WARM, TOGETHER).await?;
            together.push(begin.elapsed().as_secs_f64() * 1e3);
            for id in ids.iter().take(10) {
                unshared.push(self.client.stats(id).await?.memory_bytes as f64 / 1024.0);
            }
            self.kill(&ids).await?;
        }
        self.report.fork_100_ms = self.options.selection.keep("fork_100_ms", &together)?;
        self.report.fork_unshared_kb = self.options.selection.keep("fork_unshared_kb", &unshared)?;
        Ok(())
    }
}
