//! `brood ps`, `inspect` and `stats`.

use std::process::ExitCode;
use std::time::Duration;

use brood_sandbox::model::{ExitReason, ProcessInfo, SandboxInfo, SandboxStats};

use super::{Context, Each};
use crate::arguments::PsArguments;
use crate::failure::Outcome;
use crate::output::{self, bytes, distance, pairs, short, span};

pub async fn ps(context: &Context, arguments: PsArguments) -> Outcome {
    let client = context.client().await?;
    if let Some(id) = &arguments.id {
        let processes = client.processes(id).await?;
        return show_processes(context, &arguments, &processes);
    }
    let mut sandboxes = client.sandboxes().await?;
    sandboxes.retain(|sandbox| arguments.label.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value)));
    sandboxes.sort_by_key(|sandbox| sandbox.created_ms);
    if context.global.json {
        output::json(&sandboxes)?;
    } else if arguments.quiet {
        for sandbox in &sandboxes {
            output::line(&sandbox.id)?;
        }
    } else {
        let head = ["ID", "TEMPLATE", "STATE", "AGE", "EXPIRES", "MEMORY", "PROCESSES", "PORTS", "LABELS"];
        output::table(head, sandboxes.iter().map(sandbox_row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn sandbox_row(sandbox: &SandboxInfo) -> [String; 9] {
    [
        short(sandbox.id.as_str()),
        sandbox.template.to_string(),
        format!("{:?}", sandbox.state).to_lowercase(),
        distance(sandbox.created_ms),
        sandbox.expires_ms.map_or("never".to_owned(), |at| format!("in {}", distance(at))),
        bytes(sandbox.limits.memory_bytes),
        sandbox.processes.iter().filter(|process| process.exit.is_none()).count().to_string(),
        sandbox.published.iter().map(|port| format!("{}->{}", port.host, port.port)).collect::<Vec<_>>().join(", "),
        pairs(&sandbox.labels),
    ]
}

fn show_processes(context: &Context, arguments: &PsArguments, processes: &[ProcessInfo]) -> Outcome {
    if context.global.json {
        output::json(&processes)?;
    } else if arguments.quiet {
        for process in processes.iter().filter(|process| process.exit.is_none()) {
            output::line(process.pid)?;
        }
    } else {
        let rows = processes.iter().map(|process| {
            [
                process.pid.to_string(),
                process.tag.clone().unwrap_or_default(),
                process.exit.map_or("running".to_owned(), |exit| ended(exit.reason)),
                distance(process.started_ms),
                if process.background { "background" } else { "call" }.to_owned(),
                process.arguments.join(" "),
            ]
        });
        output::table(["PID", "TAG", "STATE", "AGE", "KIND", "COMMAND"], rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ended(reason: ExitReason) -> String {
    match reason {
        ExitReason::Exited(code) => format!("exited {code}"),
        ExitReason::Signaled(signal) => format!("signal {signal}"),
        ExitReason::TimedOut => "timed out".to_owned(),
        ExitReason::OutOfMemory => "out of memory".to_owned(),
        ExitReason::SandboxKilled => "killed".to_owned(),
        ExitReason::RolledBack => "rolled back".to_owned(),
    }
}

pub async fn inspect(context: &Context, ids: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let mut found = Vec::new();
    for id in &ids {
        found.extend(each.take(id, false, client.sandbox(id).await));
    }
    output::json(&found)?;
    each.end()
}

pub async fn stats(context: &Context, ids: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let all = ids.is_empty();
    let ids =
        if all { client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect() } else { ids };
    let mut found: Vec<SandboxStats> = Vec::new();
    for id in &ids {
        let stats = client.stats(id).await;
        match stats {
            // One that was killed since the list was made is no failure of a list of all.
            Err(_) if all => {}
            stats => found.extend(each.take(id, false, stats)),
        }
    }
    if context.global.json {
        output::json(&found)?;
    } else {
        let head = ["ID", "MEMORY", "PEAK", "LIMIT", "CPU TIME", "TASKS", "DISK", "OOM KILLS"];
        output::table(head, found.iter().map(stats_row))?;
    }
    each.end()
}

fn stats_row(stats: &SandboxStats) -> [String; 8] {
    [
        short(stats.id.as_str()),
        bytes(stats.memory_bytes),
        bytes(stats.memory_peak_bytes),
        bytes(stats.memory_limit_bytes),
        span(Duration::from_micros(stats.cpu_us)),
        stats.pids.to_string(),
        bytes(stats.disk_bytes),
        stats.out_of_memory_kills.to_string(),
    ]
}
