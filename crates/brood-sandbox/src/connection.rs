//! How one sandbox is connected: what it may reach, and how it is reached.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use brood_network::{Attachment, LoggedVerdict, PortForward};
use rustix::process::Pid;

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::SandboxId;
use crate::model::{CreateRequest, GroupMembership, LookUp, LookUpVerdict, NetworkRequest, PublishedPort};
use crate::network::{Access, Membership, SandboxNetwork, network_error};
use crate::process::lock;
use crate::sandbox::Sandbox;
use crate::storage;

/// A sandbox's network namespace and what leads out of it and into it.
#[derive(Debug)]
pub(crate) struct Connection(Mutex<State>);

#[derive(Debug)]
struct State {
    request: NetworkRequest,
    /// None once the sandbox has ended: an open descriptor would keep the namespace.
    namespace: Option<Arc<OwnedFd>>,
    /// None for a sandbox that has its loopback interface alone.
    attachment: Option<Attachment>,
    forwards: Vec<Forward>,
    groups: Vec<Joined>,
}

#[derive(Debug)]
struct Forward {
    published: PublishedPort,
    forward: PortForward,
}

#[derive(Debug)]
struct Joined {
    membership: GroupMembership,
    _place: Membership,
}

/// Whose connection it is.
pub(crate) struct Owner<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) host_name: &'a str,
    /// A child that has not been waited for.
    pub(crate) init: Pid,
}

impl Connection {
    /// Connects a new sandbox, publishes its ports and makes it join its groups: all, or nothing.
    pub(crate) fn new(
        network: &SandboxNetwork,
        owner: &Owner<'_>,
        request: &CreateRequest,
        access: Option<Access>,
    ) -> Result<Self> {
        let path = format!("/proc/{}/ns/net", owner.init.as_raw_nonzero());
        let namespace = File::open(&path).map_err(|error| EngineError::system(format!("cannot open {path}"), error))?;
        let namespace: Arc<OwnedFd> = Arc::new(namespace.into());
        let attachment = access.map(|access| access.attach(namespace.as_fd())).transpose()?;
        let forwards =
            request.publish.iter().map(|wanted| publish(network, &namespace, *wanted)).collect::<Result<_>>()?;
        let groups = request.groups.iter().map(|wanted| join(network, owner, attachment.as_ref(), wanted));
        let groups = groups.collect::<Result<_>>()?;
        let request = request.network.clone();
        Ok(Self(Mutex::new(State { request, namespace: Some(namespace), attachment, forwards, groups })))
    }

    /// What may be reached now.
    pub(crate) fn request(&self) -> NetworkRequest {
        lock(&self.0).request.clone()
    }

    /// Whether it has more than its loopback interface.
    pub(crate) fn is_attached(&self) -> bool {
        lock(&self.0).attachment.is_some()
    }

    /// Its address as others see it.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        lock(&self.0).attachment.as_ref().map(Attachment::outside_address)
    }

    /// Ports of the host that lead inside, as they came to be.
    pub(crate) fn published(&self) -> Vec<PublishedPort> {
        lock(&self.0).forwards.iter().map(|forward| forward.published).collect()
    }

    /// The groups that it is in.
    pub(crate) fn groups(&self) -> Vec<GroupMembership> {
        lock(&self.0).groups.iter().map(|joined| joined.membership.clone()).collect()
    }

    /// Ends all connections that lead outside, as it must be when the sandbox is put back to an earlier state.
    pub(crate) fn reset_outside(&self) -> Result<()> {
        let state = lock(&self.0);
        state.forwards.iter().for_each(|forward| forward.forward.reset_connections());
        match &state.attachment {
            Some(attachment) => attachment.reset_connections().map_err(network_error),
            None => Ok(()),
        }
    }

    /// Disconnects it. The processes inside must be gone.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.0);
        let ended = (state.attachment.take(), std::mem::take(&mut state.forwards), std::mem::take(&mut state.groups));
        state.namespace = None;
        drop(state);
        drop(ended);
    }
}

