#![forbid(unsafe_code)]
//! Network namespaces, addresses, policies and name resolution of sandboxes.

mod address;
mod attachment;
mod configuration;
mod dns;
mod egress;
mod firewall;
mod groups;
mod host;
mod inward;
mod janitor;
mod namespace;
mod netlink;
mod network;
mod policies;
mod policy;
mod port_forward;
mod proxy;
mod relay;
mod sandbox;
mod slots;

pub use address::{AddressPlan, Cidr, ParseCidrError};
pub use attachment::{Attachment, Prepared};
pub use configuration::{ConfigurationError, NetworkConfiguration};
pub use dns::{LoggedVerdict, LookUp};
pub use egress::{EgressError, EgressOptions};
pub use groups::GroupError;
pub use host::HostSettingError;
pub use inward::ConnectError;
pub use namespace::{NamespaceError, current as current_namespace};
pub use netlink::NetlinkError;
pub use network::{Network, NetworkError};
pub use policy::{
    Destination, DomainPattern, NameResolution, NetworkLimits, NetworkPolicy, ParseDestinationError, PolicyError,
    RULES_MAX, Verdict,
};
pub use port_forward::PortForward;
