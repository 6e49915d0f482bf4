//! What sandboxes may reach and how they are reached.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::ids::SandboxId;

/// What a sandbox may reach that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkAccess {
    /// Nothing: only its own loopback interface, if no rule allows more.
    #[default]
    None,
    /// Everything outside, but never the host's own services, link-local addresses or other sandboxes.
    All,
}

/// What a sandbox may reach. What is allowed wins over what is denied, and both over `access`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkRequest {
    /// What happens to destinations that no rule names.
    pub access: NetworkAccess,
    /// Addresses, ranges (`10.0.0.0/8`) and names (`example.com`, `*.example.com`) that may be reached.
    pub allow: Vec<String>,
    /// The same, that may not be reached.
    pub deny: Vec<String>,
    /// Name servers to ask instead of the host's, in this order.
    pub name_servers: Vec<IpAddr>,
    /// Bytes per second, each for what it sends and what it receives; none is the daemon's default.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// Connections to the outside at a time; none is the daemon's default.
    pub connections: Option<u32>,
}

/// A port of the host that leads to a port inside. TCP only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPort {
    /// Address and port of the host; port 0 lets the kernel choose one.
    pub host: SocketAddr,
    /// The port inside.
    pub port: u16,
}

/// Membership of a group: a private network whose members find each other by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupMembership {
    /// The group.
    pub group: String,
    /// The sandbox's name in it; none is its host name.
    #[serde(default)]
    pub alias: Option<String>,
}

/// A group as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Who is in it, by name.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its name in the group.
    pub alias: String,
    /// Its address for the other members.
    pub address: IpAddr,
}

/// A name that a sandbox looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookUp {
    /// When it was answered, in milliseconds since 1970.
    pub time_ms: u64,
    /// The name, in lower case and without a final dot.
    pub name: String,
    /// The record type by its number: 1 is A, 28 AAAA.
    pub record_type: u16,
    /// What was decided.
    pub verdict: LookUpVerdict,
    /// The addresses in the answer.
    pub addresses: Vec<IpAddr>,
}

/// What was decided about a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LookUpVerdict {
    /// It was answered.
    Allowed,
    /// The policy denies the name.
    Denied,
    /// No name server answered.
    Failed,
}
