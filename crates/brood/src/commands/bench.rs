//! `brood bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use brood_bench::sandbox::{self, KEYS, Options, Report};

use super::Context;
use crate::arguments::{BenchArguments, BenchCommand};
use crate::connect;
use crate::failure::Outcome;
use crate::output;
use crate::settings::{Origin, Settings, Sourced};

/// Where the benchmark's own daemon keeps its things: templates are built once and kept.
const STATE_DIRECTORY: &str = "/var/lib/brood-bench";
const RUN_DIRECTORY: &str = "/run/brood-bench";

pub async fn run(context: &Context, command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Sandbox(arguments) => sandbox(context, arguments).await,
    }
}

async fn sandbox(context: &Context, arguments: BenchArguments) -> Outcome {
    if let Some(unknown) = arguments.only.iter().find(|key| !KEYS.contains(&key.as_str())) {
        bail!("no figure is called {unknown:?}; there are {}", KEYS.join(", "));
    }
    let settings = own_settings(&context.settings);
    let client = connect::connect(&settings, false).await.context("cannot start the daemon that is to be measured")?;
    let state_directory = settings.state_directory.value.clone();
    let options = Options {
        quick: arguments.quick,
        only: arguments.only,
        data: arguments.data,
        scratch: state_directory.join("bench-scratch"),
        state_directory,
    };
    let say = |text: &str| eprintln!("{text}");
    let report = tokio::select! {
        report = sandbox::run(&client, &options, &say) => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    // The daemon takes all its sandboxes with it, whatever has happened.
    client.shutdown().await.context("the measured daemon could not be ended")?;
    let report = report?;
    if context.global.json {
        output::json(&report)?
    } else {
        show(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings in force, but for directories of its own unless others were asked for.
fn own_settings(settings: &Settings) -> Settings {
    let mut own = settings.clone();
    for (directory, other) in [(&mut own.state_directory, STATE_DIRECTORY), (&mut own.run_directory, RUN_DIRECTORY)] {
        if directory.origin == Origin::Default {
            *directory = Sourced { value: PathBuf::from(other), origin: Origin::Default };
        }
    }
    own
}

fn show(report: &Report) -> anyhow::Result<()> {
    let value = serde_json::to_value(report)?;
    let beside = value.get("beside").and_then(|beside| beside.as_object()).into_iter().flatten();
    let figures = KEYS.iter().filter_map(|key| Some(((*key).to_owned(), value.get(*key)?)));
    // Objects of plain numbers become one row each.
    let flat = beside.flat_map(|(key, value)| match value.as_object() {
        Some(parts) if !parts.contains_key("n") => {
            parts.iter().map(|(part, value)| (format!("{key}.{part}"), value)).collect::<Vec<_>>()
        }
        _ => vec![(key.clone(), value)],
    });
    let rows = figures.chain(flat).map(|(key, value)| row(key, value));
    output::table(["FIGURE", "P50", "P95", "P99", "N"], rows)?;
    if let Some(environment) = &report.environment {
        output::line(format_args!("\n{}", serde_json::to_string_pretty(environment)?))?;
    }
    Ok(())
}

fn row(key: String, value: &serde_json::Value) -> [String; 5] {
    let number = |name: &str| {
        value.get(name).and_then(serde_json::Value::as_f64).map_or(String::new(), |number| format!("{number:.3}"))
    };
    match value.get("n") {
        Some(n) => [key, number("p50"), number("p95"), number("p99"), n.to_string()],
        None => {
            let plain = value.as_f64().map_or_else(|| value.to_string(), |number| format!("{number:.3}"));
            [key, plain, String::new(), String::new(), String::new()]
        }
    }
}
