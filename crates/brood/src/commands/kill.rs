//! `brood kill`.

use super::{Context, Each};
use crate::arguments::KillArguments;
use crate::failure::Outcome;
use crate::output;

pub async fn run(context: &Context, arguments: KillArguments) -> Outcome {
    let client = context.client().await?;
    let json = context.global.json;
    let mut each = Each::default();
    let mut killed = Vec::new();
    let ids = if arguments.all {
        client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect()
    } else {
        arguments.ids
    };
    for id in &ids {
        let result = match (&arguments.process, arguments.signal) {
            (Some(process), Some(signal)) => client.signal(id, process, signal).await.map(|()| id.clone()),
            (Some(process), None) => client.kill_process(id, process).await.map(|()| id.clone()),
            (None, _) => client.kill(id).await.map(|sandbox| sandbox.id.to_string()),
        };
        if let Some(id) = each.take(id, json, result) {
            if !json {
                output::line(&id)?;
            }
            killed.push(id);
        }
    }
    if json {
        output::json(&serde_json::json!({ "killed": killed, "failed": each.failed }))?;
    }
    each.end()
}
