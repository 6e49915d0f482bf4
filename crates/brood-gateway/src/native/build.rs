//! Template builds, told as they go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use brood_api::types::BuildMessage;
use brood_sandbox::build::BuildProgress;
use brood_sandbox::model::BuildRequest;
use tokio::sync::mpsc;

use super::failure::{Failure, Input};
use super::{NativeState, json_lines};

/// Messages on their way to a client. A client that does not read slows the build's output down.
const MESSAGES_AHEAD: usize = 256;
/// How often a transfer is reported: as often as a person can see.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the build and answers with its messages. A client that goes away does not end it.
pub(super) async fn build(
    State(state): State<NativeState>,
    Input(request): Input<BuildRequest>,
) -> Result<Response, Failure> {
    let (sender, receiver) = mpsc::channel(MESSAGES_AHEAD);
    let engine = Arc::clone(state.engine());
    tokio::task::spawn_blocking(move || {
        let progress = Sink { sender, reported: Mutex::new(HashMap::new()) };
        let last = match engine.build_template(request, &progress) {
            Ok(template) => BuildMessage::Done { template: Box::new(template) },
            Err(error) => BuildMessage::Failed { error: error.into() },
        };
        progress.send(&last);
    });
    let lines = futures::stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    Ok(json_lines(Body::from_stream(lines)))
}

struct Sink {
    sender: mpsc::Sender<Bytes>,
    /// When each transfer was last reported.
    reported: Mutex<HashMap<String, Instant>>,
}

impl Sink {
    fn send(&self, message: &BuildMessage) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        // A client that is gone does not end the build.
        drop(self.sender.blocking_send(line.into()));
    }
}

impl BuildProgress for Sink {
    fn step(&self, index: usize, total: usize, text: &str, cached: bool) {
        self.send(&BuildMessage::Step { index, total, text: text.to_owned(), cached });
    }

    fn output(&self, text: &str) {
        self.send(&BuildMessage::Output { text: text.to_owned() });
    }

    fn transfer(&self, item: &str, done_bytes: u64, total_bytes: Option<u64>) {
        let complete = total_bytes == Some(done_bytes);
        {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let due = reported.get(item).is_none_or(|last| now - *last >= TRANSFER_INTERVAL);
            if !due && !complete {
                return;
            }
            reported.insert(item.to_owned(), now);
        }
        self.send(&BuildMessage::Transfer { item: item.to_owned(), done_bytes, total_bytes });
    }
}
