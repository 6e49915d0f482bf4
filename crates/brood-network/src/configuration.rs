//! What a network is started with.

use std::net::IpAddr;

use crate::address::{AddressPlan, Cidr};

/// Longest instance name: interface names have 15 bytes, six of which are for a dash and a number.
pub(crate) const INSTANCE_BYTES_MAX: usize = 9;
/// Smallest MTU that IPv6 allows, and so the smallest that is accepted (RFC 8200).
pub(crate) const MTU_BYTES_MIN: u32 = 1280;
/// Largest Ethernet MTU that veth takes.
pub(crate) const MTU_BYTES_MAX: u32 = 65_535;

/// Settings of a [`Network`](crate::Network).
#[derive(Debug, Clone)]
pub struct NetworkConfiguration {
    /// Name of the packet filter table and beginning of every interface's name: 1 to 9 letters, digits or `_`. At start
    /// everything in the namespace that carries the name is taken for the rest of a crashed daemon and removed.
    pub instance: String,
    /// The addresses to use.
    pub addresses: AddressPlan,
    /// Whether sandboxes get IPv6, which needs forwarding switched on for the whole host. Without it no IPv6 packet of a
    /// sandbox gets anywhere, and name lookups have no IPv6 answers.
    pub with_ipv6: bool,
    /// Ranges that no policy opens, besides link-local and other special ones.
    pub never: Vec<Cidr>,
    /// Whether the address of an allowed *name* may be a private one (10.0.0.0/8 and the like). If not, a hostile name
    /// server cannot open the host's own network by giving such answers.
    pub private_answers: bool,
    /// Name servers to ask, instead of those in `/etc/resolv.conf`.
    pub name_servers: Vec<IpAddr>,
    /// Connections that any one sandbox may have at a time, whatever its policy says: the kernel's table of connections
    /// (262,144 entries on most hosts) is shared by all of them and the host.
    pub connections_max: u32,
    /// MTU of the sandboxes' interfaces in bytes; `None` takes that of the host's default route.
    pub mtu_bytes: Option<u32>,
}

impl Default for NetworkConfiguration {
    fn default() -> Self {
        Self {
            instance: "brood".to_owned(),
            addresses: AddressPlan::default(),
            with_ipv6: false,
            never: Vec::new(),
            private_answers: false,
            name_servers: Vec::new(),
            connections_max: 4096,
            mtu_bytes: None,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    /// Not a usable instance name.
    #[error("the instance name {instance:?} is not 1 to {INSTANCE_BYTES_MAX} letters, digits or underscores")]
    Instance {
        /// The name given.
        instance: String,
    },
    /// Addresses that overlap or do not belong together.
    #[error("the address plan does not hold together: {plan:?}")]
    Addresses {
        /// The plan given.
        plan: Box<AddressPlan>,
    },
    /// A limit of zero.
    #[error("connections_max is zero, so no sandbox could connect to anything")]
    NoConnections,
    /// An MTU out of range.
    #[error("an MTU of {mtu_bytes} bytes is not between {MTU_BYTES_MIN} and {MTU_BYTES_MAX}")]
    Mtu {
        /// The MTU given.
        mtu_bytes: u32,
    },
}

impl NetworkConfiguration {
    /// Whether the settings can be used.
    ///
    /// # Errors
    /// The first setting that cannot.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        let instance = &self.instance;
        let is_named = (1..=INSTANCE_BYTES_MAX).contains(&instance.len())
            && instance.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_named {
            return Err(ConfigurationError::Instance { instance: instance.clone() });
        }
        if !self.addresses.is_sound() {
            return Err(ConfigurationError::Addresses { plan: Box::new(self.addresses) });
        }
        if self.connections_max == 0 {
            return Err(ConfigurationError::NoConnections);
        }
        match self.mtu_bytes {
            Some(mtu_bytes) if !(MTU_BYTES_MIN..=MTU_BYTES_MAX).contains(&mtu_bytes) => {
                Err(ConfigurationError::Mtu { mtu_bytes })
            }
            _ => Ok(()),
        }
    }
}
