//! What a network changes on the host besides its interfaces, and how it is undone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::configuration::NetworkConfiguration;
use crate::firewall::{self, DeviceGroup};
use crate::host::SwitchedOn;
use crate::namespace;
use crate::netlink::NetlinkError;
use crate::netlink::batch::Batch;
use crate::netlink::link::{self, InterfaceIndex};
use crate::netlink::socket::Socket;
use crate::network::NetworkError;

/// The changes, undone when dropped, whether the network was ever complete or not.
#[derive(Debug)]
pub(crate) struct HostSetup {
    configuration: NetworkConfiguration,
    /// The network namespace that it is about; whoever drops it may be in another one.
    home: OwnedFd,
    switched_on: SwitchedOn,
    _instance_lock: OwnedFd,
}

impl HostSetup {
    /// Makes sure that no other daemon has the instance, and removes the interfaces that a crashed one left.
    pub(crate) fn begin(configuration: &NetworkConfiguration) -> Result<Self, NetworkError> {
        let instance_lock = lock_instance(&configuration.instance)?;
        remove_leftover_links(&mut Socket::route()?, &configuration.instance)?;
        Ok(Self {
            configuration: configuration.clone(),
            home: namespace::current()?,
            switched_on: firewall::switched_on_by_predecessor(&configuration.instance)?,
            _instance_lock: instance_lock,
        })
    }

    pub(crate) fn add_addresses(&self, links: &mut Socket) -> Result<(), NetlinkError> {
        add_host_addresses(links, &self.configuration)
    }

    /// Tells what is on because of sandboxes, be it since a predecessor.
    pub(crate) fn switch_forwarding_on(&mut self) -> Result<SwitchedOn, NetworkError> {
        let now = SwitchedOn::forwarding(self.configuration.with_ipv6)?;
        self.switched_on = self.switched_on.or(now);
        Ok(self.switched_on)
    }

    fn undo(&self) -> Result<(), NetworkError> {
        let mut links = Socket::route()?;
        remove_leftover_links(&mut links, &self.configuration.instance)?;
        remove_host_addresses(&mut links, &self.configuration)?;
        firewall::delete_table(&self.configuration.instance)?;
        self.switched_on.undo()?;
        Ok(())
    }
}

impl Drop for HostSetup {
    fn drop(&mut self) {
        let undone = namespace::run_inside(self.home.as_fd(), || self.undo());
        if let Err(error) = undone.map_err(NetworkError::from).and_then(|undone| undone) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the network was not removed completely; the next start will do it"
            );
        }
    }
}

/// A name in the abstract namespace of unix sockets, which belongs to the network namespace and goes away with its
/// holder: at most one daemon per instance and network namespace.
fn lock_instance(instance: &str) -> Result<OwnedFd, NetworkError> {
    let failed = |error: Errno| NetworkError::Socket { action: "lock the network instance", source: error.into() };
    let name = format!("brood-network/{instance}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(Errno::ADDRINUSE) => Err(NetworkError::InstanceRunning { instance: instance.to_owned() }),
        Err(error) => Err(failed(error)),
    }
}

fn remove_leftover_links(links: &mut Socket, instance: &str) -> Result<(), NetlinkError> {
    let leftover = link::list_by_prefix(links, &format!("{instance}-"))?;
    link::delete_all(links, &leftover, DeviceGroup::of(instance).doomed())
}

/// The addresses and routes of the host that are there as long as the network is.
fn add_host_addresses(links: &mut Socket, configuration: &NetworkConfiguration) -> Result<(), NetlinkError> {
    let plan = &configuration.addresses;
    let mut batch = Batch::new();
    link::add_address(&mut batch, InterfaceIndex::LOOPBACK, plan.gateway_v4.into(), 32);
    let range = plan.outside_range_v4();
    link::add_unreachable_route(&mut batch, range.network(), range.prefix_bits());
    if configuration.with_ipv6 {
        link::add_address(&mut batch, InterfaceIndex::LOOPBACK, plan.gateway_v6.into(), 128);
        let range = plan.outside_range_v6();
        link::add_unreachable_route(&mut batch, range.network(), range.prefix_bits());
    }
    batch.acknowledge_last();
    links.execute(&mut batch)
}

fn remove_host_addresses(links: &mut Socket, configuration: &NetworkConfiguration) -> Result<(), NetlinkError> {
    let plan = &configuration.addresses;
    let mut requests: Vec<Batch> = Vec::new();
    let mut one = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        batch.acknowledge_last();
        requests.push(batch);
    };
    let range = plan.outside_range_v4();
    one(&|batch| link::delete_unreachable_route(batch, range.network(), range.prefix_bits()));
    one(&|batch| {
        link::delete_address(batch, InterfaceIndex::LOOPBACK, plan.gateway_v4.into(), 32);
    });
    if configuration.with_ipv6 {
        let range = plan.outside_range_v6();
        one(&|batch| link::delete_unreachable_route(batch, range.network(), range.prefix_bits()));
        one(&|batch| {
            link::delete_address(batch, InterfaceIndex::LOOPBACK, plan.gateway_v6.into(), 128);
        });
    }
    for mut batch in requests {
        link::ignoring(links.execute(&mut batch), &[Errno::SRCH, Errno::ADDRNOTAVAIL, Errno::NODEV])?;
    }
    Ok(())
}
