//! What PID 1 reports, on the reactor's thread.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use brood_init_protocol::{Exited, Kind};
use rustix::event::epoll::EventFlags;

use super::Sandbox;
use crate::control::Message;
use crate::model::{EventObject, ExitReason, ExitReport};
use crate::process::{Process, ProcessEnd, Streams, lock};
use crate::reactor::Source;
use crate::spawn;

impl Sandbox {
    pub(super) fn announce<const N: usize>(&self, action: &str, pid: u32, attributes: [(&str, String); N]) {
        let mut attributes: BTreeMap<String, String> =
            attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        attributes.insert("pid".to_owned(), pid.to_string());
        self.core.announce(EventObject::Process, self.id.as_str(), action, attributes);
    }

    /// One message of PID 1, on the reactor's thread.
    fn received(self: &Arc<Self>, mut message: Message) {
        match message.header.kind {
            Kind::Spawned => {
                self.process_started(&mut message);
                self.init.control.deliver(message);
            }
            Kind::Exited => {
                if let Some(exited) = Exited::decode(&message.body) {
                    self.process_ended(exited);
                }
            }
            _ => self.init.control.deliver(message),
        }
    }

    fn process_started(&self, message: &mut Message) {
        let Some(starting) = lock(&self.starting).remove(&message.header.request) else { return };
        let Some(pid) = message.body.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)) else { return };
        let streams = match starting.pipes {
            Some(pipes) => pipes,
            None => match message.descriptors.pop().map(spawn::nonblocking) {
                Some(Ok(master)) => Streams::Terminal { master },
                _ => return,
            },
        };
        let process = starting.process;
        lock(&self.processes).live.insert(pid, Arc::clone(&process));
        process.started(pid, streams, &self.core.reactor, &self.log);
    }

    fn process_ended(self: &Arc<Self>, exited: Exited) {
        let Some(process) = lock(&self.processes).live.remove(&exited.pid) else { return };
        let reason = reason_of(exited.wait_status);
        let was_killed = matches!(reason, ExitReason::Signaled(9) | ExitReason::Exited(137));
        let end = ProcessEnd {
            reason,
            out_of_memory: was_killed && self.is_out_of_memory_news(),
            cpu_us: exited.cpu_us,
            resident_peak_kib: exited.resident_peak_kib,
            sandbox_memory_peak_bytes: self.cgroup.memory_peak_bytes().unwrap_or(0),
        };
        if let Some(timer) = lock(&process.timer).take() {
            self.core.reactor.cancel(timer);
        }
        // Before anybody can react to the end: the next call finds the group free.
        let group = lock(&process.cgroup).take();
        if let Some(group) = group {
            self.give_back(group);
        }
        self.remember(Arc::clone(&process));
        let report = process.ended(end);
        self.announce_end(&process, &report);
        if !process.is_background() {
            self.checkpoint_soon();
        }
    }

    fn announce_end(&self, process: &Process, report: &ExitReport) {
        let attributes = [
            ("exit_code", report.shell_code().to_string()),
            ("reason", format!("{:?}", report.reason)),
            ("duration_us", report.duration_us.to_string()),
        ];
        self.announce("exec_die", process.pid(), attributes);
    }

    /// Whether the kernel has killed something for want of memory since this was last asked.
    fn is_out_of_memory_news(&self) -> bool {
        let now = self.cgroup.out_of_memory_kills().unwrap_or(0);
        now > self.out_of_memory_seen.swap(now, Ordering::AcqRel)
    }

    /// PID 1 is gone without having been told to go.
    fn lost(self: &Arc<Self>) {
        if let Some(token) = self.token.get() {
            self.core.reactor.deregister(self.init.control.as_fd(), *token);
        }
        self.init.control.abandon();
        let sandbox = Arc::clone(self);
        self.core.janitor.run(move || sandbox.end_because("its PID 1 ended"));
    }
}

fn reason_of(wait_status: u32) -> ExitReason {
    // As in wait(2): the low seven bits name a signal, the next byte is the exit code.
    match wait_status & 0x7f {
        0 => ExitReason::Exited((wait_status >> 8 & 0xff) as u8),
        signal => ExitReason::Signaled(signal as u8),
    }
}

/// Listens to a PID 1.
pub(super) struct Listener {
    pub(super) sandbox: Weak<Sandbox>,
}

impl Source for Listener {
    fn ready(&self, _: EventFlags) {
        let Some(sandbox) = self.sandbox.upgrade() else { return };
        loop {
            match sandbox.init.control.receive(false) {
                Ok(Some(message)) => sandbox.received(message),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(None) => return sandbox.lost(),
                Err(error) => {
                    tracing::error!(sandbox = %sandbox.id, %error, "PID 1 cannot be understood");
                    return sandbox.lost();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_are_read_as_the_kernel_writes_them() {
        assert_eq!(reason_of(0), ExitReason::Exited(0));
        assert_eq!(reason_of(7 << 8), ExitReason::Exited(7));
        assert_eq!(reason_of(9), ExitReason::Signaled(9));
        assert_eq!(reason_of(0x80 | 11), ExitReason::Signaled(11));
    }
}
