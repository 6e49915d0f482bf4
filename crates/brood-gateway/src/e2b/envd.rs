//! Files and processes of a sandbox: what clients reach on port 49983.
//!
//! Two services over [`connect`](super::connect) and a few plain routes. Everything but `/health`
//! needs the sandbox's token; a file address may carry a signature made with it instead.

mod entries;
mod files;
mod filesystem;
mod input;
mod messages;
mod process;
mod transfer;
mod user;
mod watch;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::sandbox::Sandbox;
use serde_json::json;

use super::E2bState;
use super::dispatch::{ACCESS_TOKEN_HEADER, ENVD_PORT, Reached};
use super::failure::{Failure, blocking};
use super::time::now_ms;
use super::tokens::{FileOperation, Purpose, file_signature, same};

pub(super) use watch::Watchers;

/// Routes that only the official orchestrator uses; from outside they do not exist.
const HIDDEN: [&str; 7] = ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];

/// A sandbox's files and processes.
#[derive(Debug, Clone)]
struct Envd {
    state: E2bState,
    reached: Reached,
}

impl Envd {
    fn sandbox(&self) -> &Arc<Sandbox> {
        &self.reached.sandbox
    }
}

/// The sandbox that a signed file address without routing headers is for: the one whose token
/// gives the signature. One hash for each live sandbox is the price.
pub(super) fn signed_file_target(state: &E2bState, request: &Request) -> Option<Reached> {
    let operation = file_operation(request)?;
    let query = FileQuery::of(request);
    query.signature.as_ref()?;
    let is_signed = |sandbox: &Arc<Sandbox>| query.is_signed(state, sandbox.id().as_str(), operation);
    let sandbox = state.engine().sandboxes().into_iter().find(is_signed)?;
    let record = state.records().of(&sandbox);
    Some(Reached { sandbox, record, port: ENVD_PORT })
}

/// Whether this is a file address with a signature.
pub(super) fn is_signed_file(request: &Request) -> bool {
    file_operation(request).is_some() && FileQuery::of(request).signature.is_some()
}

fn file_operation(request: &Request) -> Option<FileOperation> {
    match *request.method() {
        _ if request.uri().path() != "/files" => None,
        Method::GET | Method::HEAD => Some(FileOperation::Read),
        Method::POST => Some(FileOperation::Write),
        _ => None,
    }
}

/// The query of `/files`.
#[derive(Debug, Default)]
struct FileQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    expiration: Option<String>,
}

impl FileQuery {
    fn of(request: &Request) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(request.uri().query().unwrap_or("").as_bytes()) {
            let field = match &*name {
                "path" => &mut query.path,
                "username" => &mut query.username,
                "signature" => &mut query.signature,
                "signature_expiration" => &mut query.expiration,
                _ => continue,
            };
            field.get_or_insert_with(|| value.into_owned());
        }
        query
    }

    fn is_signed(&self, state: &E2bState, id: &str, operation: FileOperation) -> bool {
        let expiration = match self.expiration.as_deref().map(str::parse) {
            None => None,
            Some(Ok(expiration)) => Some(expiration),
            Some(Err(_)) => return false,
        };
        let (path, user) = (self.path.as_deref().unwrap_or(""), self.username.as_deref().unwrap_or(""));
        let token = state.tokens().of(Purpose::Envd, id);
        let signature = file_signature(path, operation, user, &token, expiration);
        self.signature.as_deref().is_some_and(|given| same(given, &signature))
    }

    fn is_expired(&self) -> bool {
        self.expiration.as_deref().and_then(|text| text.parse().ok()).is_some_and(|at: u64| at < now_ms() / 1000)
    }
}

/// Answers a request to the envd of a sandbox.
pub(super) async fn serve(state: &E2bState, reached: Reached, request: Request) -> Response {
    let origin = request.headers().contains_key(header::ORIGIN);
    let mut response = if request.method() == Method::OPTIONS && origin {
        StatusCode::NO_CONTENT.into_response()
    } else {
        answer(Envd { state: state.clone(), reached }, request).await
    };
    if origin {
        allow_any_origin(response.headers_mut());
    }
    response
}

/// Browsers may use signed addresses and tokens from any page: tokens are what protects, not origins.
fn allow_any_origin(headers: &mut HeaderMap) {
    let any = HeaderValue::from_static("*");
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any.clone());
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, any.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, any);
    let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
}

async fn answer(envd: Envd, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/health" {
        return StatusCode::NO_CONTENT.into_response();
    }
    if HIDDEN.contains(&path.as_str()) {
        let message = "this path is not open to the outside";
        return (StatusCode::NOT_FOUND, Json(json!({ "message": message, "path": path, "code": 404 }))).into_response();
    }
    let allowed = match file_operation(&request) {
        Some(operation) => may_use_file(&envd, &request, operation),
        None => may_use(&envd, request.headers(), || false),
    };
    if let Err(reason) = allowed {
        return Failure::new(StatusCode::UNAUTHORIZED, reason).into_response();
    }
    match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
        Some(("process.Process", method)) => process::call(envd, method, request).await,
        Some(("filesystem.Filesystem", method)) => filesystem::call(envd, method, request).await,
        _ => plain(envd, &path, request).await,
    }
}

async fn plain(envd: Envd, path: &str, request: Request) -> Response {
    match (request.method().clone(), path) {
        (Method::GET | Method::HEAD, "/files") => files::download(envd, request).await,
        (Method::POST, "/files") => files::upload(envd, request).await,
        (Method::GET, "/envs") => Json(variables(&envd)).into_response(),
        (Method::GET, "/metrics") => {
            metrics(envd).await.map_or_else(|error| error.into_response(), |m| Json(m).into_response())
        }
        (_, "/files" | "/envs" | "/metrics") => {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed here").into_response()
        }
        (_, path) => {
            let shown: String = path.chars().take(200).collect();
            Failure::not_found(format!("there is no {shown} here")).into_response()
        }
    }
}

/// Whether the token fits; `otherwise` is asked when none is given.
fn may_use(envd: &Envd, headers: &HeaderMap, otherwise: impl FnOnce() -> bool) -> Result<(), &'static str> {
    if !envd.reached.record.secure {
        return Ok(());
    }
    match headers.get(ACCESS_TOKEN_HEADER) {
        Some(token) => {
            let token = token.to_str().unwrap_or("");
            let fits = envd.state.tokens().fits(Purpose::Envd, envd.reached.id(), token);
            if fits { Ok(()) } else { Err("the access token does not fit this sandbox") }
        }
        None if otherwise() => Ok(()),
        None => Err("the access token is missing"),
    }
}

fn may_use_file(envd: &Envd, request: &Request, operation: FileOperation) -> Result<(), &'static str> {
    let query = FileQuery::of(request);
    may_use(envd, request.headers(), || query.is_signed(&envd.state, envd.reached.id(), operation))?;
    let by_signature = envd.reached.record.secure && !request.headers().contains_key(ACCESS_TOKEN_HEADER);
    if by_signature && query.is_expired() { Err("the signature has expired") } else { Ok(()) }
}

/// The variables that every process of the sandbox gets.
fn variables(envd: &Envd) -> HashMap<String, String> {
    let mut variables: HashMap<String, String> = envd.sandbox().info().environment.into_iter().collect();
    variables.extend(process::own_variables(envd));
    variables
}

async fn metrics(envd: Envd) -> Result<serde_json::Value, Failure> {
    let state = envd.state.clone();
    let sample = blocking(move || super::control::sample(&state, envd.sandbox())).await?;
    Ok(sample.as_envd())
}
