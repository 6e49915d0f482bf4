#![forbid(unsafe_code)]
//! The network of sandboxes: ways out with rules, ways in by name, and nothing left behind.
//!
//! A [`Network`] serves the sandboxes of one daemon in the network namespace where it is started. It is given the network
//! namespace of a sandbox, connects it by a veth pair and puts a [`NetworkPolicy`] in force; the [`Attachment`] stands for
//! that connection until it is dropped. Every sandbox sees the same addresses inside. On the host side they are rewritten to
//! ones that no other sandbox has, and from there on one fixed set of packet filter rules serves all.
//!
//! ```no_run
//! # fn sandbox_namespace() -> std::os::fd::OwnedFd { std::fs::File::open("/proc/self/ns/net").expect("a namespace").into() }
//! use std::os::fd::AsFd;
//!
//! use brood_network::{Network, NetworkConfiguration, NetworkPolicy};
//!
//! let network = Network::start(NetworkConfiguration::default())?;
//! let namespace = sandbox_namespace();
//! // Ahead of time, where the namespace is there ahead of time; costs most.
//! let prepared = network.prepare(namespace.as_fd())?;
//! // When the sandbox is handed out.
//! let policy = NetworkPolicy::only(["*.example.com".parse()?, "203.0.113.0/24".parse()?]);
//! let attachment = prepared.attach(policy)?;
//! attachment.set_policy(NetworkPolicy::all())?;
//! let stream = attachment.connect(8080)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate knows namespaces, packets and names. It knows nothing of processes, files or checkpoints, makes no namespace
//! of its own, and runs no other program: links and rules are set up by netlink.

mod address;
mod attachment;
mod configuration;
mod dns;
mod egress;
mod examine;
mod firewall;
mod groups;
mod host;
mod host_setup;
mod inward;
mod janitor;
mod namespace;
mod netlink;
mod network;
mod policies;
mod policy;
mod port_forward;
mod proxy;
mod registry_settings;
mod relay;
mod sandbox;
mod slots;

pub use address::{AddressPlan, Cidr, ParseCidrError};
pub use attachment::{Attachment, Prepared, Traffic};
pub use configuration::{ConfigurationError, NetworkConfiguration};
pub use dns::{LoggedVerdict, LookUp};
pub use egress::{EgressError, EgressOptions};
pub use examine::{Finding, examine};
pub use groups::{GroupError, check_group_name};
pub use host::HostSettingError;
pub use inward::{ConnectError, connect_inside};
pub use namespace::{NamespaceError, current as current_namespace};
pub use netlink::NetlinkError;
pub use network::{Network, NetworkError};
pub use policy::{
    Destination, DomainPattern, NameResolution, NetworkLimits, NetworkPolicy, ParseDestinationError, PolicyError,
    RULES_MAX, Verdict,
};
pub use port_forward::{Forwarder, PortForward};
pub use registry_settings::RegistrySettings;
