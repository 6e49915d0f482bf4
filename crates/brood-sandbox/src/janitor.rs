//! A thread for what may block and nobody waits for, such as taking down a sandbox whose time is up.

use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{EngineError, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A queue and the thread that works it off. Jobs run in order.
#[derive(Debug)]
pub(crate) struct Janitor {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Janitor {
    pub(crate) fn start(name: &str) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || receiver.into_iter().for_each(|job| job()))
            .map_err(|error| EngineError::system(format!("cannot start the {name}"), error))?;
        Ok(Self { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Queues a job. After [`stop`](Self::stop) it is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(jobs) = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            let _unused = jobs.send(Box::new(job));
        }
    }

    /// Finishes what is queued and ends.
    pub(crate) fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _panicked = thread.join();
        }
    }
}
