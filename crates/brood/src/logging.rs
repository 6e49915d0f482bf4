//! Structured logs: for people on a terminal, one JSON object a line otherwise.

use std::io;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::settings::{LogFormat, Settings};

/// Starts logging to standard error.
///
/// # Errors
/// When the filter does not fit.
pub fn start(settings: &Settings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.log.value)
        .with_context(|| format!("log {:?} ({}) is no filter", settings.log.value, settings.log.origin))?;
    let human = match settings.log_format.value {
        LogFormat::Auto => rustix::termios::isatty(io::stderr()),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_timer(SystemTime);
    if human {
        builder.with_ansi(rustix::termios::isatty(io::stderr())).with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
    Ok(())
}
