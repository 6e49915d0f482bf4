//! A sandbox's connection to the network, from preparation to removal.

use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::Slot;
use crate::dns::LookUp;
use crate::firewall::{AppliedPolicy, Port};
use crate::janitor::{JanitorHandle, Removal};
use crate::network::{Filter, NetworkError, Shared, keep, lock};
use crate::policy::NetworkPolicy;
use crate::sandbox::{Sandbox, SandboxState};

/// A namespace that is connected but under no policy: nothing gets through.
#[derive(Debug)]
pub struct Prepared {
    connection: Connection,
}

/// The veth pair and its place in the packet filter; removed when dropped.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    janitor: JanitorHandle,
    slot: Slot,
    port: Port,
    namespace: Option<OwnedFd>,
}

impl Prepared {
    pub(crate) fn new(
        shared: Arc<Shared>,
        janitor: JanitorHandle,
        slot: Slot,
        port: Port,
        namespace: BorrowedFd<'_>,
    ) -> Result<Self, NetworkError> {
        let mut connection = Connection { shared, janitor, slot, port, namespace: None };
        connection.namespace = Some(keep(namespace)?);
        Ok(Self { connection })
    }

    /// Puts `policy` in force.
    ///
    /// # Errors
    /// A policy that cannot be carried out, or a kernel that refuses; the namespace is then disconnected.
    pub fn attach(self, policy: NetworkPolicy) -> Result<Attachment, NetworkError> {
        policy.check()?;
        let connection = self.connection;
        let applied = connection.put_in_force(&policy)?;
        let sandbox = Arc::new(Sandbox {
            slot: connection.slot,
            port: connection.port,
            state: Mutex::new(SandboxState { policy: Arc::new(policy), applied, pinned: HashSet::new() }),
            look_ups: Mutex::default(),
        });
        connection
            .shared
            .sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(connection.slot, Arc::clone(&sandbox));
        Ok(Attachment { connection, sandbox })
    }
}

impl Connection {
    fn put_in_force(&self, policy: &NetworkPolicy) -> Result<AppliedPolicy, NetworkError> {
        let mut filter = lock(&self.shared.filter);
        let Filter { firewall, policies } = &mut *filter;
        let applied = policies.acquire(firewall, policy)?;
        match firewall.set_policy(self.port.interface, None, Some(&applied)) {
            Ok(()) => Ok(applied),
            Err(error) => {
                policies.release(firewall, policy, &applied)?;
                Err(error.into())
            }
        }
    }
}

/// A sandbox on the network. Dropping it disconnects the sandbox, a moment later; [`Attachment::detach`] waits for it.
#[derive(Debug)]
pub struct Attachment {
    connection: Connection,
    sandbox: Arc<Sandbox>,
}

impl Attachment {
    /// Replaces the policy. Connections that the new one would not allow are cut at their next packet; the others go on.
    ///
    /// # Errors
    /// A policy that cannot be carried out, or a kernel that refuses; the old policy then stays in force.
    pub fn set_policy(&self, policy: NetworkPolicy) -> Result<(), NetworkError> {
        policy.check()?;
        let mut filter = lock(&self.connection.shared.filter);
        let filter = &mut *filter;
        let mut state = lock(&self.sandbox.state);
        let applied = filter.policies.acquire(&mut filter.firewall, &policy)?;
        let interface = self.connection.port.interface;
        let changed = filter.firewall.set_policy(interface, Some(&state.applied), Some(&applied));
        if let Err(error) = changed {
            filter.policies.release(&mut filter.firewall, &policy, &applied)?;
            return Err(error.into());
        }
        let old_policy = std::mem::replace(&mut state.policy, Arc::new(policy));
        let old_applied = std::mem::replace(&mut state.applied, applied);
        filter.policies.release(&mut filter.firewall, &old_policy, &old_applied)?;
        Ok(())
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<NetworkPolicy> {
        Arc::clone(&lock(&self.sandbox.state).policy)
    }

    /// The last names that the sandbox looked up, oldest first.
    #[must_use]
    pub fn look_ups(&self) -> Vec<LookUp> {
        lock(&self.sandbox.look_ups).entries()
    }

    /// Disconnects the sandbox and returns when it is done.
    pub fn detach(self) {
        let janitor = self.connection.janitor.clone();
        drop(self);
        janitor.wait_until_idle();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let sandbox = self.shared.sandboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&self.slot);
        self.janitor.remove(Removal { slot: self.slot, port: self.port, sandbox, namespace: self.namespace.take() });
    }
}
