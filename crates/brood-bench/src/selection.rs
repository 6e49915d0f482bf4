//! What of a benchmark is measured, how often, and where its samples go.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::figures::{Distribution, Samples};

/// What was asked for; the same for every benchmark that talks to a daemon.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// A tenth of the repetitions.
    pub quick: bool,
    /// Only these keys; all when empty.
    pub only: Vec<String>,
    /// Where samples go.
    pub data: Option<PathBuf>,
}

impl Selection {
    /// Whether a figure is wanted.
    pub(crate) fn wants(&self, key: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == key)
    }

    /// Repetitions, fewer for a quick look.
    pub(crate) fn times(&self, repetitions: usize) -> usize {
        if self.quick { (repetitions / 10).max(3) } else { repetitions }
    }

    /// Keeps samples and gives their distribution.
    pub(crate) fn keep(&self, name: &str, samples: &Samples) -> anyhow::Result<Option<Distribution>> {
        if let Some(directory) = &self.data {
            samples.write(directory, name).with_context(|| format!("cannot write samples of {name}"))?;
        }
        Ok(samples.distribution())
    }
}
