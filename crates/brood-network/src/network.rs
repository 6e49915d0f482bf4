//! The network of one daemon: start, prepare, attach.

use std::collections::HashMap;
use std::ffi::CString;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::io::Errno;

use crate::address::{AddressPlan, Cidr, Slot};
use crate::attachment::{Attachment, Prepared};
use crate::configuration::{ConfigurationError, NetworkConfiguration};
use crate::dns::NameServer;
use crate::firewall::{self, DeviceGroup, Firewall, FirewallConfiguration, Port};
use crate::groups::{GroupError, Groups};
use crate::host::HostSettingError;
use crate::host_setup::HostSetup;
use crate::janitor::Janitor;
use crate::namespace::{self, NamespaceError};
use crate::netlink::NetlinkError;
use crate::netlink::batch::Batch;
use crate::netlink::link::{self, InterfaceIndex, MAC_BYTES, VethPair};
use crate::netlink::socket::Socket;
use crate::policies::Policies;
use crate::policy::{NetworkPolicy, PolicyError};
use crate::proxy::Proxy;
use crate::relay::{Relay, RelayHandle};
use crate::sandbox::Sandbox;
use crate::slots::Slots;

/// The address of both ends of every veth: locally administered, "BROOD" in ASCII behind it.
const MAC: [u8; MAC_BYTES] = [0x02, 0x42, 0x52, 0x4f, 0x4f, 0x44];
/// The sandbox's interface has this number in every sandbox. Above what the kernel makes by itself in a new namespace.
const INSIDE_INDEX: InterfaceIndex = InterfaceIndex(64);
/// The sandbox's interface has this name in every sandbox.
const INSIDE_NAME: &std::ffi::CStr = c"eth0";
/// How often a number for a new interface is tried that turns out to be taken by something else on the host.
const INTERFACE_TRIES: u32 = 16;

