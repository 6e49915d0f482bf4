//! `brood network`.

use std::process::ExitCode;

use brood_api::Client;
use brood_sandbox::model::{GroupInfo, LookUp, LookUpVerdict, NetworkAccess, NetworkRequest, SandboxInfo};

use super::{Context, Each};
use crate::arguments::{NetworkArguments, NetworkCommand};
use crate::failure::Outcome;
use crate::output::{self, distance};

/// Numbers of DNS record types by name (RFC 1035, 3596, 2782).
const RECORD_TYPES: [(u16, &str); 8] =
    [(1, "A"), (2, "NS"), (5, "CNAME"), (12, "PTR"), (15, "MX"), (16, "TXT"), (28, "AAAA"), (33, "SRV")];

pub async fn run(context: &Context, arguments: NetworkArguments) -> Outcome {
    let client = context.client().await?;
    match &arguments.command {
        Some(NetworkCommand::Create { group }) => create(context, &client, group).await,
        Some(NetworkCommand::Ls) => list(context, &client).await,
        Some(NetworkCommand::Rm { groups }) => remove(context, &client, groups).await,
        None if arguments.look_ups => log(context, &client, &arguments.id.unwrap_or_default()).await,
        None => one(context, &client, arguments).await,
    }
}

async fn create(context: &Context, client: &Client, group: &str) -> Outcome {
    let group = client.create_group(group).await?;
    if context.global.json {
        output::json(&group)?
    } else {
        output::line(&group.name)?
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, client: &Client) -> Outcome {
    let groups = client.groups().await?;
    if context.global.json {
        output::json(&groups)?;
    } else {
        output::table(["GROUP", "AGE", "MEMBERS"], groups.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(group: &GroupInfo) -> [String; 3] {
    let member = |member: &brood_sandbox::model::GroupMember| {
        format!("{}={} ({})", member.alias, output::short(member.sandbox.as_str()), member.address)
    };
    [group.name.clone(), distance(group.created_ms), group.members.iter().map(member).collect::<Vec<_>>().join(" ")]
}

async fn remove(context: &Context, client: &Client, groups: &[String]) -> Outcome {
    let mut each = Each::default();
    for group in groups {
        if each.take(group, context.global.json, client.remove_group(group).await).is_some() && !context.global.json {
            output::line(group)?;
        }
    }
    each.end()
}

async fn log(context: &Context, client: &Client, id: &str) -> Outcome {
    let look_ups = client.look_ups(id).await?;
    if context.global.json {
        output::json(&look_ups)?;
    } else {
        output::table(["AGE", "NAME", "TYPE", "VERDICT", "ADDRESSES"], look_ups.iter().map(look_up_row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn look_up_row(look_up: &LookUp) -> [String; 5] {
    let kind = RECORD_TYPES.iter().find(|(number, _)| *number == look_up.record_type);
    let verdict = match look_up.verdict {
        LookUpVerdict::Allowed => "allowed",
        LookUpVerdict::Denied => "denied",
        LookUpVerdict::Failed => "failed",
    };
    let addresses: Vec<_> = look_up.addresses.iter().map(ToString::to_string).collect();
    [
        distance(look_up.time_ms),
        look_up.name.clone(),
        kind.map_or_else(|| look_up.record_type.to_string(), |(_, name)| (*name).to_owned()),
        verdict.to_owned(),
        addresses.join(" "),
    ]
}

/// Changes or shows what one sandbox may reach.
async fn one(context: &Context, client: &Client, arguments: NetworkArguments) -> Outcome {
    let id = arguments.id.unwrap_or_default();
    if let Some(access) = arguments.network {
        let before = client.sandbox(&id).await?.network;
        let request = NetworkRequest {
            access,
            allow: arguments.allow,
            deny: arguments.deny,
            bandwidth_bytes_per_second: arguments.bandwidth,
            connections: arguments.connections,
            name_servers: before.name_servers,
        };
        client.set_network(&id, &request).await?;
    }
    let sandbox = client.sandbox(&id).await?;
    if context.global.json {
        output::json(&sandbox.network)?;
        return Ok(ExitCode::SUCCESS);
    }
    show(&sandbox)
}

fn show(sandbox: &SandboxInfo) -> Outcome {
    let network = &sandbox.network;
    output::line(match network.access {
        NetworkAccess::None => "none",
        NetworkAccess::All => "all",
    })?;
    for destination in &network.allow {
        output::line(format_args!("allow {destination}"))?;
    }
    for destination in &network.deny {
        output::line(format_args!("deny {destination}"))?;
    }
    if let Some(bandwidth) = network.bandwidth_bytes_per_second {
        output::line(format_args!("bandwidth {}/s", output::bytes(bandwidth)))?;
    }
    if let Some(connections) = network.connections {
        output::line(format_args!("connections {connections}"))?;
    }
    for group in &sandbox.groups {
        output::line(format_args!("group {} as {}", group.group, group.alias.as_deref().unwrap_or_default()))?;
    }
    for published in &sandbox.published {
        output::line(format_args!("publish {} -> {}", published.host, published.port))?;
    }
    Ok(ExitCode::SUCCESS)
}
