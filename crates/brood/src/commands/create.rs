//! `brood create`.

use std::process::ExitCode;

use brood_api::types::CreateSandboxes;
use brood_sandbox::model::{CreateRequest, GroupMembership, NetworkRequest, ResourceLimits};

use super::{Context, template_name};
use crate::arguments::{CreateArguments, SandboxOptions};
use crate::failure::Outcome;
use crate::output;

pub async fn run(context: &Context, arguments: CreateArguments) -> Outcome {
    let mut request = request(&arguments.template, arguments.options)?;
    request.timeout = arguments.timeout;
    request.checkpoint_every_call = arguments.checkpoint_every_call;
    let client = context.client().await?;
    let sandboxes = client.create(&CreateSandboxes { request, count: arguments.count }).await?;
    if context.global.json {
        output::json(&sandboxes)?;
    } else {
        for sandbox in &sandboxes {
            output::line(&sandbox.id)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the options of `create` and `run` ask for.
pub fn request(template: &str, options: SandboxOptions) -> anyhow::Result<CreateRequest> {
    let defaults = ResourceLimits::default();
    Ok(CreateRequest {
        template: template_name(template)?,
        environment: options.env.into_iter().collect(),
        limits: ResourceLimits {
            memory_bytes: options.memory.unwrap_or(defaults.memory_bytes),
            cpus: options.cpus.or(defaults.cpus),
            pids: options.pids.unwrap_or(defaults.pids),
            disk_bytes: options.disk.or(defaults.disk_bytes),
        },
        timeout: None,
        labels: options.label.into_iter().collect(),
        checkpoint_every_call: None,
        publish: options.network.publish,
        groups: options
            .network
            .group
            .map(|group| GroupMembership { group, alias: options.network.alias })
            .into_iter()
            .collect(),
        network: NetworkRequest {
            access: options.network.network,
            allow: options.network.allow,
            deny: options.network.deny,
            name_servers: Vec::new(),
            bandwidth_bytes_per_second: options.network.limits.bandwidth,
            connections: options.network.limits.connections,
        },
    })
}
