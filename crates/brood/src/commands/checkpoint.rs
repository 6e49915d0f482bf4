//! `brood checkpoint`, `rollback`, `fork` and `diff`.

use std::process::ExitCode;

use brood_api::types::{FileChangeKind, Fork, TakeCheckpoint};
use brood_sandbox::checkpoint::CheckpointInfo;

use super::{Context, Each};
use crate::arguments::{CheckpointArguments, CheckpointCommand, DiffArguments, ForkArguments};
use crate::failure::Outcome;
use crate::output::{self, distance, printable, short};

pub async fn checkpoint(context: &Context, arguments: CheckpointArguments) -> Outcome {
    match (arguments.command, arguments.id) {
        (Some(CheckpointCommand::Ls), _) => list(context).await,
        (Some(CheckpointCommand::Inspect { checkpoints }), _) => inspect(context, checkpoints).await,
        (Some(CheckpointCommand::Rm { recursive, checkpoints }), _) => remove(context, checkpoints, recursive).await,
        (None, Some(id)) => {
            let request = TakeCheckpoint { name: arguments.name, with_processes: !arguments.no_processes };
            let info = context.client().await?.take_checkpoint(&id, &request).await?;
            show_one(context, &info)
        }
        (None, None) => anyhow::bail!("no sandbox is named"),
    }
}

pub async fn rollback(context: &Context, id: &str, checkpoint: &str) -> Outcome {
    let info = context.client().await?.rollback(id, checkpoint).await?;
    show_one(context, &info)
}

fn show_one(context: &Context, info: &CheckpointInfo) -> Outcome {
    if context.global.json {
        output::json(info)?;
    } else {
        output::line(&info.id)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn fork(context: &Context, arguments: ForkArguments) -> Outcome {
    let request = Fork { from: arguments.from, count: arguments.count };
    let forks = context.client().await?.fork(&request).await?;
    if context.global.json {
        output::json(&forks)?;
    } else {
        for fork in &forks {
            output::line(&fork.id)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context) -> Outcome {
    let checkpoints = context.client().await?.checkpoints().await?;
    if context.global.json {
        output::json(&checkpoints)?;
    } else {
        let head = ["ID", "NAME", "TEMPLATE", "PARENT", "AGE", "PROCESSES", "COPIED PAGES", "STANDSTILL"];
        output::table(head, checkpoints.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(info: &CheckpointInfo) -> [String; 8] {
    [
        short(info.id.as_str()),
        info.name.clone().unwrap_or_default(),
        info.template.to_string(),
        info.parent.as_ref().map(|parent| short(parent.as_str())).unwrap_or_default(),
        distance(info.created_ms),
        if info.with_processes { info.processes.to_string() } else { "files alone".to_owned() },
        info.copied_pages.to_string(),
        standstill(info),
    ]
}

/// How long the sandbox stood still, in milliseconds for people.
pub fn standstill(info: &CheckpointInfo) -> String {
    format!("{:.2} ms", info.standstill_us as f64 / 1000.0)
}

async fn inspect(context: &Context, checkpoints: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let mut found = Vec::new();
    for checkpoint in &checkpoints {
        found.extend(each.take(checkpoint, false, client.checkpoint(checkpoint).await));
    }
    output::json(&found)?;
    each.end()
}

async fn remove(context: &Context, checkpoints: Vec<String>, recursive: bool) -> Outcome {
    let client = context.client().await?;
    let json = context.global.json;
    let mut each = Each::default();
    let mut removed = Vec::new();
    for checkpoint in &checkpoints {
        let gone = each.take(checkpoint, json, client.remove_checkpoint(checkpoint, recursive).await);
        for info in gone.into_iter().flatten() {
            if !json {
                output::line(&info.id)?;
            }
            removed.push(info.id);
        }
    }
    if json {
        output::json(&serde_json::json!({ "removed": removed, "failed": each.failed }))?;
    }
    each.end()
}

pub async fn diff(context: &Context, arguments: &DiffArguments) -> Outcome {
    let mut lines = context.client().await?.diff(&arguments.old, &arguments.new).await?;
    let mut changes = Vec::new();
    while let Some(change) = lines.next().await? {
        if context.global.json {
            changes.push(change);
            continue;
        }
        let letter = match change.kind {
            FileChangeKind::Added => 'A',
            FileChangeKind::Changed => 'C',
            FileChangeKind::Deleted => 'D',
        };
        // A name with a line break must not look like two paths.
        let path = printable(&change.path).replace('\n', "\u{fffd}");
        output::line(format_args!("{letter} {path}"))?;
    }
    if context.global.json {
        output::json(&changes)?;
    }
    Ok(ExitCode::SUCCESS)
}
