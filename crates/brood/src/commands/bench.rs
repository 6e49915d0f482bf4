//! `brood bench`.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use brood_api::Client;
use brood_bench::selection::Selection;
use brood_bench::{checkpoint, sandbox};

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
        BenchCommand::Squeeze { quick } => squeeze(context, quick).await,
        BenchCommand::Checkpoint(arguments) => checkpoint(context, arguments).await,
    }
}

async fn sandbox(context: &Context, arguments: BenchArguments) -> Outcome {
    check_keys(&arguments, &sandbox::KEYS)?;
    let settings = own_settings(&context.settings);
    let state_directory = settings.state_directory.value.clone();
    let options = sandbox::Options {
        selection: selection(arguments),
        scratch: state_directory.join("bench-scratch"),
        state_directory,
    };
    let client = start(&settings).await?;
    let report = ended_with(&client, sandbox::run(&client, &options, &say)).await?;
    show(context, &sandbox::KEYS, &serde_json::to_value(&report)?)
}

async fn checkpoint(context: &Context, arguments: BenchArguments) -> Outcome {
    check_keys(&arguments, &checkpoint::KEYS)?;
    let settings = own_settings(&context.settings);
    let options = checkpoint::Options {
        selection: selection(arguments),
        state_directory: settings.state_directory.value.clone(),
    };
    let client = start(&settings).await?;
    let report = ended_with(&client, checkpoint::run(&client, &options, &say)).await?;
    show(context, &checkpoint::KEYS, &serde_json::to_value(&report)?)
}

fn selection(arguments: BenchArguments) -> Selection {
    Selection { quick: arguments.quick, only: arguments.only, data: arguments.data }
}

fn say(text: &str) {
    eprintln!("{text}");
}

fn check_keys(arguments: &BenchArguments, keys: &[&str]) -> anyhow::Result<()> {
    match arguments.only.iter().find(|key| !keys.contains(&key.as_str())) {
        Some(unknown) => bail!("no figure is called {unknown:?}; there are {}", keys.join(", ")),
        None => Ok(()),
    }
}

async fn start(settings: &Settings) -> anyhow::Result<Client> {
    connect::connect(settings, false).await.context("cannot start the daemon that is to be measured")
}

/// A measurement, after which the daemon ends with all its sandboxes, whatever has happened.
async fn ended_with<R>(client: &Client, measurement: impl Future<Output = anyhow::Result<R>>) -> anyhow::Result<R> {
    let report = tokio::select! {
        report = measurement => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    client.shutdown().await.context("the measured daemon could not be ended")?;
    report
}

async fn squeeze(context: &Context, quick: bool) -> Outcome {
    let settings = own_settings(&context.settings);
    let options = brood_bench::squeeze::Options {
        state_directory: settings.state_directory.value.join("squeeze"),
        run_directory: settings.run_directory.value.join("squeeze"),
        guardian: Some(vec!["/proc/self/exe".into(), crate::GUARDIAN.into()]),
        quick,
    };
    let measured =
        tokio::task::spawn_blocking(move || brood_bench::squeeze::run(&options, &|text| eprintln!("{text}")));
    let report = measured.await??;
    if context.global.json {
        output::json(&report)?;
    } else {
        output::line(serde_json::to_string_pretty(&report)?)?;
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

fn show(context: &Context, keys: &[&str], report: &serde_json::Value) -> Outcome {
    if context.global.json {
        output::json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let beside = report.get("beside").and_then(|beside| beside.as_object()).into_iter().flatten();
    let figures = keys.iter().filter_map(|key| Some(((*key).to_owned(), report.get(*key)?)));
    // Objects of plain numbers become one row each.
    let flat = figures.chain(beside.map(|(key, value)| (key.clone(), value))).flat_map(|(key, value)| {
        match value.as_object() {
            Some(parts) if !parts.contains_key("n") => {
                parts.iter().map(|(part, value)| (format!("{key}.{part}"), value)).collect::<Vec<_>>()
            }
            _ => vec![(key, value)],
        }
    });
    output::table(["FIGURE", "P50", "P95", "P99", "N"], flat.map(|(key, value)| row(key, value)))?;
    if let Some(environment) = report.get("environment") {
        output::line(format_args!("\n{}", serde_json::to_string_pretty(environment)?))?;
    }
    Ok(ExitCode::SUCCESS)
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
