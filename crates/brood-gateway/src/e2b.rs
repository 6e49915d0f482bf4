//! The E2B interface: what the official, unmodified E2B clients speak, on a TCP port.
//!
//! One port carries two planes, which [`dispatch`] tells apart:
//!
//! - the **control plane** ([`control`]): sandboxes and templates as REST, for holders of an API key;
//! - the **data plane**: traffic to one port of one sandbox, named by host (`<port>-<id>.<domain>`)
//!   or by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`. Port 49983 is [`envd`] (files and
//!   processes), any other is a server inside ([`ports`]).
//!
//! Field names and status codes follow the clients; `docs/e2b.md` tells which calls are there.

mod auth;
mod connect;
mod control;
mod deadline;
mod dispatch;
mod edge;
mod envd;
mod failure;
pub mod keys;
mod ports;
mod record;
mod store;
mod target;
mod templates;
mod time;
mod tokens;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use brood_sandbox::engine::Engine;
use brood_sandbox::model::EventObject;
use tokio::sync::watch;

pub use store::StoreError;

/// The release of envd whose behaviour this interface has. Clients switch features on by it, so it
/// must be a real version, and no newer than what is here.
pub(crate) const ENVD_VERSION: &str = "0.6.13";

/// How the interface is set up.
#[derive(Debug, Clone)]
pub struct E2bSettings {
    /// What stands behind `<port>-<id>.` in host names, with the port if it is not the usual one.
    pub domain: String,
    /// Whether the port speaks TLS by itself.
    pub encrypted: bool,
    /// Whether everyone who reaches the port may use the control plane.
    pub anonymous: bool,
    /// The template that the name `base` stands for when there is none of that name.
    pub default_template: String,
    /// Directory for what outlives the daemon.
    pub state_directory: PathBuf,
}

/// What all handlers share.
#[derive(Debug, Clone)]
pub struct E2bState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    settings: E2bSettings,
    keys: keys::Keys,
    records: record::Records,
    tokens: tokens::Tokens,
    idempotency: control::Idempotency,
    samples: control::Samples,
    watchers: envd::Watchers,
    deadlines: deadline::Deadlines,
    snapshots: control::Snapshots,
    counts: edge::Counts,
    builds: control::Builds,
    templates: templates::Templates,
    /// Turns true when the daemon ends and streams that would go on must end.
    ended: watch::Sender<bool>,
}

impl E2bState {
    /// The state of an interface to this engine.
    ///
    /// # Errors
    /// When the file with keys and records cannot be opened or was made by a newer version.
    pub fn open(engine: Arc<Engine>, settings: E2bSettings) -> Result<Self, StoreError> {
        let store = Arc::new(store::Store::open(&settings.state_directory.join("gateway.sqlite"))?);
        let tokens = tokens::Tokens::new(&store.secret()?);
        let keys = keys::Keys::load(Arc::clone(&store))?;
        let templates = templates::Templates::load(store)?;
        let records = record::Records::default();
        Ok(Self(Arc::new(Shared {
            engine,
            settings,
            keys,
            records,
            tokens,
            idempotency: control::Idempotency::default(),
            samples: control::Samples::default(),
            watchers: envd::Watchers::default(),
            deadlines: deadline::Deadlines::default(),
            snapshots: control::Snapshots::default(),
            counts: edge::Counts::default(),
            builds: control::Builds::default(),
            templates,
            ended: watch::Sender::new(false),
        })))
    }

    /// The API keys.
    pub fn keys(&self) -> &keys::Keys {
        &self.0.keys
    }

    /// To be called when the daemon ends: streams that would go on end.
    pub fn end(&self) {
        self.0.ended.send_replace(true);
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    fn settings(&self) -> &E2bSettings {
        &self.0.settings
    }

    fn records(&self) -> &record::Records {
        &self.0.records
    }

    fn tokens(&self) -> &tokens::Tokens {
        &self.0.tokens
    }

    fn idempotency(&self) -> &control::Idempotency {
        &self.0.idempotency
    }

    fn samples(&self) -> &control::Samples {
        &self.0.samples
    }

    fn watchers(&self) -> &envd::Watchers {
        &self.0.watchers
    }

    fn deadlines(&self) -> &deadline::Deadlines {
        &self.0.deadlines
    }

    fn counts(&self) -> &edge::Counts {
        &self.0.counts
    }

    fn builds(&self) -> &control::Builds {
        &self.0.builds
    }

    fn templates(&self) -> &templates::Templates {
        &self.0.templates
    }

    fn snapshots(&self) -> &control::Snapshots {
        &self.0.snapshots
    }

    /// Forgets what is known of sandboxes as they end. To be run as a task of its own.
    pub async fn forget_the_dead(self) {
        let events = self.engine().events();
        let mut next = events.next_sequence();
        let mut ended = self.ended();
        loop {
            let more = std::future::poll_fn(|context| events.poll_since(context, next));
            let found = tokio::select! {
                found = more => found,
                _ = ended.wait_for(|ended| *ended) => return,
            };
            next = found.1;
            if found.0.iter().any(|event| event.object == EventObject::Sandbox && event.action == "die") {
                // Asked of the engine one by one, since a record comes after its sandbox.
                let lives = |id: &str| {
                    id.parse().is_ok_and(|id| self.engine().sandbox(&id).is_ok())
                        || self.engine().paused().iter().any(|info| info.id.as_str() == id)
                };
                self.records().retain(lives);
                self.samples().retain(lives);
                self.watchers().retain(lives);
                self.deadlines().retain(lives);
            }
        }
    }

    fn ended(&self) -> watch::Receiver<bool> {
        self.0.ended.subscribe()
    }
}

/// The interface as a service for [`listener`](crate::listener).
pub fn router(state: E2bState) -> Router {
    let control = control::router(state.clone());
    Router::new().fallback(dispatch::dispatch).with_state(dispatch::Planes { state, control })
}
