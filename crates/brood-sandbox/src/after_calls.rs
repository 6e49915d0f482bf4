//! Checkpoints that follow tool calls by themselves, and which of them stay.
//!
//! They are taken while the model thinks: the call's end is reported first, and the next call that
//! comes meanwhile waits no longer than for any checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::events::now_ms;
use crate::model::LogRecord;
use crate::process::lock;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// A tool call has ended: a checkpoint is due, if that was asked for. Several that end before
    /// one is taken share it.
    pub(crate) fn checkpoint_soon(self: &Arc<Self>) {
        if self.request.checkpoint_every_call.is_none() || self.checkpoint_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let sandbox = Arc::downgrade(self);
        self.core.checkpointer.run(move || {
            let Some(sandbox) = sandbox.upgrade() else { return };
            sandbox.checkpoint_due.store(false, Ordering::Release);
            sandbox.checkpoint_by_itself();
        });
    }

    fn checkpoint_by_itself(self: &Arc<Self>) {
        let Some(kept) = self.request.checkpoint_every_call else { return };
        if let Err(error) = self.checkpoint_as(None, true, true) {
            if self.ensure_running().is_ok() {
                let text = format!("no checkpoint was taken after a call: {}\n", error.chain());
                tracing::warn!(sandbox = %self.id(), error = error.chain(), "no checkpoint after a call");
                self.logs().push(|_| LogRecord { time_ms: now_ms(), pid: None, stream: "engine".to_owned(), text });
            }
            return;
        }
        let sandboxes = self.core.all_sandboxes();
        let is_used = |id: &_| sandboxes.iter().any(|sandbox| lock(&sandbox.at).as_ref() == Some(id));
        for id in self.core.checkpoints.outdated(self.id(), kept as usize, is_used) {
            // Somebody may have removed it meanwhile.
            drop(self.core.remove_checkpoint(&id, false));
        }
    }
}
