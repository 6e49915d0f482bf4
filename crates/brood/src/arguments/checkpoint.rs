//! Arguments of checkpoints, forks and differences.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct CheckpointArguments {
    #[command(subcommand)]
    pub command: Option<CheckpointCommand>,
    /// The sandbox
    #[arg(required = true)]
    pub id: Option<String>,
    /// Name it, uniquely among the checkpoints of the template
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Freeze the files alone
    #[arg(long)]
    pub no_processes: bool,
}

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints, oldest first
    #[command(after_help = "Example:\n  brood checkpoint ls")]
    Ls,
    /// Show everything about checkpoints
    #[command(after_help = "Example:\n  brood checkpoint inspect before")]
    Inspect {
        /// Ids, beginnings of them, or names
        #[arg(required = true, value_name = "CHECKPOINT")]
        checkpoints: Vec<String>,
    },
    /// Remove checkpoints; those below stay whole
    #[command(after_help = "Example:\n  brood checkpoint rm --recursive before")]
    Rm {
        /// Those below too
        #[arg(long, short)]
        recursive: bool,
        /// Ids, beginnings of them, or names
        #[arg(required = true, value_name = "CHECKPOINT")]
        checkpoints: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct ForkArguments {
    /// A live sandbox (a checkpoint of it is taken), a checkpoint, or a template
    #[arg(value_name = "ID|CHECKPOINT|TEMPLATE")]
    pub from: String,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
}

#[derive(Debug, Args)]
pub struct DiffArguments {
    /// The old state: a sandbox or a checkpoint
    #[arg(value_name = "A")]
    pub old: String,
    /// The new state
    #[arg(value_name = "B")]
    pub new: String,
}
