//! Arguments of what sandboxes reach and how they are reached.

use brood_sandbox::model::{NetworkAccess, PublishedPort};
use clap::{Args, Subcommand};

use crate::parse;

/// How a new sandbox is connected.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkOptions {
    /// What it may reach that no rule names: none (loopback only) or all (but never the host's own
    /// services or other sandboxes)
    #[arg(long, value_name = "ACCESS", default_value = "none", value_parser = parse::network_access)]
    pub network: NetworkAccess,
    /// Let it reach an address, range or name, such as 10.0.0.0/8 or *.example.com
    #[arg(long, value_name = "DESTINATION")]
    pub allow: Vec<String>,
    /// Keep it from reaching one
    #[arg(long, value_name = "DESTINATION")]
    pub deny: Vec<String>,
    #[command(flatten)]
    pub limits: NetworkLimits,
    /// Lead a port of this host inside, for everybody who reaches the host (or this address of it)
    #[arg(long, short = 'p', value_name = "[[IP:]HOST:]PORT", value_parser = parse::published_port)]
    pub publish: Vec<PublishedPort>,
    /// Put it on the private network of a group, whose members find each other by name
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Its name in the group [default: its host name]
    #[arg(long, value_name = "NAME", requires = "group")]
    pub alias: Option<String>,
}

/// How much a sandbox may do on the network.
#[derive(Debug, Args)]
pub struct NetworkLimits {
    /// Most bytes per second that it may send, and as many that it may receive
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    pub bandwidth: Option<u64>,
    /// Most connections to the outside at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,
}

#[derive(Debug, Args)]
pub struct NetworkArguments {
    #[command(subcommand)]
    pub command: Option<NetworkCommand>,
    /// The sandbox
    #[arg(required = true)]
    pub id: Option<String>,
    /// What it may reach that no rule names: none or all. Replaces all that was said before
    #[arg(long, value_name = "ACCESS", value_parser = parse::network_access)]
    pub network: Option<NetworkAccess>,
    /// Let it reach an address, range or name, such as 10.0.0.0/8 or *.example.com
    #[arg(long, value_name = "DESTINATION", requires = "network")]
    pub allow: Vec<String>,
    /// Keep it from reaching one
    #[arg(long, value_name = "DESTINATION", requires = "network")]
    pub deny: Vec<String>,
    /// Most bytes per second that it may send, and as many that it may receive
    #[arg(long, value_name = "SIZE", requires = "network", value_parser = parse::size)]
    pub bandwidth: Option<u64>,
    /// Most connections to the outside at a time
    #[arg(long, value_name = "N", requires = "network", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,
    /// Show the names that it looked up last
    #[arg(long, conflicts_with = "network")]
    pub look_ups: bool,
}

#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// Make a group: a private network whose members find each other by name
    #[command(after_help = "Example:\n  brood network create task-1\n  \
        brood create postgres --group task-1 --alias database")]
    Create {
        /// Its name: letters, digits and dashes
        group: String,
    },
    /// List groups and their members
    #[command(after_help = "Example:\n  brood network ls")]
    Ls,
    /// Remove groups that have no members
    #[command(after_help = "Example:\n  brood network rm task-1")]
    Rm {
        /// Their names
        #[arg(required = true, value_name = "GROUP")]
        groups: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct PortForwardArguments {
    /// The sandbox
    pub id: String,
    /// Which ports; `:REMOTE` lets the kernel choose the local one, and 127.0.0.1 is the address if none is given
    #[arg(required = true, value_name = "[ADDRESS:]LOCAL:REMOTE", value_parser = parse::forwarded_port)]
    pub ports: Vec<PublishedPort>,
}
