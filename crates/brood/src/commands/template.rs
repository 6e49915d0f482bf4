//! `brood template`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use brood_api::types::BuildMessage;
use brood_sandbox::model::{BuildRequest, BuildStep, TemplateInfo};
use clap::ArgMatches;

use super::{Context, Each, template_name};
use crate::arguments::{BuildArguments, TemplateCommand};
use crate::failure::Outcome;
use crate::output::{self, bytes, distance};
use crate::progress::Progress;

/// Sources that name a path of this machine, which the daemon reads by its absolute form.
const LOCAL_SOURCES: [&str; 4] = ["oci-archive:", "docker-archive:", "tar:", "dir:"];

pub async fn run(context: &Context, command: TemplateCommand, matches: &ArgMatches) -> Outcome {
    match command {
        TemplateCommand::Build(arguments) => build(context, arguments, matches).await,
        TemplateCommand::Ls => list(context).await,
        TemplateCommand::Inspect { names } => inspect(context, names).await,
        TemplateCommand::Rm { names } => remove(context, names).await,
        TemplateCommand::History { name } => history(context, name).await,
    }
}

async fn build(context: &Context, arguments: BuildArguments, matches: &ArgMatches) -> Outcome {
    let request = request(arguments, matches)?;
    let client = context.client().await?;
    let mut messages = client.build_template(&request).await?;
    let mut progress = Progress::new(std::io::stderr().is_terminal() && !context.global.json);
    while let Some(message) = messages.next().await? {
        if context.global.json {
            output::json(&message)?;
        }
        match message {
            BuildMessage::Done { template } => {
                progress.finish();
                if !context.global.json {
                    output::line(format_args!("{} {}", template.name, bytes(template.disk_bytes)))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            BuildMessage::Failed { error } => {
                progress.finish();
                return Err(error.into());
            }
            other if !context.global.json => progress.show(&other),
            _ => {}
        }
    }
    bail!("the daemon broke the build off; its log tells why");
}

fn request(arguments: BuildArguments, matches: &ArgMatches) -> anyhow::Result<BuildRequest> {
    let steps = steps(&arguments, matches)?;
    Ok(BuildRequest {
        name: template_name(&arguments.name)?,
        source: absolute_source(&arguments.from)?,
        steps,
        environment: arguments.env.into_iter().collect(),
        working_directory: arguments.workdir,
        user: arguments.user,
        start_command: arguments.start,
        ready_command: arguments.ready,
        no_cache: arguments.no_cache,
    })
}

/// The steps in the order in which they stand on the command line, whatever their kind.
fn steps(arguments: &BuildArguments, matches: &ArgMatches) -> anyhow::Result<Vec<BuildStep>> {
    let places = |id: &str| matches.indices_of(id).into_iter().flatten().collect::<Vec<_>>();
    let mut steps = Vec::new();
    for (place, command) in places("run").into_iter().zip(&arguments.run) {
        steps.push((place, BuildStep::Run { command: command.clone() }));
    }
    for (place, (source, destination)) in places("copy").into_iter().zip(&arguments.copy) {
        steps.push((place, BuildStep::Copy { source: absolute(source)?.into(), destination: destination.clone() }));
    }
    steps.sort_by_key(|(place, _)| *place);
    Ok(steps.into_iter().map(|(_, step)| step).collect())
}

fn absolute_source(source: &str) -> anyhow::Result<String> {
    for prefix in LOCAL_SOURCES {
        if let Some(path) = source.strip_prefix(prefix) {
            return Ok(format!("{prefix}{}", absolute(path)?));
        }
    }
    Ok(source.to_owned())
}

fn absolute(path: &str) -> anyhow::Result<String> {
    let absolute = std::path::absolute(Path::new(path)).with_context(|| format!("{path:?} is no path"))?;
    if let Err(error) = absolute.symlink_metadata() {
        return Err(error).with_context(|| format!("cannot read {}", absolute.display()));
    }
    absolute.into_os_string().into_string().map_err(|path| anyhow::anyhow!("{} is not UTF-8", path.display()))
}

async fn list(context: &Context) -> Outcome {
    let templates = context.client().await?.templates().await?;
    if context.global.json {
        output::json(&templates)?;
    } else {
        output::table(["NAME", "SIZE", "LAYERS", "SANDBOXES", "AGE", "SOURCE"], templates.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(template: &TemplateInfo) -> [String; 6] {
    [
        template.name.to_string(),
        bytes(template.disk_bytes),
        template.layers.len().to_string(),
        template.sandboxes.to_string(),
        distance(template.created_ms),
        template.source.clone(),
    ]
}

async fn inspect(context: &Context, names: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let mut each = Each::default();
    let mut found = Vec::new();
    for name in &names {
        found.extend(each.take(name, false, client.template(name).await));
    }
    output::json(&found)?;
    each.end()
}

async fn remove(context: &Context, names: Vec<String>) -> Outcome {
    let client = context.client().await?;
    let json = context.global.json;
    let mut each = Each::default();
    let mut removed = Vec::new();
    for name in names {
        if each.take(&name, json, client.remove_template(&name).await).is_some() {
            if !json {
                output::line(&name)?;
            }
            removed.push(name);
        }
    }
    if json {
        output::json(&serde_json::json!({ "removed": removed, "failed": each.failed }))?;
    }
    each.end()
}

async fn history(context: &Context, name: String) -> Outcome {
    let layers = context.client().await?.template_history(&name).await?;
    if context.global.json {
        output::json(&layers)?;
    } else {
        let rows = layers.iter().map(|layer| {
            let id = layer.layer.strip_prefix("sha256:").unwrap_or(&layer.layer);
            [output::short(id), distance(layer.created_ms), bytes(layer.disk_bytes), layer.created_by.clone()]
        });
        output::table(["LAYER", "AGE", "SIZE", "CREATED BY"], rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;
    use crate::arguments::{Cli, Command};

    fn parsed(arguments: &[&str]) -> BuildRequest {
        let matches = Cli::command().get_matches_from(arguments);
        let cli = Cli::from_arg_matches(&matches).unwrap();
        let Command::Template(TemplateCommand::Build(build)) = cli.command else { panic!("not build") };
        let inner = matches.subcommand_matches("template").unwrap().subcommand_matches("build").unwrap();
        request(build, inner).unwrap()
    }

    #[test]
    fn steps_keep_their_order() {
        let request = parsed(&[
            "brood", "template", "build", "x", "--from", "dir:/", "--run", "one", "--copy", "/etc:/a", "--run", "two",
        ]);
        assert_eq!(
            request.steps,
            [
                BuildStep::Run { command: "one".into() },
                BuildStep::Copy { source: "/etc".into(), destination: "/a".into() },
                BuildStep::Run { command: "two".into() },
            ]
        );
    }

    #[test]
    fn local_sources_become_absolute() {
        assert_eq!(absolute_source("dir:/etc/").unwrap(), "dir:/etc/");
        assert!(absolute_source("dir:src").unwrap().starts_with("dir:/"));
        assert_eq!(absolute_source("debian:bookworm+python3").unwrap(), "debian:bookworm+python3");
        assert!(absolute_source("tar:/nonexistent.tar").unwrap_err().to_string().contains("/nonexistent.tar"));
    }
}
