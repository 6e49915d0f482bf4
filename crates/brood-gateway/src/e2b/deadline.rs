//! The end of a sandbox's time: a kill, or a pause that traffic or a client may end again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brood_sandbox::ids::SandboxId;
use brood_sandbox::sandbox::Sandbox;
use tokio::task::AbortHandle;

use super::E2bState;
use super::failure::{Failure, blocking};
use super::time::now_ms;

/// Life of a sandbox that traffic has woken.
pub(super) const WOKEN_FOR: Duration = Duration::from_secs(300);

/// What is to be done when sandboxes' time is up, and who is being woken.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    pauses: Mutex<HashMap<String, AbortHandle>>,
    /// Held by whoever wakes a sandbox, so that many requests at once wake it once.
    waking: tokio::sync::Mutex<()>,
}

impl Deadlines {
    fn replace(&self, id: &str, pause: Option<AbortHandle>) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match pause {
            Some(pause) => pauses.insert(id.to_owned(), pause),
            None => pauses.remove(id),
        };
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Forgets all but those for which `keep` says so.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.retain(|id, pause| {
            let kept = keep(id);
            if !kept {
                pause.abort();
            }
            kept
        });
    }
}

impl E2bState {
    /// Sets when a sandbox ends, from now: by being killed, or paused if that was asked for.
    pub(super) fn set_end(&self, sandbox: &Arc<Sandbox>, timeout: Duration) -> Result<(), Failure> {
        let id = sandbox.id().clone();
        let pauses = self.records().of(sandbox).auto_pause;
        sandbox.set_timeout((!pauses).then_some(timeout))?;
        let ends_ms = now_ms().saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self.records().change(sandbox, |record| record.ends_ms = Some(ends_ms));
        let pause = pauses.then(|| {
            let (state, id) = (self.clone(), id.clone());
            tokio::spawn(async move {
                tokio::time::sleep(timeout).await;
                state.pause_or_kill(&id).await;
            })
            .abort_handle()
        });
        self.deadlines().replace(id.as_str(), pause);
        Ok(())
    }

    /// A task of its own does the work, since the caller is aborted by the timer that it replaces.
    async fn pause_or_kill(&self, id: &SandboxId) {
        let (state, id) = (self.clone(), id.clone());
        let done = tokio::spawn(async move {
            let Err(failure) = state.pause(&id).await else { return };
            tracing::warn!(sandbox = %id, reason = failure.message, "a sandbox could not be paused at its end and is killed");
            let engine = Arc::clone(state.engine());
            // It may be gone by now.
            drop(blocking(move || engine.kill(&id)).await);
        });
        drop(done.await);
    }

    /// Pauses a sandbox.
    pub(super) async fn pause(&self, id: &SandboxId) -> Result<(), Failure> {
        let sandbox = self.engine().sandbox(id)?;
        let record = (*self.records().of(&sandbox)).clone();
        drop(sandbox);
        let (engine, paused) = (Arc::clone(self.engine()), id.clone());
        blocking(move || engine.pause(&paused)).await?;
        self.deadlines().replace(id.as_str(), None);
        self.records().insert(id.as_str(), super::record::Record { ends_ms: Some(now_ms()), ..record });
        Ok(())
    }

    /// Brings a paused sandbox back, or gives the live one if somebody else has.
    pub(super) async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<Arc<Sandbox>, Failure> {
        let _alone = self.deadlines().waking.lock().await;
        if let Ok(sandbox) = self.engine().sandbox(id) {
            return Ok(sandbox);
        }
        let record = self.records().find(id.as_str());
        let (engine, resumed) = (Arc::clone(self.engine()), id.clone());
        let sandbox = blocking(move || engine.resume(&resumed)).await?;
        if let Some(record) = record {
            // While it was neither live nor paused the record may have been forgotten.
            self.records().insert(id.as_str(), (*record).clone());
        }
        self.set_end(&sandbox, timeout)?;
        Ok(sandbox)
    }
}
