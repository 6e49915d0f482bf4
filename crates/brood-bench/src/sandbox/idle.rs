//! Memory of idle sandboxes.
//!
//! `idle_kb` is the fall of the host's `MemAvailable` when many sandboxes are made that do nothing,
//! divided by their number: the median of several rounds, since whatever else runs on the host changes
//! it too. Clean caches are dropped before both readings, so that nothing that
//! could be given back counts. It covers everything: PID 1, page tables, kernel stacks, slab objects
//! of namespaces, mounts and control groups, per-processor memory, and the daemon's own bookkeeping.
//! The parts that the kernel tells apart are given beside it.

use serde_json::json;

use super::Run;
use crate::figures::Samples;
use crate::host::{drop_caches, memory_field};

/// Sandboxes that the memory is divided by.
const IDLE_SANDBOXES: u32 = 200;
/// Times that all are made and killed.
const ROUNDS: usize = 9;
/// Fields of `/proc/meminfo` that are given beside the whole.
const PARTS: [&str; 7] = ["Slab", "PageTables", "KernelStack", "AnonPages", "Shmem", "Percpu", "MemFree"];

struct Reading {
    available: u64,
    parts: Vec<u64>,
}

impl Run<'_> {
    pub(super) async fn idle(&mut self) -> anyhow::Result<()> {
        (self.say)("measuring idle sandboxes");
        // What the first sandboxes make the kernel and the daemon keep for good is not theirs.
        let warm = self.create(IDLE_SANDBOXES).await?;
        self.kill(&warm).await?;
        let each = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(IDLE_SANDBOXES);
        let mut whole = Samples::new();
        let mut parts = vec![Samples::new(); PARTS.len()];
        for _ in 0..self.options.selection.times(ROUNDS) {
            let before = reading()?;
            let ids = self.create(IDLE_SANDBOXES).await?;
            let after = reading()?;
            self.kill(&ids).await?;
            whole.push(each(after.available, before.available));
            for (samples, (before, after)) in parts.iter_mut().zip(before.parts.iter().zip(&after.parts)) {
                samples.push(each(*before, *after));
            }
        }
        self.report.idle_kb = self.options.selection.keep("idle_kb", &whole)?.map(|distribution| distribution.p50);
        let medians = PARTS.iter().zip(&parts).map(|(name, samples)| ((*name).to_owned(), json!(samples.median())));
        self.report.beside.insert("idle_parts_kb".to_owned(), medians.collect::<serde_json::Map<_, _>>().into());
        self.report.beside.insert("idle_sandboxes".to_owned(), json!(IDLE_SANDBOXES));
        Ok(())
    }
}

fn reading() -> anyhow::Result<Reading> {
    drop_caches()?;
    Ok(Reading {
        available: memory_field("MemAvailable").unwrap_or(0),
        parts: PARTS.iter().map(|name| memory_field(name).unwrap_or(0)).collect(),
    })
}
