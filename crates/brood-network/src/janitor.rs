//! Taking connections down, in the background and many at a time: deleting a veth makes the kernel wait for every packet
//! in flight, which is too long for whoever kills a sandbox.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::address::Slot;
use crate::firewall::{DeviceGroup, Port, RemovedPort};
use crate::netlink::NetlinkError;
use crate::netlink::connections;
use crate::netlink::link;
use crate::netlink::socket::Socket;
use crate::network::{Filter, NetworkError, Shared, lock};
use crate::sandbox::Sandbox;

/// Connections taken down in one go: keeps the time for which others wait for the packet filter short.
const BATCH_MAX: usize = 64;

/// A connection to take down.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) slot: Slot,
    pub(crate) port: Port,
    /// What it was, if it was under a policy.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
}

#[derive(Debug)]
enum Message {
    Remove(Removal),
    Idle(Sender<()>),
    Stop,
}

/// The thread that takes connections down.
#[derive(Debug)]
pub(crate) struct Janitor {
    handle: JanitorHandle,
    thread: Option<JoinHandle<()>>,
}

/// Where connections to take down are sent.
#[derive(Debug, Clone)]
pub(crate) struct JanitorHandle(Sender<Message>);

impl Janitor {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, NetworkError> {
        let (sender, receiver) = channel();
        // Sockets of its own: others must not wait while links are deleted.
        let links = Socket::route()?;
        let tracked = Socket::netfilter()?;
        let thread = std::thread::Builder::new()
            .name("network-janitor".to_owned())
            .spawn(move || work(&shared, links, tracked, &receiver))
            .map_err(|source| NetworkError::Socket { action: "start the thread that removes connections", source })?;
        Ok(Self { handle: JanitorHandle(sender), thread: Some(thread) })
    }

    pub(crate) fn handle(&self) -> JanitorHandle {
        self.handle.clone()
    }

    /// Finishes what was sent and ends the thread.
    pub(crate) fn stop(&mut self) {
        self.handle.send(Message::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that removes connections panicked");
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stop();
    }
}

impl JanitorHandle {
    pub(crate) fn remove(&self, removal: Removal) {
        self.send(Message::Remove(removal));
    }

    /// Returns when everything sent before is taken down.
    pub(crate) fn wait_until_idle(&self) {
        let (sender, receiver) = channel();
        self.send(Message::Idle(sender));
        // An error means that the thread has ended, and it ends with nothing left to do.
        receiver.recv().ok();
    }

    /// After the thread has ended the network removes everything at once, so that nothing is lost with the message.
    fn send(&self, message: Message) {
        self.0.send(message).ok();
    }
}

fn work(shared: &Shared, mut links: Socket, mut tracked: Socket, receiver: &Receiver<Message>) {
    while let Ok(first) = receiver.recv() {
        let mut removals = Vec::new();
        let mut waiting = Vec::new();
        let mut is_stopping = false;
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Remove(removal) => removals.push(removal),
                Message::Idle(sender) => waiting.push(sender),
                Message::Stop => is_stopping = true,
            }
            next = if removals.len() < BATCH_MAX { receiver.try_recv().ok() } else { None };
        }
        take_down(shared, &mut links, &mut tracked, removals);
        for sender in waiting {
            sender.send(()).ok();
        }
        if is_stopping {
            return;
        }
    }
}

fn take_down(shared: &Shared, links: &mut Socket, tracked: &mut Socket, removals: Vec<Removal>) {
    if removals.is_empty() {
        return;
    }
    if let Err(error) = forget(shared, &removals) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "sandboxes could not be removed from the packet filter"
        );
    }
    let interfaces: Vec<_> = removals.iter().map(|removal| removal.port.interface).collect();
    let doomed = DeviceGroup::of(&shared.configuration.instance).doomed();
    if let Err(error) = forget_connections(shared, tracked, &removals) {
        tracing::warn!(error = &error as &dyn std::error::Error, "connections of sandboxes are still tracked");
    }
    match link::delete_all(links, &interfaces, doomed) {
        Ok(()) => {
            let mut slots = lock(&shared.slots);
            for removal in removals {
                slots.give_back(removal.slot);
            }
        }
        // The addresses stay taken as long as the interfaces exist.
        Err(error) => tracing::warn!(
            error = &error as &dyn std::error::Error,
            count = interfaces.len(),
            "the veths of sandboxes could not be deleted"
        ),
    }
}

/// Makes the kernel forget the connections of sandboxes that are gone.
fn forget_connections(shared: &Shared, tracked: &mut Socket, removals: &[Removal]) -> Result<(), NetlinkError> {
    let of_v4: Vec<_> = removals.iter().map(|removal| removal.port.outside_v4).collect();
    connections::forget(tracked, &of_v4)?;
    if shared.configuration.with_ipv6 {
        let of_v6: Vec<_> = removals.iter().map(|removal| removal.port.outside_v6).collect();
        connections::forget(tracked, &of_v6)?;
    }
    Ok(())
}

/// Takes sandboxes out of the packet filter.
fn forget(shared: &Shared, removals: &[Removal]) -> Result<(), NetlinkError> {
    let mut filter = lock(&shared.filter);
    let Filter { firewall, policies, groups } = &mut *filter;
    let mut ports = Vec::with_capacity(removals.len());
    let mut released = Vec::new();
    for removal in removals {
        let mut port =
            RemovedPort { interface: removal.port.interface, policy: None, pinned: Vec::new(), groups: Vec::new() };
        if let Some(sandbox) = &removal.sandbox {
            let state = lock(&sandbox.state);
            port.policy = Some(state.applied.clone());
            port.pinned = state.pinned.keys().copied().collect();
            for group in &state.groups {
                port.groups.push((group.id, groups.leave(group, removal.slot)));
            }
            released.push((Arc::clone(&state.policy), state.applied.clone()));
        }
        ports.push(port);
    }
    firewall.remove_ports(&ports)?;
    for (policy, applied) in released {
        policies.release(firewall, &policy, &applied)?;
    }
    Ok(())
}
