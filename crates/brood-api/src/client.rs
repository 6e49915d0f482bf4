//! One method for each thing that the native interface offers.

use std::path::{Path, PathBuf};

use brood_sandbox::checkpoint::CheckpointInfo;
use brood_sandbox::memory::{RestoreInfo, SqueezeInfo};
use brood_sandbox::model::{
    BuildRequest, Event, GroupInfo, HistoryEntry, LogRecord, LookUp, NetworkRequest, ProcessInfo, ProcessRequest,
    SandboxInfo, SandboxStats, TemplateInfo,
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::connection::Body;
use crate::connection::{Pool, whole};
use crate::error::{ApiError, ErrorBody};
use crate::frame::{FrameError, PROTOCOL};
use crate::session::Session;
use crate::types::{
    BuildMessage, CompletedProcess, CreateGroup, CreateSandboxes, FileChange, FileEntry, Fork, KeyInfo, MakeKey,
    NewKey, PORT_PROTOCOL, PREFIX, Rollback, SendSignal, SetTimeout, TakeCheckpoint, VersionInfo,
};

/// Longest answer that is read into memory: lists of a thousand sandboxes fit many times.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest line of a stream of JSON lines.
const LINE_BYTES_MAX: usize = 8 << 20;

/// A connection to a port inside a sandbox.
pub type PortConnection = TokioIo<Upgraded>;

/// A client of one daemon. Cheap to share by reference; connections are re-used.
#[derive(Debug)]
pub struct Client {
    pool: Pool,
}

impl Client {
    /// A client for the daemon behind this socket. Connects with the first request.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { pool: Pool::new(socket.into()) }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        self.pool.socket()
    }

    /// Opens a connection and keeps it for the next request, which tells whether a daemon is there.
    ///
    /// # Errors
    /// [`ApiError::Unreachable`] when none is.
    pub async fn open(&self) -> Result<(), ApiError> {
        self.pool.open().await
    }

    /// The daemon's version and process id.
    ///
    /// # Errors
    /// As for all methods: [`ApiError::Unreachable`] without a daemon, [`ApiError::Remote`] with the
    /// daemon's reason, and broken connections.
    pub async fn version(&self) -> Result<VersionInfo, ApiError> {
        self.get("/version").await
    }

    /// Asks the daemon to kill all sandboxes and end.
    pub async fn shutdown(&self) -> Result<(), ApiError> {
        self.call(Method::POST, "/shutdown", whole("")).await.map(drop)
    }

    /// All templates.
    pub async fn templates(&self) -> Result<Vec<TemplateInfo>, ApiError> {
        self.get("/templates").await
    }

    /// One template.
    pub async fn template(&self, name: &str) -> Result<TemplateInfo, ApiError> {
        self.get(&format!("/templates/{}", encode(name))).await
    }

    /// The layers of a template, newest first.
    pub async fn template_history(&self, name: &str) -> Result<Vec<HistoryEntry>, ApiError> {
        self.get(&format!("/templates/{}/history", encode(name))).await
    }

    /// Removes a template.
    pub async fn remove_template(&self, name: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, &format!("/templates/{}", encode(name)), whole("")).await.map(drop)
    }

    /// Builds a template; the stream ends with `Done` or `Failed`.
    pub async fn build_template(&self, request: &BuildRequest) -> Result<Lines<BuildMessage>, ApiError> {
        self.stream(Method::POST, "/templates", json(request)?).await
    }

    /// Creates sandboxes; all or none.
    pub async fn create(&self, request: &CreateSandboxes) -> Result<Vec<SandboxInfo>, ApiError> {
        self.post("/sandboxes", request).await
    }

    /// All sandboxes.
    pub async fn sandboxes(&self) -> Result<Vec<SandboxInfo>, ApiError> {
        self.get("/sandboxes").await
    }

    /// One sandbox, by its id or a unique beginning of it.
    pub async fn sandbox(&self, id: &str) -> Result<SandboxInfo, ApiError> {
        self.get(&format!("/sandboxes/{}", encode(id))).await
    }

    /// Kills a sandbox.
    pub async fn kill(&self, id: &str) -> Result<SandboxInfo, ApiError> {
        let bytes = self.call(Method::DELETE, &format!("/sandboxes/{}", encode(id)), whole("")).await?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// What a sandbox uses now.
    pub async fn stats(&self, id: &str) -> Result<SandboxStats, ApiError> {
        self.get(&format!("/sandboxes/{}/stats", encode(id))).await
    }

    /// Sets when a sandbox is killed.
    pub async fn set_timeout(&self, id: &str, timeout: SetTimeout) -> Result<(), ApiError> {
        let path = format!("/sandboxes/{}/timeout", encode(id));
        self.call(Method::PUT, &path, json(&timeout)?).await.map(drop)
    }

    /// Changes what a sandbox may reach, at once.
    pub async fn set_network(&self, id: &str, request: &NetworkRequest) -> Result<NetworkRequest, ApiError> {
        let path = format!("/sandboxes/{}/network", encode(id));
        Ok(serde_json::from_slice(&self.call(Method::PUT, &path, json(request)?).await?)?)
    }

    /// The last names that a sandbox looked up, oldest first.
    pub async fn look_ups(&self, id: &str) -> Result<Vec<LookUp>, ApiError> {
        self.get(&format!("/sandboxes/{}/look-ups", encode(id))).await
    }

    /// Opens a connection to a TCP port inside.
    pub async fn connect_port(&self, id: &str, port: u16) -> Result<PortConnection, ApiError> {
        let path = format!("/sandboxes/{}/ports/{port}", encode(id));
        self.upgrade_to(PORT_PROTOCOL, Method::GET, &path, whole("")).await.map(TokioIo::new)
    }

    /// All groups.
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, ApiError> {
        self.get("/groups").await
    }

    /// Makes a group.
    pub async fn create_group(&self, name: &str) -> Result<GroupInfo, ApiError> {
        self.post("/groups", &CreateGroup { name: name.to_owned() }).await
    }

    /// Removes a group without members.
    pub async fn remove_group(&self, name: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, &format!("/groups/{}", encode(name)), whole("")).await.map(drop)
    }

    /// Freezes a sandbox.
    pub async fn take_checkpoint(&self, id: &str, request: &TakeCheckpoint) -> Result<CheckpointInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/checkpoints", encode(id)), request).await
    }

    /// Freezes a sandbox and frees what it used.
    pub async fn pause(&self, id: &str) -> Result<SandboxInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/pause", encode(id)), &()).await
    }

    /// Brings a paused sandbox back.
    pub async fn resume(&self, id: &str) -> Result<SandboxInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/resume", encode(id)), &()).await
    }

    /// Puts a sandbox back to a checkpoint, which is returned.
    pub async fn rollback(&self, id: &str, checkpoint: &str) -> Result<CheckpointInfo, ApiError> {
        let body = Rollback { checkpoint: checkpoint.to_owned() };
        self.post(&format!("/sandboxes/{}/rollback", encode(id)), &body).await
    }

    /// Squeezes a sandbox.
    pub async fn squeeze(&self, id: &str) -> Result<SqueezeInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/squeeze", encode(id)), &serde_json::json!({})).await
    }

    /// Brings a squeezed sandbox' pages back.
    pub async fn restore_pages(&self, id: &str) -> Result<RestoreInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/restore-pages", encode(id)), &serde_json::json!({})).await
    }

    /// Makes sandboxes that go on from a state; all or none.
    pub async fn fork(&self, request: &Fork) -> Result<Vec<SandboxInfo>, ApiError> {
        self.post("/forks", request).await
    }

    /// All checkpoints, oldest first.
    pub async fn checkpoints(&self) -> Result<Vec<CheckpointInfo>, ApiError> {
        self.get("/checkpoints").await
    }

    /// One checkpoint: by its id, by a beginning of it, or by its name.
    pub async fn checkpoint(&self, checkpoint: &str) -> Result<CheckpointInfo, ApiError> {
        self.get(&format!("/checkpoints/{}", encode(checkpoint))).await
    }

    /// Removes a checkpoint, and all below it if `recursive`; returns those that are gone.
    pub async fn remove_checkpoint(&self, checkpoint: &str, recursive: bool) -> Result<Vec<CheckpointInfo>, ApiError> {
        let path = format!("/checkpoints/{}?recursive={recursive}", encode(checkpoint));
        Ok(serde_json::from_slice(&self.call(Method::DELETE, &path, whole("")).await?)?)
    }

    /// The paths that differ between two states, each a sandbox or a checkpoint.
    pub async fn diff(&self, old: &str, new: &str) -> Result<Lines<FileChange>, ApiError> {
        self.stream(Method::GET, &format!("/diff?old={}&new={}", encode(old), encode(new)), whole("")).await
    }

    /// All API keys, oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyInfo>, ApiError> {
        self.get("/keys").await
    }

    /// Makes an API key.
    pub async fn create_key(&self, request: &MakeKey) -> Result<NewKey, ApiError> {
        self.post("/keys", request).await
    }

    /// Revokes an API key.
    pub async fn remove_key(&self, id: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, &format!("/keys/{}", encode(id)), whole("")).await.map(drop)
    }

    /// The log of a sandbox; with `follow` the stream goes on until the sandbox is gone.
    pub async fn logs(&self, id: &str, follow: bool) -> Result<Lines<LogRecord>, ApiError> {
        self.stream(Method::GET, &format!("/sandboxes/{}/logs?follow={follow}", encode(id)), whole("")).await
    }

    /// Events after `since`; with `follow` the stream goes on.
    pub async fn events(&self, since: u64, follow: bool) -> Result<Lines<Event>, ApiError> {
        self.stream(Method::GET, &format!("/events?since={since}&follow={follow}"), whole("")).await
    }

    /// Live processes of a sandbox.
    pub async fn processes(&self, id: &str) -> Result<Vec<ProcessInfo>, ApiError> {
        self.get(&format!("/sandboxes/{}/processes", encode(id))).await
    }

    /// Starts a process and leaves it running.
    pub async fn spawn(&self, id: &str, request: &ProcessRequest) -> Result<ProcessInfo, ApiError> {
        self.post(&format!("/sandboxes/{}/processes", encode(id)), request).await
    }

    /// Runs a process to its end and returns its (bounded) output.
    pub async fn run(&self, id: &str, request: &ProcessRequest) -> Result<CompletedProcess, ApiError> {
        self.post(&format!("/sandboxes/{}/processes?wait=true", encode(id)), request).await
    }

    /// Sends a signal to a process.
    pub async fn signal(&self, id: &str, process: &str, signal: u8) -> Result<(), ApiError> {
        let path = format!("/sandboxes/{}/processes/{}/signal", encode(id), encode(process));
        self.call(Method::POST, &path, json(&SendSignal { signal })?).await.map(drop)
    }

    /// Kills everything that a call started.
    pub async fn kill_process(&self, id: &str, process: &str) -> Result<(), ApiError> {
        let path = format!("/sandboxes/{}/processes/{}", encode(id), encode(process));
        self.call(Method::DELETE, &path, whole("")).await.map(drop)
    }

    /// Starts a process with its streams in the caller's hands.
    pub async fn open_session(&self, id: &str, request: &ProcessRequest) -> Result<Session, ApiError> {
        let path = format!("/sandboxes/{}/processes", encode(id));
        self.upgrade(Method::POST, &path, json(request)?).await
    }

    /// Attaches to a process by pid or tag; with `from_start` its kept output comes first.
    pub async fn attach(&self, id: &str, process: &str, from_start: bool) -> Result<Session, ApiError> {
        let from = if from_start { "start" } else { "now" };
        let path = format!("/sandboxes/{}/processes/{}/attach?from={from}", encode(id), encode(process));
        self.upgrade(Method::GET, &path, whole("")).await
    }

    /// What is at a path of a sandbox. With `follow` a link to a directory counts as one.
    pub async fn stat(&self, id: &str, path: &str, follow: bool) -> Result<FileEntry, ApiError> {
        self.get(&format!("/sandboxes/{}/files/stat?path={}&follow={follow}", encode(id), encode(path))).await
    }

    /// A tar archive of a file or directory of a sandbox.
    pub async fn copy_out(&self, id: &str, path: &str) -> Result<Chunks, ApiError> {
        let path = format!("/sandboxes/{}/archive?path={}", encode(id), encode(path));
        let (response, _) = self.pool.send(request(Method::GET, &path, whole(""))?).await?;
        Ok(Chunks { body: refused(response).await? })
    }

    /// Unpacks a tar archive into a directory of a sandbox.
    pub async fn copy_in(&self, id: &str, directory: &str, archive: Body) -> Result<(), ApiError> {
        let path = format!("/sandboxes/{}/archive?path={}", encode(id), encode(directory));
        self.call(Method::PUT, &path, archive).await.map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        Ok(serde_json::from_slice(&self.call(Method::GET, path, whole("")).await?)?)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ApiError> {
        Ok(serde_json::from_slice(&self.call(Method::POST, path, json(body)?).await?)?)
    }

    async fn call(&self, method: Method, path: &str, body: Body) -> Result<Bytes, ApiError> {
        let (response, sender) = self.pool.send(request(method, path, body)?).await?;
        let bytes = whole_answer(refused(response).await?).await?;
        self.pool.give_back(sender);
        Ok(bytes)
    }

    async fn stream<T>(&self, method: Method, path: &str, body: Body) -> Result<Lines<T>, ApiError> {
        let (response, _) = self.pool.send(request(method, path, body)?).await?;
        Ok(Lines {
            chunks: Chunks { body: refused(response).await? },
            buffer: BytesMut::new(),
            item: std::marker::PhantomData,
        })
    }

    async fn upgrade(&self, method: Method, path: &str, body: Body) -> Result<Session, ApiError> {
        Session::from_upgrade(self.upgrade_to(PROTOCOL, method, path, body).await?)
    }

    async fn upgrade_to(
        &self,
        protocol: &'static str,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Upgraded, ApiError> {
        let mut request = request(method, path, body)?;
        request.headers_mut().insert(CONNECTION, hyper::header::HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, hyper::header::HeaderValue::from_static(protocol));
        let (response, _) = self.pool.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            drop(refused(response).await?);
            return Err(ApiError::Protocol("no upgrade where one was asked for".into()));
        }
        Ok(hyper::upgrade::on(response).await?)
    }
}

fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(format!("{PREFIX}{path}"))
        .header(HOST, "brood")
        .header(CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|error| ApiError::Protocol(format!("a request that HTTP cannot carry ({error})")))
}

fn json(body: &impl Serialize) -> Result<Body, ApiError> {
    Ok(whole(serde_json::to_vec(body)?))
}

/// The body of a success, or the daemon's reason against it.
async fn refused(response: Response<Incoming>) -> Result<Incoming, ApiError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let bytes = whole_answer(response.into_body()).await?;
    match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(body) => Err(body.into()),
        Err(_) => Err(ApiError::Protocol(format!("status {status} without a reason"))),
    }
}

async fn whole_answer(body: Incoming) -> Result<Bytes, ApiError> {
    http_body_util::Limited::new(body, ANSWER_BYTES_MAX)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => ApiError::Http(*error),
            Err(_) => ApiError::Protocol(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")),
        })
}

/// Percent-encodes what may not stand in one segment of a path or in a query's value.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) || (byte == b'.' && !text.bytes().all(|b| b == b'.'))
        {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// An answer that comes in pieces.
#[derive(Debug)]
pub struct Chunks {
    body: Incoming,
}

impl Chunks {
    /// The next piece; none is the end.
    ///
    /// # Errors
    /// When the daemon broke off, which is how it reports a failure in the middle.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// An answer of one JSON value a line.
#[derive(Debug)]
pub struct Lines<T> {
    chunks: Chunks,
    buffer: BytesMut,
    item: std::marker::PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// The next value; none is the end.
    ///
    /// # Errors
    /// When the stream breaks off in the middle of a line, or a line is no such value.
    pub async fn next(&mut self) -> Result<Option<T>, ApiError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(FrameError::TooLong(u32::MAX).into());
            }
            match self.chunks.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ApiError::Protocol("a line that is cut short".into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(encode("py-3.11:x"), "py-3.11%3Ax");
        assert_eq!(encode("../../etc"), "..%2F..%2Fetc");
        assert_eq!(encode(".."), "%2E%2E");
        assert_eq!(encode("a b\n?é"), "a%20b%0A%3F%C3%A9");
    }

    #[tokio::test]
    async fn a_missing_socket_is_named() {
        let error = Client::new("/nonexistent/brood.sock").version().await.unwrap_err();
        assert!(matches!(error, ApiError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("/nonexistent/brood.sock"));
    }
}