fn publish(network: &SandboxNetwork, namespace: &Arc<OwnedFd>, wanted: PublishedPort) -> Result<Forward> {
    let forward = network.forwarder()?.forward(wanted.host, namespace, wanted.port).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => ErrorKind::Conflict,
            io::ErrorKind::AddrNotAvailable => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        EngineError::caused_by(kind, format!("port {} of the host cannot be published", wanted.host), error)
    })?;
    // The port may have been the kernel's choice.
    let host: SocketAddr = forward.local_address();
    Ok(Forward { published: PublishedPort { host, ..wanted }, forward })
}

fn join(
    network: &SandboxNetwork,
    owner: &Owner<'_>,
    attachment: Option<&Attachment>,
    wanted: &GroupMembership,
) -> Result<Joined> {
    let attachment = attachment
        .ok_or_else(|| EngineError::new(ErrorKind::Internal, "a sandbox without network cannot join a group"))?;
    let alias = wanted.alias.as_deref().unwrap_or(owner.host_name);
    let place = network.join(attachment, owner.id, &wanted.group, alias)?;
    let membership = GroupMembership { group: wanted.group.clone(), alias: Some(alias.to_owned()) };
    Ok(Joined { membership, _place: place })
}

impl Sandbox {
    /// Changes what it may reach, at once: connections that are not allowed any more are cut.
    ///
    /// # Errors
    /// `Invalid` for a rule that cannot be read, `NotFound` when it is gone.
    pub fn set_network(&self, request: NetworkRequest) -> Result<()> {
        let mut state = lock(&self.connection.0);
        let namespace = Arc::clone(state.namespace.as_ref().ok_or_else(|| self.gone())?);
        match &state.attachment {
            Some(attachment) => {
                attachment.set_policy(self.core.network.policy(&request)?).map_err(network_error)?;
            }
            None => {
                let access = self.core.network.access(&request, false)?;
                let resolver = self.core.network.resolver(access.is_some());
                self.with_disk(|disk| storage::write_resolver(&disk.mount, &resolver, self.core.id_base))??;
                state.attachment = access.map(|access| access.attach(namespace.as_fd())).transpose()?;
            }
        }
        state.request = request;
        Ok(())
    }

    /// Connects to a TCP port inside, as a program inside would: on 127.0.0.1, then on `::1`, then on the sandbox's own
    /// address. It needs no network of the sandbox and no published port, and may be called by many threads at once.
    ///
    /// # Errors
    /// `NotFound` when nothing accepts connections there, or the sandbox is gone.
    pub fn connect(&self, port: u16) -> Result<TcpStream> {
        self.ensure_running()?;
        // Not under the lock: a full backlog inside must not hold up anything else.
        let namespace = lock(&self.connection.0).namespace.clone().ok_or_else(|| self.gone())?;
        brood_network::connect_inside(namespace.as_fd(), self.core.network.addresses(), port).map_err(|error| {
            let message = format!("nothing accepts connections on port {port} of sandbox {}", self.id());
            EngineError::caused_by(ErrorKind::NotFound, message, error)
        })
    }

    /// The last names that it looked up, oldest first.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn look_ups(&self) -> Result<Vec<LookUp>> {
        self.ensure_running()?;
        let state = lock(&self.connection.0);
        let look_ups = state.attachment.as_ref().map(Attachment::look_ups).unwrap_or_default();
        Ok(look_ups.into_iter().map(look_up).collect())
    }
}

fn look_up(logged: brood_network::LookUp) -> LookUp {
    let since_1970 = logged.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    LookUp {
        time_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
        name: logged.name,
        record_type: logged.record_type,
        verdict: match logged.verdict {
            LoggedVerdict::Allowed => LookUpVerdict::Allowed,
            LoggedVerdict::Denied => LookUpVerdict::Denied,
            LoggedVerdict::Failed => LookUpVerdict::Failed,
        },
        addresses: logged.addresses,
    }
}
