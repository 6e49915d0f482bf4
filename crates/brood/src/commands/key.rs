//! `brood key`.

use std::process::ExitCode;

use brood_api::types::MakeKey;

use super::{Context, Each};
use crate::arguments::KeyCommand;
use crate::failure::Outcome;
use crate::output::{self, distance, printable};

pub async fn run(context: &Context, command: KeyCommand) -> Outcome {
    match command {
        KeyCommand::Create { name } => create(context, name).await,
        KeyCommand::Ls => list(context).await,
        KeyCommand::Rm { ids } => remove(context, ids).await,
    }
}

async fn create(context: &Context, name: String) -> Outcome {
    let key = context.client().await?.create_key(&MakeKey { name }).await?;
    if context.global.json {
        output::json(&key)?;
    } else {
        output::line(&key.key)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context) -> Outcome {
    let keys = context.client().await?.keys().await?;
    if context.global.json {
        output::json(&keys)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = keys.into_iter().map(|key| {
        let begins = format!("{}...", key.prefix);
        [key.id, printable(&key.name), begins, distance(key.created_ms)]
    });
    output::table(["ID", "NAME", "KEY", "AGE"], rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(context: &Context, ids: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    for id in ids {
        let result = client.remove_key(&id).await;
        if each.take(&id, context.global.json, result).is_some() && !context.global.json {
            output::line(&id)?;
        }
    }
    each.end()
}