/// Why a network could not be started, or a sandbox not be put on it.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Settings that cannot be used.
    #[error("the network settings cannot be used")]
    Configuration(#[from] ConfigurationError),
    /// A policy that cannot be carried out.
    #[error("the network policy cannot be carried out")]
    Policy(#[from] PolicyError),
    /// Another daemon uses the same instance name in this network namespace.
    #[error("another daemon already runs the network instance {instance:?} here")]
    InstanceRunning {
        /// The name.
        instance: String,
    },
    /// A socket of the network itself could not be set up.
    #[error("could not {action}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A setting of the host could not be changed.
    #[error("the host could not be set up for sandboxes")]
    Host(#[from] HostSettingError),
    /// The kernel refused a request about links, addresses, routes or the packet filter.
    #[error("the kernel refused a network request")]
    Netlink(#[from] NetlinkError),
    /// The sandbox's network namespace could not be entered.
    #[error("the sandbox's network namespace cannot be used")]
    Namespace(#[from] NamespaceError),
    /// A sandbox could not join a group.
    #[error("the sandbox cannot join the group")]
    Group(#[from] GroupError),
    /// All outside addresses are in use.
    #[error("all 65534 sandbox addresses are in use; kill some sandboxes")]
    Full,
}

/// Everything that attachments and threads share.
///
/// Lock order: `filter`, then a sandbox's own state; none of the others is held while another one is taken.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) configuration: NetworkConfiguration,
    pub(crate) mtu_bytes: u32,
    /// Whether the kernel was started with IPv6; without it, requests about it are errors.
    pub(crate) kernel_has_v6: bool,
    /// Ranges that no sandbox reaches.
    pub(crate) never: Vec<Cidr>,
    pub(crate) relay: RelayHandle,
    pub(crate) filter: Mutex<Filter>,
    pub(crate) links: Mutex<Socket>,
    /// For the table of connections.
    pub(crate) tracked: Mutex<Socket>,
    pub(crate) slots: Mutex<Slots>,
    pub(crate) sandboxes: RwLock<HashMap<Slot, Arc<Sandbox>>>,
}

/// The packet filter table, and the policies and groups that have chains in it.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) firewall: Firewall,
    pub(crate) policies: Policies,
    pub(crate) groups: Groups,
}

/// A network for sandboxes in the network namespace of the thread that starts it.
///
/// Dropping it removes all that it set up; attachments that still exist then lose their connection.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    janitor: Janitor,
    name_server: NameServer,
    proxy: Proxy,
    relay: Relay,
    _setup: HostSetup,
}

impl Network {
    /// Sets the host up: removes what a crashed daemon of the same instance left, creates one packet filter table, gives
    /// the loopback device the gateway's address, switches forwarding on, and starts the name server.
    ///
    /// # Errors
    /// Settings out of range, another daemon with the same instance name, or a kernel that refuses (the caller needs
    /// `CAP_NET_ADMIN` in its network namespace and `CAP_SYS_ADMIN`).
    pub fn start(configuration: NetworkConfiguration) -> Result<Self, NetworkError> {
        configuration.check()?;
        let mut setup = HostSetup::begin(&configuration)?;
        let mut links = Socket::route()?;
        setup.add_addresses(&mut links)?;
        let name_server = NameServer::bind(&configuration)?;
        let proxy = Proxy::bind(&configuration)?;
        let relay = Relay::start().map_err(|source| NetworkError::Socket {
            action: "start the thread that copies between connections",
            source,
        })?;
        let switched_on = setup.switch_forwarding_on()?;
        let mtu_bytes = match configuration.mtu_bytes {
            Some(bytes) => bytes,
            None => link::default_route_mtu(&mut links)?.unwrap_or(MTU_BYTES_DEFAULT),
        };
        let firewall_configuration = FirewallConfiguration {
            table: configuration.instance.clone(),
            group: DeviceGroup::of(&configuration.instance),
            plan: configuration.addresses,
            with_v6: configuration.with_ipv6,
            connections_max: configuration.connections_max,
            never: configuration.never.clone(),
            name_server_port: name_server.port(),
            proxy_port: proxy.port(),
            switched_on,
        };
        let never = firewall::never(&firewall_configuration);
        let mut firewall = Firewall::create(firewall_configuration)?;
        let policies = Policies::create(&mut firewall)?;
        let shared = Arc::new(Shared {
            configuration,
            mtu_bytes,
            kernel_has_v6: std::path::Path::new("/proc/net/if_inet6").exists(),
            never,
            relay: relay.handle(),
            filter: Mutex::new(Filter { firewall, policies, groups: Groups::default() }),
            links: Mutex::new(links),
            tracked: Mutex::new(Socket::netfilter()?),
            slots: Mutex::new(Slots::new()),
            sandboxes: RwLock::new(HashMap::new()),
        });
        let janitor = Janitor::start(Arc::clone(&shared))?;
        let name_server = name_server.start(Arc::clone(&shared))?;
        let proxy = proxy.start(Arc::clone(&shared), relay.handle())?;
        Ok(Self { shared, janitor, name_server, proxy, relay, _setup: setup })
    }

    /// Connects `namespace` (which must be new: no interfaces but `lo`) without letting anything through yet. This is the
    /// expensive half of [`Network::attach`], to be done ahead of time where a namespace can be had ahead of time.
    ///
    /// # Errors
    /// All addresses are in use, or the kernel refuses.
    pub fn prepare(&self, namespace: BorrowedFd<'_>) -> Result<Prepared, NetworkError> {
        let kept = keep(namespace)?;
        let slot = lock(&self.shared.slots).take().ok_or(NetworkError::Full)?;
        match self.connect(namespace, slot) {
            Ok(port) => Ok(Prepared::new(Arc::clone(&self.shared), self.janitor.handle(), slot, port, kept)),
            Err(error) => {
                lock(&self.shared.slots).give_back(slot);
                Err(error)
            }
        }
    }

    /// Connects `namespace` under `policy`.
    ///
    /// # Errors
    /// As [`Network::prepare`], or a policy that cannot be carried out.
    pub fn attach(&self, namespace: BorrowedFd<'_>, policy: NetworkPolicy) -> Result<Attachment, NetworkError> {
        policy.check()?;
        self.prepare(namespace)?.attach(policy)
    }

    /// The addresses that every sandbox sees.
    #[must_use]
    pub fn addresses(&self) -> &AddressPlan {
        &self.shared.configuration.addresses
    }

    /// The text of `/etc/resolv.conf` for every sandbox.
    #[must_use]
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.addresses().gateway_v4)
    }

    /// Creates the veth pair and configures both ends.
    fn connect(&self, namespace: BorrowedFd<'_>, slot: Slot) -> Result<Port, NetworkError> {
        let plan = self.addresses();
        let outside_v4 = plan.outside_v4_of(slot).into();
        let outside_v6 = plan.outside_v6_of(slot).into();
        let interface = self.create_pair(namespace, slot, outside_v4, outside_v6)?;
        let port = Port { interface, outside_v4, outside_v6 };
        let configured = self.configure_inside(namespace).and_then(|()| {
            let mut batch = Batch::new();
            link::settle(&mut batch, interface);
            batch.acknowledge_last();
            lock(&self.shared.links).execute(&mut batch)?;
            Ok(lock(&self.shared.filter).firewall.add_port(&port)?)
        });
        if let Err(error) = configured {
            let doomed = DeviceGroup::of(&self.shared.configuration.instance).doomed();
            link::delete_all(&mut lock(&self.shared.links), &[interface], doomed)?;
            return Err(error);
        }
        Ok(port)
    }

    fn create_pair(
        &self,
        namespace: BorrowedFd<'_>,
        slot: Slot,
        outside_v4: IpAddr,
        outside_v6: IpAddr,
    ) -> Result<InterfaceIndex, NetworkError> {
        let configuration = &self.shared.configuration;
        let plan = &configuration.addresses;
        let name =
            CString::new(format!("{}-{}", configuration.instance, slot.0)).expect("checked to be letters and digits");
        let mut tries = 0;
        loop {
            let index = lock(&self.shared.slots).next_interface();
            let mut batch = Batch::new();
            link::create_veth(
                &mut batch,
                &VethPair {
                    host_name: &name,
                    host_index: index,
                    host_group: DeviceGroup::of(&configuration.instance).living(),
                    inside_name: INSIDE_NAME,
                    inside_index: INSIDE_INDEX,
                    inside_namespace: namespace,
                    mac: MAC,
                    mtu_bytes: self.shared.mtu_bytes,
                },
            );
            link::up_without_link_local(&mut batch, index, self.shared.kernel_has_v6);
            link::add_host_route(&mut batch, index, outside_v4, plan.gateway_v4.into());
            if configuration.with_ipv6 {
                link::add_host_route(&mut batch, index, outside_v6, plan.gateway_v6.into());
            }
            batch.acknowledge_last();
            tries += 1;
            match lock(&self.shared.links).execute(&mut batch) {
                Ok(()) => return Ok(index),
                Err(error) if error.errno() == Some(Errno::EXIST) && tries < INTERFACE_TRIES => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn configure_inside(&self, namespace: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let configuration = &self.shared.configuration;
        let plan = &configuration.addresses;
        let mut batch = Batch::new();
        link::up(&mut batch, InterfaceIndex::LOOPBACK);
        link::up_without_link_local(&mut batch, INSIDE_INDEX, self.shared.kernel_has_v6);
        let bits = plan.inside_prefix_bits_v4;
        link::add_address(&mut batch, INSIDE_INDEX, plan.inside_v4.into(), bits);
        link::add_default_route(&mut batch, INSIDE_INDEX, plan.gateway_v4.into());
        if configuration.with_ipv6 {
            let bits = plan.inside_prefix_bits_v6;
            link::add_address(&mut batch, INSIDE_INDEX, plan.inside_v6.into(), bits);
            link::add_default_route(&mut batch, INSIDE_INDEX, plan.gateway_v6.into());
        }
        batch.acknowledge_last();
        let mut socket = namespace::run_inside(namespace, Socket::route)??;
        Ok(socket.execute(&mut batch)?)
    }
}

impl Drop for Network {
    /// The threads end first, those that others report to last; what is set up on the host goes with its own field.
    fn drop(&mut self) {
        self.proxy.stop();
        self.name_server.stop();
        self.relay.stop();
        self.janitor.stop();
    }
}

/// MTU where the host has no default route to take it from.
const MTU_BYTES_DEFAULT: u32 = 1500;

/// Locks, also when another thread panicked while it held the lock: what the locks protect is either ours to describe
/// what the kernel has, or a socket, and neither is half-changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor of the same namespace that lives as long as its owner needs it.
pub(crate) fn keep(namespace: BorrowedFd<'_>) -> Result<OwnedFd, NetworkError> {
    namespace
        .as_fd()
        .try_clone_to_owned()
        .map_err(|source| NetworkError::Socket { action: "keep the sandbox's network namespace", source })
}

/// Daemons share these between threads.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Network>();
    is_shared::<Prepared>();
    is_shared::<Attachment>();
    is_shared::<crate::port_forward::PortForward>();
};
