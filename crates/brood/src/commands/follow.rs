//! `brood logs` and `brood events`: what is read line by line, for as long as it comes.

use std::collections::VecDeque;
use std::process::ExitCode;

use brood_sandbox::model::{Event, LogRecord};

use super::Context;
use crate::arguments::{EventsArguments, LogsArguments};
use crate::failure::Outcome;
use crate::output::{self, pairs, printable, short, timestamp};

pub async fn logs(context: &Context, arguments: LogsArguments) -> Outcome {
    let client = context.client().await?;
    if let Some(count) = arguments.tail {
        let mut kept = VecDeque::new();
        let mut so_far = client.logs(&arguments.id, false).await?;
        while let Some(record) = so_far.next().await? {
            if kept.len() == count {
                kept.pop_front();
            }
            if count > 0 {
                kept.push_back(record);
            }
        }
        for record in &kept {
            show_record(context, &arguments, record)?;
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        return follow_after(context, &arguments, kept.back().map_or(0, |record: &LogRecord| record.time_ms)).await;
    }
    let mut records = client.logs(&arguments.id, arguments.follow).await?;
    while let Some(record) = records.next().await? {
        show_record(context, &arguments, &record)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow_after(context: &Context, arguments: &LogsArguments, after_ms: u64) -> Outcome {
    let mut records = context.client().await?.logs(&arguments.id, true).await?;
    while let Some(record) = records.next().await? {
        if record.time_ms > after_ms {
            show_record(context, arguments, &record)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_record(context: &Context, arguments: &LogsArguments, record: &LogRecord) -> anyhow::Result<()> {
    if context.global.json {
        return Ok(output::json(record)?);
    }
    let time = if arguments.timestamps { format!("{} ", timestamp(record.time_ms)) } else { String::new() };
    let origin = record.pid.map_or(record.stream.clone(), |pid| format!("{pid} {}", record.stream));
    Ok(output::line(format_args!("{time}[{origin}] {}", printable(record.text.trim_end())))?)
}

pub async fn events(context: &Context, arguments: EventsArguments) -> Outcome {
    let client = context.client().await?;
    let mut events = client.events(arguments.since, !arguments.no_follow).await?;
    while let Some(event) = events.next().await? {
        if context.global.json {
            output::json(&event)?;
        } else {
            output::line(event_line(&event))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn event_line(event: &Event) -> String {
    let object = format!("{:?}", event.object).to_lowercase();
    let attributes = pairs(&event.attributes);
    printable(&format!(
        "{} {} {object} {} {} {attributes}",
        event.sequence,
        timestamp(event.time_ms),
        event.action,
        short(&event.id)
    ))
}
