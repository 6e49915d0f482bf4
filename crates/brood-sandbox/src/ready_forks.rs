//! Forks of warm templates that were restored ahead of time and stand still, so that handing one out
//! costs no more than letting it go.
//!
//! Each is held by a thread of its own: only the thread that restored a process can let it go. They
//! are made anew while nothing is being handed out. A ready fork is in no list and has no name; it
//! begins when it is handed out.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::{SandboxId, TemplateName};
use crate::model::CreateRequest;
use crate::process::lock;
use crate::sandbox::Sandbox;
use crate::template::Template;

/// Ready forks of each warm template: each costs what a fork costs in memory.
const READY_PER_TEMPLATE: usize = 4;
/// Time without a hand-out after which new ones are made: they must not take the processors from
/// whoever is forking.
const IDLE: Duration = Duration::from_millis(20);

/// A fork that stands still, and the thread that holds it.
#[derive(Debug)]
struct ReadyFork {
    template: Arc<Template>,
    /// Lets it go; dropped, it ends.
    go: mpsc::SyncSender<()>,
    gone: mpsc::Receiver<Result<Arc<Sandbox>>>,
    thread: JoinHandle<()>,
}

/// All ready forks of an engine, and the thread that makes them.
#[derive(Debug, Default)]
pub(crate) struct ReadyForks {
    table: Mutex<HashMap<TemplateName, Vec<ReadyFork>>>,
    wanted: Mutex<Option<mpsc::Sender<Weak<Template>>>>,
    filler: OnceLock<Mutex<Option<JoinHandle<()>>>>,
}

impl ReadyForks {
    /// Starts the thread that makes them.
    pub(crate) fn start(&self, engine: &Arc<Engine>) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        let engine = Arc::downgrade(engine);
        let filler = std::thread::Builder::new()
            .name("ready-forks".to_owned())
            .spawn(move || fill(&engine, &receiver))
            .map_err(|error| EngineError::system("cannot start the thread that makes ready forks", error))?;
        *lock(&self.wanted) = Some(sender);
        let _first = self.filler.set(Mutex::new(Some(filler)));
        Ok(())
    }

    /// Lets a ready fork go, if there is one and the request is a plain one: limits and the like
    /// are set when a sandbox is made. Has others made in its place.
    pub(crate) fn take(&self, template: &Arc<Template>, request: &CreateRequest) -> Result<Option<Arc<Sandbox>>> {
        let plain = CreateRequest { timeout: request.timeout, ..CreateRequest::plain(template.info.name.clone()) };
        if *request != plain {
            return Ok(None);
        }
        let ready = lock(&self.table).get_mut(&template.info.name).and_then(Vec::pop);
        self.want(template);
        let Some(ready) = ready.filter(|ready| Arc::ptr_eq(&ready.template, template)) else { return Ok(None) };
        let broken = || EngineError::new(ErrorKind::Internal, "the thread of a ready fork ended");
        ready.go.send(()).map_err(|_| broken())?;
        let sandbox = ready.gone.recv().map_err(|_| broken())??;
        sandbox.begins_now();
        if request.timeout.is_some() {
            sandbox.set_timeout(request.timeout)?;
        }
        Ok(Some(sandbox))
    }

    /// Has ready forks of a template made when there is time.
    pub(crate) fn want(&self, template: &Arc<Template>) {
        if let Some(wanted) = lock(&self.wanted).as_ref() {
            let _unused = wanted.send(Arc::downgrade(template));
        }
    }

    /// Ends those of a template that is replaced or removed.
    pub(crate) fn discard(&self, template: &Arc<Template>) {
        let mut table = lock(&self.table);
        let Some(of_name) = table.get_mut(&template.info.name) else { return };
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(of_name).into_iter().partition(|ready| Arc::ptr_eq(&ready.template, template));
        *of_name = kept;
        drop(table);
        gone.into_iter().for_each(end);
    }

    /// Ends all, and the threads.
    pub(crate) fn stop(&self) {
        drop(lock(&self.wanted).take());
        let filler = self.filler.get().and_then(|filler| lock(filler).take());
        if let Some(filler) = filler {
            let _panicked = filler.join();
        }
        let table = std::mem::take(&mut *lock(&self.table));
        table.into_values().flatten().for_each(end);
    }
}

