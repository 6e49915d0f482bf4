//! The progress of a build: bars and a live line on a terminal, plain lines elsewhere.

use std::collections::HashMap;

use brood_api::types::BuildMessage;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// Shows the messages of one build.
#[derive(Debug)]
pub struct Progress {
    bars: MultiProgress,
    transfers: HashMap<String, ProgressBar>,
    /// The last line of a running step's output.
    current: Option<ProgressBar>,
    live: bool,
}

impl Progress {
    /// With bars or without.
    pub fn new(live: bool) -> Self {
        let target = if live { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), transfers: HashMap::new(), current: None, live }
    }

    /// Shows what a message says.
    pub fn show(&mut self, message: &BuildMessage) {
        match message {
            BuildMessage::Step { index, total, text, cached } => {
                self.end_current();
                let cached = if *cached { " (cached)" } else { "" };
                self.print(&format!("[{index}/{total}] {}{cached}", output::printable(text)));
                if self.live {
                    let spinner = self.bars.add(ProgressBar::new_spinner());
                    spinner.set_style(style("  {spinner} {elapsed} {wide_msg:.dim}"));
                    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
                    self.current = Some(spinner);
                }
            }
            BuildMessage::Output { text } => {
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    let line = output::printable(line);
                    match &self.current {
                        Some(spinner) => spinner.set_message(line),
                        None => self.print(&format!("    {line}")),
                    }
                }
            }
            BuildMessage::Transfer { item, done_bytes, total_bytes } => {
                self.transfer(item, *done_bytes, *total_bytes);
            }
            BuildMessage::Done { .. } | BuildMessage::Failed { .. } => {}
        }
    }

    fn transfer(&mut self, item: &str, done_bytes: u64, total_bytes: Option<u64>) {
        let complete = total_bytes == Some(done_bytes);
        if !self.live {
            // Without a terminal only the end of a transfer is worth a line.
            if complete && self.transfers.insert(item.to_owned(), ProgressBar::hidden()).is_none() {
                self.print(&format!("    {} {}", output::printable(item), output::bytes(done_bytes)));
            }
            return;
        }
        let bar = self.transfers.entry(item.to_owned()).or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::new(total_bytes.unwrap_or(0)));
            bar.set_style(style("  {msg:24!} {bytes:>10} of {total_bytes:10} {wide_bar:.cyan} {binary_bytes_per_sec}"));
            bar.set_message(output::printable(item));
            bar
        });
        if let Some(total) = total_bytes {
            bar.set_length(total);
        }
        bar.set_position(done_bytes);
        if complete {
            bar.finish();
        }
    }

    /// Ends all bars.
    pub fn finish(&mut self) {
        self.end_current();
        for bar in self.transfers.values() {
            bar.finish_and_clear();
        }
    }

    fn end_current(&mut self) {
        if let Some(spinner) = self.current.take() {
            spinner.finish_and_clear();
        }
    }

    fn print(&self, line: &str) {
        if self.live {
            self.bars.suspend(|| eprintln!("{line}"));
        } else {
            eprintln!("{line}");
        }
    }
}

fn style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        for template in [
            "  {spinner} {elapsed} {wide_msg:.dim}",
            "  {msg:24!} {bytes:>10} of {total_bytes:10} {wide_bar:.cyan} {binary_bytes_per_sec}",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
