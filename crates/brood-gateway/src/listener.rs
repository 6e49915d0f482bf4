//! Carries HTTP/1.1 over unix sockets and TCP, with TLS if a certificate is given.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

/// Connections at once: more than all tool calls that a host can carry, and a bound on what a
/// runaway client takes.
const CONNECTIONS_MAX: usize = 8192;
/// Pause after `accept` failed for want of descriptors: something must be closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time that a client of the network may take to send the head of a request, and may let a connection
/// idle: longer than the 300 s for which the E2B clients keep one for the next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(320);
/// Longest head of a request from the network; longer ones are answered with 431.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Time for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Where connections come from.
pub trait Accept {
    /// A connection.
    type Socket: Send + 'static;
    /// A connection that is ready for HTTP.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Whether anybody may connect, so that slow and giant requests must be bounded.
    const PUBLIC: bool;

    /// Waits for the next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Socket>> + Send;

    /// Makes one ready, in a task of its own, so that a slow one keeps nobody waiting.
    fn ready(&self, socket: Self::Socket) -> impl Future<Output = io::Result<Self::Stream>> + Send + 'static;
}

impl Accept for UnixListener {
    type Socket = UnixStream;
    type Stream = UnixStream;
    const PUBLIC: bool = false;

    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }

    fn ready(&self, socket: UnixStream) -> impl Future<Output = io::Result<UnixStream>> + Send + 'static {
        std::future::ready(Ok(socket))
    }
}

impl Accept for TcpListener {
    type Socket = TcpStream;
    type Stream = TcpStream;
    const PUBLIC: bool = true;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Answers are small and must not wait for one another.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn ready(&self, socket: TcpStream) -> impl Future<Output = io::Result<TcpStream>> + Send + 'static {
        std::future::ready(Ok(socket))
    }
}

/// A TCP listener whose connections are encrypted.
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsListener").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl TlsListener {
    /// Encrypts with the chain of certificates and the key in these PEM files.
    ///
    /// # Errors
    /// When a file cannot be read, holds nothing of its kind, or the two do not belong together.
    pub fn new(listener: TcpListener, certificate: &Path, key: &Path) -> io::Result<Self> {
        let named = |path: &Path, error: String| io::Error::other(format!("{}: {error}", path.display()));
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| named(certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(named(certificate, "there is no certificate in it".to_owned()));
        }
        let key_bytes = PrivateKeyDer::from_pem_file(key).map_err(|error| named(key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut configuration = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key_bytes))
            .map_err(|error| named(key, error.to_string()))?;
        configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { listener, acceptor: TlsAcceptor::from(Arc::new(configuration)) })
    }
}

impl Accept for TlsListener {
    type Socket = TcpStream;
    type Stream = TlsStream<TcpStream>;
    const PUBLIC: bool = true;

    async fn accept(&self) -> io::Result<TcpStream> {
        Accept::accept(&self.listener).await
    }

    fn ready(&self, socket: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send + 'static {
        let handshake = self.acceptor.accept(socket);
        async move { tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(io::Error::from)? }
    }
}

/// Binds a TCP address.
///
/// # Errors
/// When the address is in use or not ours.
pub async fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

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
pub async fn serve<A: Accept>(listener: A, router: Router, end: impl Future<Output = ()>) -> Connections {
    let mut connections = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accept = async {
        loop {
            // The semaphore is never closed, so this cannot fail.
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { break };
            match listener.accept().await {
                Ok(socket) => {
                    let (ready, router, stopped) = (listener.ready(socket), router.clone(), stopped.clone());
                    connections.spawn(async move {
                        match ready.await {
                            Ok(stream) => connection(stream, builder(A::PUBLIC), router, stopped, place).await,
                            Err(error) => debug!(%error, "a connection could not be encrypted"),
                        }
                    });
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

fn builder(public: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    if public {
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    }
    builder
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    builder: http1::Builder,
    router: Router,
    mut stopped: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
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