fn end(ready: ReadyFork) {
    let ReadyFork { template, go, gone, thread } = ready;
    drop((go, gone, template));
    let _panicked = thread.join();
}

/// Makes what is wanted, as long as somebody may want something.
fn fill(engine: &Weak<Engine>, wanted: &mpsc::Receiver<Weak<Template>>) {
    while let Ok(mut template) = wanted.recv() {
        loop {
            match wanted.recv_timeout(IDLE) {
                Ok(other) => template = other,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        while let (Some(engine), Some(template)) = (engine.upgrade(), template.upgrade()) {
            match add(&engine, &template) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(template = %template.info.name, error = error.chain(), "no fork can be made ready");
                    break;
                }
            }
        }
    }
}

/// Makes one more, unless there are enough; whether it did.
fn add(engine: &Arc<Engine>, template: &Arc<Template>) -> Result<bool> {
    let pool = &engine.ready;
    let name = &template.info.name;
    let is_current = engine.find_template(name).is_ok_and(|current| Arc::ptr_eq(&current, template));
    let count = lock(&pool.table).get(name).map_or(0, Vec::len);
    if lock(&pool.wanted).is_none() || !is_current || count >= READY_PER_TEMPLATE {
        return Ok(false);
    }
    let ready = make(engine, template)?;
    lock(&pool.table).entry(name.clone()).or_default().push(ready);
    // It may have been replaced meanwhile, and its discarding missed this one.
    if !engine.find_template(name).is_ok_and(|current| Arc::ptr_eq(&current, template)) {
        pool.discard(template);
    }
    Ok(true)
}

fn make(engine: &Arc<Engine>, template: &Arc<Template>) -> Result<ReadyFork> {
    let missing = || EngineError::new(ErrorKind::Internal, "the template is not warm");
    let state = Arc::clone(template.warm.get().ok_or_else(missing)?);
    let (go, may_go) = mpsc::sync_channel::<()>(1);
    let (left, gone) = mpsc::sync_channel(1);
    let (stands, standing) = mpsc::sync_channel(1);
    let (weak, of) = (Arc::downgrade(engine), Arc::clone(template));
    let hold = move || {
        let made = weak.upgrade().ok_or_else(|| EngineError::new(ErrorKind::Conflict, "the daemon is shutting down"));
        let request = CreateRequest::plain(of.info.name.clone());
        let made = made.and_then(|engine| {
            engine.make_on(SandboxId::random(), request, of, Arc::clone(&state.stack), state.connected)
        });
        let sandbox = match made {
            Ok(sandbox) => sandbox,
            Err(error) => {
                let _nobody = stands.send(Err(error));
                return;
            }
        };
        let restored = sandbox.restore_when(&state, || {
            let _nobody = stands.send(Ok(()));
            may_go.recv().is_ok()
        });
        match restored {
            Ok(true) => {
                let _nobody = left.send(Ok(sandbox));
            }
            Ok(false) => drop(sandbox.kill()),
            Err(error) => {
                drop(sandbox.kill());
                // One of the two is waited for, according to where it failed.
                if let Err(mpsc::TrySendError::Disconnected(Err(error)) | mpsc::TrySendError::Full(Err(error))) =
                    stands.try_send(Err(error))
                {
                    let _nobody = left.send(Err(error));
                }
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("ready-fork".to_owned())
        .spawn(hold)
        .map_err(|error| EngineError::system("cannot start the thread of a ready fork", error))?;
    let ended = || EngineError::new(ErrorKind::Internal, "the thread of a ready fork ended");
    standing.recv().map_err(|_| ended())??;
    Ok(ReadyFork { template: Arc::clone(template), go, gone, thread })
}
