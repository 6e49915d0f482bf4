//! Carries HTTP/1.1 over a unix socket.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Connections at once: more than all tool calls that a host can carry, and a bound on what a
/// runaway client takes.
const CONNECTIONS_MAX: usize = 8192;
/// Pause after `accept` failed for want of descriptors: something must be closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that were open when the listener ended.
#[derive(Debug)]
pub struct Connections(JoinSet<()>);

impl Connections {
    /// Waits until their requests are answered, but no longer than `grace`.
    pub async fn finish(mut self, grace: Duration) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            debug!(connections = self.0.len(), "connections that did not end were cut");
        }
    }
}

/// Accepts connections until `end`, and then tells all of them to end after the request in hand.
pub async fn serve(listener: UnixListener, router: Router, end: impl Future<Output = ()>) -> Connections {
    let mut connections = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accept = async {
        loop {
            // The semaphore is never closed, so this cannot fail.
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { break };
            match listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), stopped.clone(), place));
                    while connections.try_join_next().is_some() {}
                }
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = end => {}
    }
    stop.send_replace(true);
    Connections(connections)
}

async fn connection(
    stream: UnixStream,
    router: Router,
    mut stopped: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Clients that go away in the middle are no event.
        debug!(%error, "a connection broke");
    }
}
