//! `brood squeeze` and `brood restore`.

use brood_sandbox::memory::SqueezeInfo;

use super::{Context, Each};
use crate::arguments::SqueezeArguments;
use crate::failure::Outcome;
use crate::output;

pub async fn squeeze(context: &Context, arguments: SqueezeArguments) -> Outcome {
    let client = context.client().await?;
    let json = context.global.json;
    let ids = if arguments.all {
        client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect()
    } else {
        arguments.ids
    };
    let mut each = Each::default();
    let mut squeezed: Vec<(String, SqueezeInfo)> = Vec::new();
    for id in ids {
        let result = client.squeeze(&id).await;
        squeezed.extend(each.take(&id, json, result).map(|info| (id, info)));
    }
    if json {
        let objects = squeezed.iter().map(|(id, info)| serde_json::json!({ "sandbox": id, "squeeze": info }));
        let objects: Vec<_> = objects.collect();
        output::json(&serde_json::json!({ "squeezed": objects, "failed": each.failed }))?;
    } else {
        let head = ["ID", "PAGES", "BEFORE", "AFTER", "LEFT ALONE", "STANDSTILL", "BY CODEC"];
        output::table(head, squeezed.iter().map(row))?;
    }
    each.end()
}

fn row((id, info): &(String, SqueezeInfo)) -> [String; 7] {
    let shares = info.by_codec.iter().take(4).map(|share| format!("{} {}", share.codec, share.pages));
    [
        output::short(id),
        info.given_up_pages.to_string(),
        output::bytes(info.bytes_before),
        output::bytes(info.bytes_after),
        info.left_alone_pages.to_string(),
        format!("{:.1} ms", info.standstill_us as f64 / 1e3),
        shares.collect::<Vec<_>>().join(", "),
    ]
}

pub async fn restore(context: &Context, ids: &[String]) -> Outcome {
    let client = context.client().await?;
    let json = context.global.json;
    let mut each = Each::default();
    let mut restored = Vec::new();
    for id in ids {
        if let Some(info) = each.take(id, json, client.restore_pages(id).await) {
            if !json {
                output::line(format!("{id} {} pages in {:.1} ms", info.pages, info.elapsed_us as f64 / 1e3))?;
            }
            restored.push(serde_json::json!({ "sandbox": id, "restore": info }));
        }
    }
    if json {
        output::json(&serde_json::json!({ "restored": restored, "failed": each.failed }))?;
    }
    each.end()
}
