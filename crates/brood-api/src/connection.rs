//! Connections to the daemon, kept open between requests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::error::ApiError;

/// Connections kept for the next request: as many as a command line or a benchmark uses at once.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// A request's body: in one piece or as a stream.
pub type Body = BoxBody<Bytes, io::Error>;

/// A body in one piece.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Open connections to one socket.
#[derive(Debug)]
pub(crate) struct Pool {
    socket: PathBuf,
    idle: Mutex<Vec<SendRequest<Body>>>,
}

impl Pool {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, idle: Mutex::new(Vec::new()) }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request on an open connection, or on a new one when there is none or the open one
    /// turns out to be closed before the request was sent.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<(Response<Incoming>, Sender), ApiError> {
        while let Some(mut sender) = self.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Sender(sender))),
                Err(mut failure) => match failure.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(failure.into_error().into()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await?;
        Ok((response, Sender(sender)))
    }

    pub(crate) async fn open(&self) -> Result<(), ApiError> {
        let sender = self.connect().await?;
        self.give_back(Sender(sender));
        Ok(())
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn give_back(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS_MAX && !sender.0.is_closed() {
            idle.push(sender.0);
        }
    }

    fn take_idle(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|sender| !sender.is_closed())
    }

    async fn connect(&self) -> Result<SendRequest<Body>, ApiError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ApiError::Unreachable { socket: self.socket.clone(), source })?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The task ends when the sender is dropped or the daemon closes; either way the next request
        // sees it, so its own result says nothing new.
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        Ok(sender)
    }
}

/// A connection that is in use.
#[derive(Debug)]
pub(crate) struct Sender(SendRequest<Body>);
