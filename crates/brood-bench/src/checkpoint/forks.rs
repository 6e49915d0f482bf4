//! Forks of the warm template, one by one and many at once.

use std::time::Instant;

use brood_api::types::Fork;

use super::Run;
use super::template::WARM;
use crate::figures::Samples;

/// Forks of one request in `fork_100_ms`.
const TOGETHER: u32 = 100;

impl Run<'_> {
    async fn fork(&self, count: u32) -> anyhow::Result<Vec<String>> {
        let forks = self.client.fork(&Fork { from: WARM.to_owned(), count }).await?;
        Ok(forks.iter().map(|sandbox| sandbox.id.to_string()).collect())
    }

    pub(super) async fn one_fork(&mut self) -> anyhow::Result<()> {
        (self.say)("forking the warm template");
        let (mut running, mut answer) = (Samples::new(), Samples::new());
        for _ in 0..self.times(200) {
            let begin = Instant::now();
            let ids = self.fork(1).await?;
            running.push(begin.elapsed().as_secs_f64() * 1e3);
            for id in &ids {
                self.join(id).await?.ask("1").await?;
            }
            answer.push(begin.elapsed().as_secs_f64() * 1e3);
            self.kill(&ids).await?;
        }
        self.report.fork_running_ms = self.keep("fork_running_ms", &running)?;
        self.report.fork_answer_ms = self.keep("fork_answer_ms", &answer)?;
        Ok(())
    }

    pub(super) async fn many_forks(&mut self) -> anyhow::Result<()> {
        (self.say)("forking the warm template 100 times at once");
        let (mut together, mut unshared) = (Samples::new(), Samples::new());
        for _ in 0..self.times(20) {
            let begin = Instant::now();
            let ids = self.fork(TOGETHER).await?;
            together.push(begin.elapsed().as_secs_f64() * 1e3);
            for id in ids.iter().take(10) {
                unshared.push(self.client.stats(id).await?.memory_bytes as f64 / 1024.0);
            }
            self.kill(&ids).await?;
        }
        self.report.fork_100_ms = self.keep("fork_100_ms", &together)?;
        self.report.fork_unshared_kb = self.keep("fork_unshared_kb", &unshared)?;
        Ok(())
    }
}
