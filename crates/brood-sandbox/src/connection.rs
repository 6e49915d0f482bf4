//! How one sandbox is connected: what it may reach, and how it is reached.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use brood_network::Attachment;
use rustix::process::Pid;

use crate::error::{EngineError, ErrorKind, Result};
use crate::model::NetworkRequest;
use crate::network::{Access, network_error, policy, resolver};
use crate::process::lock;
use crate::sandbox::Sandbox;
use crate::storage;

/// A sandbox's network namespace and what leads out of it.
#[derive(Debug)]
pub(crate) struct Connection(Mutex<State>);

#[derive(Debug)]
struct State {
    request: NetworkRequest,
    /// None once the sandbox has ended: an open descriptor would keep the namespace.
    namespace: Option<Arc<OwnedFd>>,
    /// None for a sandbox that has its loopback interface alone.
    attachment: Option<Attachment>,
}

impl Connection {
    /// Connects the network namespace of `init`, a child that has not been waited for.
    pub(crate) fn new(init: Pid, request: &NetworkRequest, access: Option<Access>) -> Result<Self> {
        let path = format!("/proc/{}/ns/net", init.as_raw_nonzero());
        let namespace = File::open(&path).map_err(|error| EngineError::system(format!("cannot open {path}"), error))?;
        let attachment = access.map(|access| access.attach(namespace.as_fd())).transpose()?;
        let namespace = Some(Arc::new(namespace.into()));
        Ok(Self(Mutex::new(State { request: request.clone(), namespace, attachment })))
    }

    /// What may be reached now.
    pub(crate) fn request(&self) -> NetworkRequest {
        lock(&self.0).request.clone()
    }

    /// Disconnects it. The processes inside must be gone.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.0);
        let attachment = state.attachment.take();
        state.namespace = None;
        drop(state);
        drop(attachment);
    }
}

impl Sandbox {
    /// Changes what it may reach, at once.
    ///
    /// # Errors
    /// `Invalid` for a rule that cannot be read, `NotFound` when it is gone.
    pub fn set_network(&self, request: NetworkRequest) -> Result<()> {
        let mut state = lock(&self.connection.0);
        let namespace = Arc::clone(state.namespace.as_ref().ok_or_else(|| self.gone())?);
        match &state.attachment {
            Some(attachment) => attachment.set_policy(policy(&request)?).map_err(network_error)?,
            None => {
                let access = self.core.network.access(&request)?;
                self.with_disk(|disk| storage::write_resolver(disk, &resolver(access.as_ref()), self.core.id_base))??;
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
}
