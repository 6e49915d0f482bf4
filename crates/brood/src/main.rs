//! The `brood` command line and daemon.
//!
//! A command is parsed into [`arguments`], carried out by [`commands`] through a client of the native
//! interface, and shown by [`output`]. `brood serve` is the daemon itself; other commands start it
//! when none runs ([`connect`]). What this program must never know: how a sandbox is made.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod connect;
mod doctor;
mod failure;
mod logging;
mod output;
mod parse;
mod progress;
mod serve;
mod settings;
mod streams;
mod terminal;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};

use arguments::{Cli, Command};
use commands::{
    Context, attach, bench, checkpoint, copy, create, exec, follow, host, key, kill, list, network, pause,
    port_forward, squeeze, template, tree,
};
use failure::Outcome;
use settings::Settings;

/// The word by which the daemon starts this program as its guardian. Nobody else has a use for it.
const GUARDIAN: &str = "guardian-of-a-daemon";

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == GUARDIAN) {
        brood_sandbox::memory::run_guardian();
        return ExitCode::SUCCESS;
    }
    let (cli, matches) = match parse_arguments() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let json = cli.global.json;
    let runs_a_command = matches!(cli.command, Command::Exec(_) | Command::Run(_) | Command::Attach(_));
    match carry_out(cli, &matches) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, json, runs_a_command),
    }
}

fn parse_arguments() -> Result<(Cli, ArgMatches), ExitCode> {
    let parsed = Cli::command().try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    parsed.map_err(|error| {
        // Nobody is left to tell when even this cannot be printed.
        drop(error.print());
        let shares_its_code = std::env::args()
            .skip(1)
            .find(|word| !word.starts_with('-'))
            .is_some_and(|word| ["exec", "run", "attach"].contains(&word.as_str()));
        match error.exit_code() {
            0 => ExitCode::SUCCESS,
            _ if shares_its_code => ExitCode::from(failure::CODE_ENGINE),
            code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
        }
    })
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn carry_out(cli: Cli, matches: &ArgMatches) -> Outcome {
    let context = Context { settings: Settings::load(&cli.global.settings)?, global: cli.global };
    match cli.command {
        Command::Serve(arguments) if !arguments.stop => host::serve(&context, &arguments),
        Command::Config => host::config(&context),
        Command::Completion { shell } => host::completion(shell),
        Command::Doctor => host::doctor(&context),
        command => {
            // The main thread carries output, the one worker input and signals: neither waits for the other.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .context("cannot start a thread")?;
            let outcome = runtime.block_on(talk(&context, command, matches));
            // A thread may still wait for standard input; it ends with the process.
            runtime.shutdown_background();
            outcome
        }
    }
}

/// The commands that talk to the daemon.
async fn talk(context: &Context, command: Command, matches: &ArgMatches) -> Outcome {
    match command {
        Command::Template(command) => {
            let inner = matches.subcommand().and_then(|(_, matches)| matches.subcommand()).map(|(_, inner)| inner);
            template::run(context, command, inner.unwrap_or(matches)).await
        }
        Command::Create(arguments) => create::run(context, arguments).await,
        Command::Exec(arguments) => exec::exec(context, arguments).await,
        Command::Run(arguments) => exec::run(context, arguments).await,
        Command::Ps(arguments) => list::ps(context, arguments).await,
        Command::Inspect { ids } => list::inspect(context, ids).await,
        Command::Stats { ids } => list::stats(context, ids).await,
        Command::Logs(arguments) => follow::logs(context, arguments).await,
        Command::Events(arguments) => follow::events(context, arguments).await,
        Command::Kill(arguments) => kill::run(context, arguments).await,
        Command::Cp(arguments) => copy::run(context, arguments).await,
        Command::Attach(arguments) => attach::run(context, arguments).await,
        Command::Checkpoint(arguments) => checkpoint::checkpoint(context, arguments).await,
        Command::Pause { ids } => pause::pause(context, &ids).await,
        Command::Resume { ids } => pause::resume(context, &ids).await,
        Command::Rollback { id, checkpoint } => checkpoint::rollback(context, &id, &checkpoint).await,
        Command::Fork(arguments) => checkpoint::fork(context, arguments).await,
        Command::Diff(arguments) => checkpoint::diff(context, &arguments).await,
        Command::Squeeze(arguments) => squeeze::squeeze(context, arguments).await,
        Command::Restore { ids, all_pages: _ } => squeeze::restore(context, &ids).await,
        Command::Tree { root } => tree::run(context, root).await,
        Command::Network(arguments) => network::run(context, arguments).await,
        Command::Key(command) => key::run(context, command).await,
        Command::PortForward(arguments) => port_forward::run(context, arguments).await,
        Command::Bench(command) => bench::run(context, command).await,
        Command::Version => host::version(context).await,
        Command::Serve(_) => host::stop(context).await,
        Command::Config | Command::Completion { .. } | Command::Doctor => {
            anyhow::bail!("this command needs no daemon")
        }
    }
}
