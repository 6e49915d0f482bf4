//! Samples and what is told of them.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

/// A set of samples by its percentiles, in the unit that the key names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// The median.
    pub p50: f64,
    /// 95 of 100 samples are at most this.
    pub p95: f64,
    /// 99 of 100 samples are at most this.
    pub p99: f64,
    /// How many samples there are.
    pub n: usize,
}

/// Samples of one figure, in the order in which they were taken.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The samples.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Their percentiles by the nearest rank; none without samples.
    pub fn distribution(&self) -> Option<Distribution> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied()
        };
        Some(Distribution { p50: rank(50)?, p95: rank(95)?, p99: rank(99)?, n: sorted.len() })
    }

    /// The median; none without samples.
    pub fn median(&self) -> Option<f64> {
        self.distribution().map(|distribution| distribution.p50)
    }

    /// Writes them as `NAME.csv`, one a line with its number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, directory: &Path, name: &str) -> io::Result<()> {
        let mut text = format!("sample,{name}\n");
        for (number, value) in self.0.iter().enumerate() {
            text.push_str(&format!("{number},{value}\n"));
        }
        fs::write(directory.join(format!("{name}.csv")), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::new();
        assert_eq!(samples.distribution(), None);
        for sample in (1..=200).rev() {
            samples.push(f64::from(sample));
        }
        assert_eq!(samples.distribution(), Some(Distribution { p50: 100.0, p95: 190.0, p99: 198.0, n: 200 }));
        let mut one = Samples::new();
        one.push(7.0);
        assert_eq!(one.distribution(), Some(Distribution { p50: 7.0, p95: 7.0, p99: 7.0, n: 1 }));
    }
}
