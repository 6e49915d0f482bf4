#![forbid(unsafe_code)]
//! Network namespaces, addresses, policies and name resolution of sandboxes.

mod address;
mod attachment;
mod configuration;
mod dns;
mod firewall;
mod host;
mod janitor;
mod namespace;
mod netlink;
mod network;
mod policies;
mod policy;
mod sandbox;
mod slots;

pub use address::{AddressPlan, Cidr, ParseCidrError};
pub use attachment::{Attachment, Prepared};
pub use configuration::{ConfigurationError, NetworkConfiguration};
pub use dns::{LoggedVerdict, LookUp};
pub use host::HostSettingError;
pub use namespace::{NamespaceError, current as current_namespace};
pub use netlink::NetlinkError;
pub use network::{Network, NetworkError};
pub use policy::{
    Destination, DomainPattern, NameResolution, NetworkLimits, NetworkPolicy, ParseDestinationError, PolicyError,
    RULES_MAX, Verdict,
};
