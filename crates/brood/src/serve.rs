//! The daemon: one engine behind one socket, until it is told to end.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use brood_gateway::e2b::{self, E2bSettings, E2bState};
use brood_gateway::listener::{self, Connections};
use brood_gateway::native::{self, NativeState};
use brood_sandbox::engine::{Engine, EngineSettings};
use rustix::fs::FlockOperation;
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::connect::{READY_LINE, create_directories};
use crate::logging;
use crate::settings::Settings;

/// Threads that carry requests. The engine's work is done by its own threads and by blocking ones.
const WORKERS: usize = 2;

/// Time for clients to take what is left for them when the daemon ends.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the daemon until SIGTERM, SIGINT or a request to end.
///
/// # Errors
/// When it cannot start; it then has left nothing behind.
pub fn run(settings: &Settings, on_demand: bool) -> anyhow::Result<()> {
    if on_demand {
        // A session of its own: the terminal of the command that started us must not take us along.
        rustix::process::setsid().context("cannot leave the caller's session")?;
    }
    brood_kernel::descriptors::keep_from_programs(3).context("cannot keep our descriptors from sandboxes")?;
    logging::start(settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("gateway")
        .enable_all()
        .build()
        .context("cannot start the daemon's threads")?;
    runtime.block_on(serve(settings, on_demand))
}

async fn serve(settings: &Settings, on_demand: bool) -> anyhow::Result<()> {
    let run = &settings.run_directory.value;
    create_directories(&[run, &settings.state_directory.value])?;
    let _lock = lock(run)?;
    let engine = open_engine(settings).await?;
    let opened = open_interfaces(settings, &engine).await;
    let (listener, gateway) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            shut_down(engine).await;
            return Err(error);
        }
    };
    let state = NativeState::new(Arc::clone(&engine), env!("CARGO_PKG_VERSION"));
    let asked = state.shutdown_asked();
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
    info!(socket = %settings.socket().display(), state = %settings.state_directory.value.display(), "serving");
    let router = native::router(state.clone()).merge(e2b::keys::router(gateway.state.clone()));
    let ending = watch::Sender::new(false);
    let public = gateway.serve(ending.subscribe());
    tell_ready(on_demand)?;
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => info!("ending on SIGTERM"),
            _ = interrupt.recv() => info!("ending on SIGINT"),
            () = asked => info!("ending as asked"),
        }
        notify(&[NotifyState::Stopping]);
    };
    let connections = listener::serve(listener, router, end).await;
    ending.send_replace(true);
    // The socket goes first, so that nobody reaches an engine that is going away.
    if let Err(error) = fs::remove_file(settings.socket()) {
        warn!(%error, "the socket could not be removed");
    }
    shut_down(engine).await;
    gateway.state.end();
    // Clients learn how their processes ended before the connections go.
    if tokio::time::timeout(GRACE, state.drain()).await.is_err() {
        warn!("some clients did not take their processes' end");
    }
    if let Ok(Some(public)) = public.await {
        public.finish(GRACE).await;
    }
    connections.finish(GRACE).await;
    info!("ended");
    Ok(())
}

/// The E2B interface, and where it is served.
struct Gateway {
    state: E2bState,
    listener: std::sync::Mutex<Option<Public>>,
}

/// Where the E2B interface is served.
enum Public {
    Plain(TcpListener),
    Encrypted(listener::TlsListener),
}

