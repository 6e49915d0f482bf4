//! Files and processes of a sandbox: what clients reach on port 49983.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

use brood_sandbox::sandbox::Sandbox;

use super::E2bState;
use super::dispatch::{ENVD_PORT, Reached};
use super::failure::Failure;
use super::tokens::{FileOperation, Purpose, file_signature, same};

/// The sandbox that a signed file address without routing headers is for: the one whose token
/// gives the signature. One hash for each live sandbox is the price.
pub(super) fn signed_file_target(state: &E2bState, request: &Request) -> Option<Reached> {
    if request.uri().path() != "/files" {
        return None;
    }
    let operation = match *request.method() {
        Method::GET | Method::HEAD => FileOperation::Read,
        Method::POST => FileOperation::Write,
        _ => return None,
    };
    let mut fields = HashMap::new();
    for (name, value) in form_urlencoded::parse(request.uri().query()?.as_bytes()) {
        fields.entry(name.into_owned()).or_insert_with(|| value.into_owned());
    }
    let given = fields.get("signature")?;
    let text = |name: &str| fields.get(name).map_or("", String::as_str);
    let expiration = fields.get("signature_expiration").and_then(|text| text.parse().ok());
    let is_signed = |sandbox: &Arc<Sandbox>| {
        let token = state.tokens().of(Purpose::Envd, sandbox.id().as_str());
        same(given, &file_signature(text("path"), operation, text("username"), &token, expiration))
    };
    let sandbox = state.engine().sandboxes().into_iter().find(is_signed)?;
    let record = state.records().of(&sandbox);
    Some(Reached { sandbox, record, port: ENVD_PORT })
}

/// Answers a request to the envd of a sandbox.
pub(super) async fn serve(_state: &E2bState, _reached: Reached, request: Request) -> Response {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => StatusCode::NO_CONTENT.into_response(),
        (_, path) => Failure::not_found(format!("there is no {path} here")).into_response(),
    }
}
