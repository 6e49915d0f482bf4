//! The command line: every command, every option, each with an example.

mod checkpoint;
mod network;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::parse;
use crate::settings::SettingFlags;

pub use checkpoint::{CheckpointArguments, CheckpointCommand, DiffArguments, ForkArguments};
pub use network::{NetworkArguments, NetworkCommand, NetworkOptions, PortForwardArguments};

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    the daemon or the host refused or failed; the message says why
  2    the command line is wrong
  exec, run and attach give the command's own exit code, 128 + N when signal N killed it, and
  124  the command ran out of time
  125  Brood itself failed, or the command line is wrong
  126  the command cannot be executed
  127  the command does not exist";

/// Copy-on-write sandboxes for AI agents.
#[derive(Debug, Parser)]
#[command(name = "brood", version, after_help = EXIT_CODES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command has.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Do not start a daemon when none runs
    #[arg(long, global = true)]
    pub no_spawn: bool,
    #[command(flatten)]
    pub settings: SettingFlags,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tell what this host offers, what is missing and how to mend it
    #[command(after_help = "Example:\n  brood doctor\n\nExits with 1 when something necessary is missing.")]
    Doctor,
    /// Build, list and remove templates
    #[command(subcommand, after_help = "Example:\n  brood template build py --from debian:bookworm+python3")]
    Template(TemplateCommand),
    /// Create sandboxes from a template and print their ids
    #[command(after_help = "Example:\n  brood create py -n 8 --memory 512M --timeout 1h")]
    Create(CreateArguments),
    /// Run a command in a sandbox
    #[command(after_help = "Examples:\n  brood exec ID -- python3 -c 'print(6 * 7)'\n  brood exec ID -it -- bash\n  \
        tar c . | brood exec ID -i --cwd /src -- tar x\n\nThe exit code is the command's own; see `brood --help`.")]
    Exec(ExecArguments),
    /// Create a sandbox, run a command in it and kill it
    #[command(after_help = "Example:\n  brood run py --memory 256M -- python3 -V")]
    Run(RunArguments),
    /// List sandboxes, or the processes of one
    #[command(after_help = "Examples:\n  brood ps\n  brood ps ID")]
    Ps(PsArguments),
    /// Show everything about sandboxes
    #[command(after_help = "Example:\n  brood inspect ID")]
    Inspect {
        /// Ids, or unique beginnings of them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Show what sandboxes use now
    #[command(after_help = "Example:\n  brood stats")]
    Stats {
        /// Ids, or unique beginnings of them; all when none is given
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
    /// Show the log of a sandbox: what its processes wrote
    #[command(after_help = "Example:\n  brood logs -f ID")]
    Logs(LogsArguments),
    /// Show what happens, as it happens
    #[command(after_help = "Example:\n  brood events --no-follow")]
    Events(EventsArguments),
    /// Kill sandboxes, or one process of a sandbox
    #[command(after_help = "Examples:\n  brood kill ID1 ID2\n  brood kill --all\n  brood kill ID --process 12\n\
        \nGoes on when one cannot be killed, and reports each.")]
    Kill(KillArguments),
    /// Copy files into or out of a sandbox
    #[command(after_help = "Examples:\n  brood cp ./src ID:/src\n  brood cp ID:/src/out.txt .\n  \
        tar c . | brood cp - ID:/src\n  brood cp ID:/etc - | tar t")]
    Cp(CopyArguments),
    /// Attach to a process that runs in the background
    #[command(after_help = "Example:\n  brood attach ID 12\n\nCtrl-P Ctrl-Q leaves a terminal and lets it run.")]
    Attach(AttachArguments),
    /// Freeze the files and processes of a sandbox, and print the checkpoint's id
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  brood checkpoint ID --name before\n  brood checkpoint ls"
    )]
    Checkpoint(CheckpointArguments),
    /// Put the files and processes of a sandbox back to a checkpoint
    #[command(after_help = "Example:\n  brood rollback ID before\n\nCalls in flight end: their clients are told.")]
    Rollback {
        /// The sandbox
        id: String,
        /// The checkpoint: its id, a beginning of it, or its name
        checkpoint: String,
    },
    /// Freeze sandboxes and free what they use, until they are resumed
    #[command(after_help = "Example:\n  brood pause ID\n\nCalls in flight end for their clients.")]
    Pause {
        /// Ids, or unique beginnings of them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Let paused sandboxes go on from where they were
    #[command(after_help = "Example:\n  brood resume ID")]
    Resume {
        /// Ids, or unique beginnings of them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Make sandboxes that go on from a state, independently, and print their ids
    #[command(after_help = "Examples:\n  brood fork before -n 16\n  brood fork ID")]
    Fork(ForkArguments),
    /// Keep the private pages of idle sandboxes encoded, and give their memory back to the host
    #[command(after_help = "Examples:\n  brood squeeze ID\n  brood squeeze --all --json\n\n\
        A touch brings a page back; nothing has to be done for it.")]
    Squeeze(SqueezeArguments),
    /// Bring the squeezed pages of sandboxes back, ahead of their being touched
    #[command(after_help = "Example:\n  brood restore ID --all-pages")]
    Restore {
        /// The sandboxes
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// All pages; the default as long as there is no other choice
        #[arg(long)]
        all_pages: bool,
    },
    /// Draw the checkpoints, and the sandboxes that go on from them
    #[command(after_help = "Examples:\n  brood tree\n  brood tree py\n  brood tree ID")]
    Tree {
        /// Only the tree of this template, or the one that this sandbox belongs to
        #[arg(value_name = "ID|TEMPLATE")]
        root: Option<String>,
    },
    /// List the paths that were added (A), changed (C) or deleted (D) between two states
    #[command(after_help = "Examples:\n  brood diff before ID\n  brood diff CHECKPOINT1 CHECKPOINT2")]
    Diff(DiffArguments),
    /// Change what a sandbox may reach, or show it; make, list and remove groups of sandboxes
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  brood network ID --network none --allow pypi.org\n  brood network ID --look-ups\n  \
            brood network create task-1"
    )]
    Network(NetworkArguments),
    /// Make, list and revoke the API keys of E2B clients
    #[command(subcommand, after_help = "Example:\n  brood key create ci")]
    Key(KeyCommand),
    /// Lead local ports to ports inside a sandbox, as long as this command runs
    #[command(
        after_help = "Examples:\n  brood port-forward ID 8080:80\n  brood port-forward ID 0.0.0.0:8080:80 :5432\n\n\
        It needs no network of the sandbox, and reaches services that listen on 127.0.0.1 inside."
    )]
    PortForward(PortForwardArguments),
    /// Run the daemon in the foreground
    #[command(after_help = "Examples:\n  brood serve --log debug\n  brood serve --listen 127.0.0.1:3000")]
    Serve(ServeArguments),
    /// Show the settings in force and where each comes from
    #[command(after_help = "Example:\n  BROOD_LOG=debug brood config")]
    Config,
    /// Measure this host
    #[command(subcommand, after_help = "Example:\n  brood bench sandbox --json")]
    Bench(BenchCommand),
    /// Print completions for a shell
    #[command(after_help = "Example:\n  brood completion bash > /etc/bash_completion.d/brood")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show the version of this program and of the daemon
    #[command(after_help = "Example:\n  brood version --json")]
    Version,
}

