//! `brood attach`.

use std::process::ExitCode;

use brood_sandbox::model::ProcessInfo;

use super::Context;
use crate::arguments::AttachArguments;
use crate::failure::Outcome;
use crate::streams::{self, End, Joined};

pub async fn run(context: &Context, arguments: AttachArguments) -> Outcome {
    let client = context.client().await?;
    let is_meant = |process: &ProcessInfo| {
        process.pid.to_string() == arguments.process || process.tag.as_ref() == Some(&arguments.process)
    };
    let terminal =
        client.processes(&arguments.id).await?.iter().find(|process| is_meant(process)).is_some_and(|p| p.terminal);
    let mut session = client.attach(&arguments.id, &arguments.process, !arguments.no_history).await?;
    if terminal && let Some(size) = crate::terminal::size() {
        session.writer().resize(size).await?;
    }
    let joined = Joined { stdin: arguments.interactive || terminal, terminal };
    match streams::join(&mut session, joined).await? {
        End::Exit(report) => {
            streams::explain(&report, None);
            Ok(ExitCode::from(report.shell_code()))
        }
        End::Left(code) => Ok(ExitCode::from(code)),
    }
}
