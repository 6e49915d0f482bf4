//! `brood config`, `version`, `completion`, `doctor` and `serve`: what concerns this host.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::Context;
use crate::arguments::{Cli, ServeArguments};
use crate::doctor::{self, Status};
use crate::failure::Outcome;
use crate::output;

pub fn config(context: &Context) -> Outcome {
    let rows = context.settings.rows();
    if context.global.json {
        output::json(&rows)?;
    } else {
        let rows = rows.into_iter().map(|row| [row.key.to_owned(), row.value, row.origin]);
        output::table(["SETTING", "VALUE", "FROM"], rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks a daemon only if one runs: a version is no reason to start one.
pub async fn version(context: &Context) -> Outcome {
    let daemon = brood_api::Client::new(context.settings.socket()).version().await.ok();
    if context.global.json {
        output::json(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "daemon": daemon }))?;
    } else {
        output::line(format_args!("brood {}", env!("CARGO_PKG_VERSION")))?;
        match daemon {
            Some(daemon) => output::line(format_args!("daemon {} (pid {})", daemon.version, daemon.pid))?,
            None => output::line("daemon: none runs")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn completion(shell: clap_complete::Shell) -> Outcome {
    clap_complete::generate(shell, &mut Cli::command(), "brood", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}

pub fn doctor(context: &Context) -> Outcome {
    let checks = doctor::examine(&context.settings);
    let healthy = checks.iter().all(|check| check.status != Status::Fail);
    if context.global.json {
        output::json(&serde_json::json!({ "healthy": healthy, "checks": checks }))?;
    } else {
        for check in &checks {
            output::line(check)?;
        }
        let end = if healthy { "This host can run sandboxes." } else { "This host cannot run sandboxes yet." };
        output::line(format_args!("\n{end}"))?;
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub async fn stop(context: &Context) -> Outcome {
    let client = brood_api::Client::new(context.settings.socket());
    let pid = client.version().await?.pid;
    client.shutdown().await?;
    // The daemon holds this lock until it has cleaned up, so getting it means that it has ended.
    let path = context.settings.run_directory.value.join("daemon.lock");
    let lock = std::fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).context("cannot wait for the daemon's end")?;
    if context.global.json {
        output::json(&serde_json::json!({ "stopped": pid }))?;
    } else {
        output::line(format_args!("daemon {pid} has ended"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn serve(context: &Context, arguments: &ServeArguments) -> Outcome {
    crate::serve::run(&context.settings, arguments.on_demand)?;
    Ok(ExitCode::SUCCESS)
}