#[derive(Debug, Args)]
pub struct SqueezeArguments {
    /// The sandboxes
    #[arg(required_unless_present = "all", value_name = "ID")]
    pub ids: Vec<String>,
    /// All sandboxes
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and print it; it is shown this once
    #[command(after_help = "Example:\n  export E2B_API_KEY=$(brood key create ci)")]
    Create {
        /// What you call it
        #[arg(default_value = "")]
        name: String,
    },
    /// List keys
    #[command(after_help = "Example:\n  brood key ls")]
    Ls,
    /// Revoke keys, at once
    #[command(after_help = "Example:\n  brood key rm 3f0c9a51b7de")]
    Rm {
        /// Ids, as `brood key ls` shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// Build a template
    #[command(after_help = "\
Sources:
  debian:SUITE[+PACKAGE,...]   Debian packages, by mmdebstrap
  docker://REFERENCE           an image of a registry
  oci-archive:FILE             as `skopeo copy` and `buildah push` write it
  docker-archive:FILE          as `docker save` writes it
  tar:FILE, dir:PATH           a file tree
  template:NAME                another template

Steps run in the order in which they are given; unchanged ones come from the cache.

Example:
  brood template build py --from debian:bookworm+python3,python3-pip --run 'pip install numpy'")]
    Build(BuildArguments),
    /// List templates
    #[command(after_help = "Example:\n  brood template ls")]
    Ls,
    /// Show everything about templates
    #[command(after_help = "Example:\n  brood template inspect py")]
    Inspect {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove templates
    #[command(after_help = "Example:\n  brood template rm py")]
    Rm {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show the layers of a template and what made them
    #[command(after_help = "Example:\n  brood template history py")]
    History {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct BuildArguments {
    /// Name of the template, with an optional :tag
    pub name: String,
    /// What it starts from
    #[arg(long, value_name = "SOURCE")]
    pub from: String,
    /// Run a command with /bin/sh -c
    #[arg(long, value_name = "CMD")]
    pub run: Vec<String>,
    /// Copy a file or directory of this machine into the template
    #[arg(long, value_name = "SRC:DST", value_parser = parse::copy_step)]
    pub copy: Vec<(String, String)>,
    /// Set an environment variable for the steps and for every sandbox
    #[arg(long, short, value_name = "K=V", value_parser = parse::environment)]
    pub env: Vec<(String, String)>,
    /// Working directory of tool calls
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// User of tool calls
    #[arg(long, short, value_name = "USER")]
    pub user: Option<String>,
    /// Command that a warm template keeps running
    #[arg(long, value_name = "CMD", requires = "ready")]
    pub start: Option<String>,
    /// Command that succeeds once the start command is ready
    #[arg(long, value_name = "CMD", requires = "start")]
    pub ready: Option<String>,
    /// Build every step anew
    #[arg(long)]
    pub no_cache: bool,
}

#[derive(Debug, Args)]
pub struct SandboxOptions {
    /// Set an environment variable for every tool call
    #[arg(long, short, value_name = "K=V", value_parser = parse::environment)]
    pub env: Vec<(String, String)>,
    /// Most memory, page cache included [default: 2G]
    #[arg(long, short, value_name = "SIZE", value_parser = parse::size)]
    pub memory: Option<u64>,
    /// Most processor time; 1 is one processor
    #[arg(long, value_name = "N", value_parser = parse::cpus)]
    pub cpus: Option<f64>,
    /// Most tasks, threads included [default: 1024]
    #[arg(long, value_name = "N")]
    pub pids: Option<u32>,
    /// Most bytes of files it may write
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    pub disk: Option<u64>,
    /// Free text for your own use
    #[arg(long, short, value_name = "K=V", value_parser = parse::label)]
    pub label: Vec<(String, String)>,
    #[command(flatten)]
    pub network: NetworkOptions,
}

#[derive(Debug, Args)]
pub struct CreateArguments {
    /// The template
    pub template: String,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    #[command(flatten)]
    pub options: SandboxOptions,
    /// Kill it after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub timeout: Option<Duration>,
    /// Take a checkpoint in the background after each tool call, and keep the last N [N: 16]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "16")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub checkpoint_every_call: Option<u32>,
}

#[derive(Debug, Args)]
pub struct ProcessOptions {
    /// Pass standard input on
    #[arg(long, short)]
    pub interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    pub tty: bool,
    /// Run as this user: name, uid, name:group or uid:gid
    #[arg(long, short, value_name = "USER")]
    pub user: Option<String>,
    /// Working directory
    #[arg(long, short = 'w', value_name = "DIR")]
    pub cwd: Option<String>,
}

#[derive(Debug, Args)]
pub struct ExecArguments {
    /// The sandbox: its id or a unique beginning of it
    pub id: String,
    #[command(flatten)]
    pub options: ProcessOptions,
    /// Set an environment variable
    #[arg(long, short, value_name = "K=V", value_parser = parse::environment)]
    pub env: Vec<(String, String)>,
    /// Kill everything it started after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub timeout: Option<Duration>,
    /// Leave it running in the background and print its pid
    #[arg(long, short, conflicts_with = "interactive")]
    pub detach: bool,
    /// Your own name for it; `attach` and `kill --process` take it too
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RunArguments {
    /// The template
    pub template: String,
    #[command(flatten)]
    pub sandbox: SandboxOptions,
    #[command(flatten)]
    pub process: ProcessOptions,
    /// Kill everything after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub timeout: Option<Duration>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct PsArguments {
    /// List the processes of this sandbox
    pub id: Option<String>,
    /// Print ids alone
    #[arg(long, short)]
    pub quiet: bool,
    /// Only sandboxes with this label
    #[arg(long, short, value_name = "K=V", value_parser = parse::label)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct LogsArguments {
    /// The sandbox
    pub id: String,
    /// Go on as more comes
    #[arg(long, short)]
    pub follow: bool,
    /// Only the last N lines
    #[arg(long, short = 'n', value_name = "N")]
    pub tail: Option<usize>,
    /// Show when each line was written
    #[arg(long, short)]
    pub timestamps: bool,
}

#[derive(Debug, Args)]
pub struct EventsArguments {
    /// Only events after this sequence number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub since: u64,
    /// Stop after what has happened so far
    #[arg(long)]
    pub no_follow: bool,
}

#[derive(Debug, Args)]
pub struct KillArguments {
    /// Ids, or unique beginnings of them
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
    pub ids: Vec<String>,
    /// All sandboxes
    #[arg(long, short)]
    pub all: bool,
    /// Kill this process and all that it started, and leave the sandbox alone
    #[arg(long, short, value_name = "PID|TAG", conflicts_with = "all")]
    pub process: Option<String>,
    /// Send this signal to the process instead
    #[arg(long, short, value_name = "SIGNAL", value_parser = parse::signal, requires = "process")]
    pub signal: Option<u8>,
}

#[derive(Debug, Args)]
pub struct CopyArguments {
    /// ID:PATH, a local path, or - for a tar archive on standard input
    #[arg(value_parser = parse::copy_end)]
    pub source: parse::CopyEnd,
    /// ID:PATH, a local path, or - for a tar archive on standard output
    #[arg(value_parser = parse::copy_end)]
    pub destination: parse::CopyEnd,
}

#[derive(Debug, Args)]
pub struct AttachArguments {
    /// The sandbox
    pub id: String,
    /// The process: its pid inside, or its tag
    #[arg(value_name = "PID|TAG")]
    pub process: String,
    /// Leave out what it wrote before
    #[arg(long)]
    pub no_history: bool,
    /// Pass standard input on
    #[arg(long, short)]
    pub interactive: bool,
}

#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Ask the running daemon to kill all sandboxes and end
    #[arg(long)]
    pub stop: bool,
    /// Started by another command: leave its session, and write one line when ready
    #[arg(long, hide = true)]
    pub on_demand: bool,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Creating, running in and killing sandboxes, beside the host's own figures
    #[command(after_help = "\
Runs against a daemon of its own, in directories of its own, and builds the template that it needs.

Example:
  brood bench sandbox --json --data ./bench-data")]
    Sandbox(BenchArguments),
    /// Freezing, putting back and forking a living session, beside copying and replaying
    #[command(after_help = "\
Runs against a daemon of its own, in directories of its own, and builds the templates that it needs.

Example:
  brood bench checkpoint --json --data ./bench-data")]
    Checkpoint(BenchArguments),
    /// What squeezing idle sandboxes saves, and what touching squeezed pages costs
    #[command(after_help = "\
Runs an engine of its own, in directories of its own, and builds the template that it needs.

Example:
  brood bench squeeze --json")]
    Squeeze {
        /// Four siblings instead of sixteen: a look, not a measurement
        #[arg(long)]
        quick: bool,
    },
}

#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Write the samples behind each figure into this directory
    #[arg(long, value_name = "DIR")]
    pub data: Option<std::path::PathBuf>,
    /// A tenth of the repetitions: a look, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Only these figures, such as exec_true_ms
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub only: Vec<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands() {
                let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example"), "{} has no example", sub.get_name());
                assert!(sub.get_about().is_some(), "{} has no text", sub.get_name());
                check(sub);
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn options_stand_before_the_command_and_no_further() {
        let cli = Cli::try_parse_from(["brood", "exec", "abc", "-i", "--timeout", "3s", "--", "ls", "-t"]).unwrap();
        let Command::Exec(exec) = cli.command else { panic!("not exec") };
        assert!(exec.options.interactive && !exec.options.tty);
        assert_eq!(exec.command, ["ls", "-t"]);
        let cli = Cli::try_parse_from(["brood", "exec", "abc", "ls", "-t", "--", "x"]).unwrap();
        let Command::Exec(exec) = cli.command else { panic!("not exec") };
        assert_eq!(exec.command, ["ls", "-t", "--", "x"]);
    }
}
