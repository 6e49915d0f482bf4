//! `brood pause` and `brood resume`.

use brood_sandbox::model::SandboxInfo;

use super::{Context, Each};
use crate::failure::Outcome;
use crate::output;

pub async fn pause(context: &Context, ids: &[String]) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let mut paused = Vec::new();
    for id in ids {
        paused.extend(each.take(id, context.global.json, client.pause(id).await));
    }
    show(context, "paused", &paused, each)
}

pub async fn resume(context: &Context, ids: &[String]) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let mut resumed = Vec::new();
    for id in ids {
        resumed.extend(each.take(id, context.global.json, client.resume(id).await));
    }
    show(context, "resumed", &resumed, each)
}

fn show(context: &Context, key: &str, sandboxes: &[SandboxInfo], each: Each) -> Outcome {
    let ids: Vec<_> = sandboxes.iter().map(|sandbox| &sandbox.id).collect();
    if context.global.json {
        output::json(&serde_json::json!({ key: ids, "failed": each.failed }))?;
    } else {
        ids.iter().try_for_each(output::line)?;
    }
    each.end()
}
