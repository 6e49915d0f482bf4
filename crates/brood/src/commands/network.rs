//! `brood network`.

use std::process::ExitCode;

use brood_sandbox::model::{NetworkAccess, NetworkRequest};

use super::Context;
use crate::arguments::NetworkArguments;
use crate::failure::Outcome;
use crate::output;

pub async fn run(context: &Context, arguments: NetworkArguments) -> Outcome {
    let NetworkArguments { id, network, allow, deny } = arguments;
    let client = context.client().await?;
    let in_force = match network {
        Some(access) => client.set_network(&id, &NetworkRequest { access, allow, deny }).await?,
        None => client.sandbox(&id).await?.network,
    };
    if context.global.json {
        output::json(&in_force)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(match in_force.access {
        NetworkAccess::None => "none",
        NetworkAccess::All => "all",
    })?;
    for destination in &in_force.allow {
        output::line(format_args!("allow {destination}"))?;
    }
    for destination in &in_force.deny {
        output::line(format_args!("deny {destination}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