impl Gateway {
    async fn open(settings: &Settings, engine: &Arc<Engine>) -> anyhow::Result<Self> {
        let address = settings.listen_address()?;
        let listener = match address {
            Some(address) => Some(
                listener::bind_tcp(address)
                    .await
                    .with_context(|| format!("gateway.listen: cannot listen on {address}"))?,
            ),
            None => None,
        };
        let port = listener.as_ref().and_then(|listener| listener.local_addr().ok()).map_or(0, |local| local.port());
        let domain = &settings.gateway_domain.value;
        let domain = if domain.is_empty() { format!("localhost:{port}") } else { domain.clone() };
        let state = E2bState::open(
            Arc::clone(engine),
            E2bSettings {
                domain,
                encrypted: !settings.gateway_tls_certificate.value.as_os_str().is_empty(),
                anonymous: settings.gateway_anonymous.value,
                default_template: settings.gateway_default_template.value.clone(),
                state_directory: settings.state_directory.value.clone(),
            },
        )?;
        if let Some(local) = listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
            let scheme = if settings.gateway_tls_certificate.value.as_os_str().is_empty() { "http" } else { "https" };
            info!("E2B clients: export E2B_API_URL={scheme}://{local} E2B_SANDBOX_URL={scheme}://{local}");
            if state.keys().list().is_empty() && !settings.gateway_anonymous.value {
                info!("E2B clients need a key: `brood key create` makes one");
            }
        }
        let certificate = &settings.gateway_tls_certificate.value;
        let listener = match listener {
            Some(listener) if !certificate.as_os_str().is_empty() => {
                let encrypted = listener::TlsListener::new(listener, certificate, &settings.gateway_tls_key.value);
                Some(Public::Encrypted(encrypted.context("gateway.tls_certificate")?))
            }
            other => other.map(Public::Plain),
        };
        Ok(Self { state, listener: std::sync::Mutex::new(listener) })
    }

    /// Serves in the background until `ending` turns true; the connections that were open then.
    fn serve(&self, mut ending: watch::Receiver<bool>) -> tokio::task::JoinHandle<Option<Connections>> {
        let listener = self.listener.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let state = self.state.clone();
        tokio::spawn(async move {
            let listener = listener?;
            tokio::spawn(state.clone().forget_the_dead());
            let end = async move {
                // When the sender is gone, everything ends.
                drop(ending.wait_for(|ending| *ending).await);
            };
            Some(match listener {
                Public::Plain(listener) => listener::serve(listener, e2b::router(state), end).await,
                Public::Encrypted(listener) => listener::serve(listener, e2b::router(state), end).await,
            })
        })
    }
}

async fn open_interfaces(settings: &Settings, engine: &Arc<Engine>) -> anyhow::Result<(UnixListener, Gateway)> {
    let gateway = Gateway::open(settings, engine).await?;
    Ok((bind(settings)?, gateway))
}

fn lock(run: &Path) -> anyhow::Result<File> {
    let path = run.join("daemon.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("a daemon already runs in {}; `brood serve --stop` ends it", run.display());
    }
    Ok(file)
}

async fn open_engine(settings: &Settings) -> anyhow::Result<Arc<Engine>> {
    let engine_settings = EngineSettings {
        subuid_base: settings.subuid_base.value,
        guardian: Some(vec!["/proc/self/exe".into(), crate::GUARDIAN.into()]),
        ..EngineSettings::new(settings.state_directory.value.clone(), settings.run_directory.value.clone())
    };
    let opened = tokio::task::spawn_blocking(move || Engine::open(engine_settings)).await?;
    opened.map_err(|error| anyhow::anyhow!("{}", error.chain()))
}

async fn shut_down(engine: Arc<Engine>) {
    if let Err(error) = tokio::task::spawn_blocking(move || engine.shutdown()).await {
        warn!(%error, "the engine did not end in order");
    }
}

/// Binds under a temporary name and renames, so that nobody meets a socket with the wrong mode.
fn bind(settings: &Settings) -> anyhow::Result<UnixListener> {
    let socket = settings.socket();
    let new = settings.run_directory.value.join("brood.sock.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", new.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&new).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let group = &settings.socket_group.value;
    let mode = if group.is_empty() { 0o600 } else { 0o660 };
    fs::set_permissions(&new, Permissions::from_mode(mode)).context("cannot set the socket's mode")?;
    if !group.is_empty() {
        let id = group_id(group)?;
        std::os::unix::fs::chown(&new, None, Some(id)).context("cannot set the socket's group")?;
    }
    fs::rename(&new, &socket).with_context(|| format!("cannot put the socket at {}", socket.display()))?;
    Ok(listener)
}

fn group_id(name: &str) -> anyhow::Result<u32> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let groups = fs::read_to_string("/etc/group").context("cannot read /etc/group")?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?))
        })
        .find(|(known, _)| *known == name)
        .and_then(|(_, id)| id.parse().ok())
        .with_context(|| format!("socket_group {name:?} is no group of this host; `groupadd {name}` makes it one"))
}

fn tell_ready(on_demand: bool) -> anyhow::Result<()> {
    notify(&[NotifyState::Ready]);
    if on_demand {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{READY_LINE}").and_then(|()| stdout.flush()).context("nobody waits for this daemon")?;
    }
    Ok(())
}

/// Tells the service manager; without one this does nothing.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "the service manager cannot be told");
    }
}
