//! Servers inside a sandbox: whatever listens on a port that is not envd's.
//!
//! `dispatch` has found the sandbox and checked the traffic token, if the sandbox has one, before
//! [`serve`] is called. A request is passed on as it is, but for what concerns one hop alone
//! (RFC 9110, section 7.6.1) and for what only the gateway is to know: a hostile server inside must
//! not learn the tokens. Bodies flow as fast as the slower side takes them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version};
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::sandbox::Sandbox;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tracing::debug;

use super::dispatch::{ACCESS_TOKEN_HEADER, Reached, TRAFFIC_TOKEN_HEADER};
use super::failure::RouteFailure;
use super::target::{PORT_HEADER, SANDBOX_HEADER};

/// What concerns one connection, besides what its `Connection` header names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    UPGRADE,
];
/// What is the gateway's alone.
const OURS: [&str; 4] = [SANDBOX_HEADER, PORT_HEADER, TRAFFIC_TOKEN_HEADER, ACCESS_TOKEN_HEADER];
/// What `maskRequestHost` may hold in place of the port.
const PORT_PLACE: &str = "${PORT}";

/// Passes a request on to the port of the sandbox.
pub(super) async fn serve(reached: Reached, request: Request) -> Response {
    let (id, port) = (reached.id(), reached.port);
    if request.method() == Method::CONNECT {
        return RouteFailure::BadTarget("ports take requests, not tunnels").into_response();
    }
    let inside = match connect(&reached.sandbox, port).await {
        Ok(inside) => inside,
        Err(error) => {
            debug!(sandbox = id, port, %error, "a port cannot be reached");
            return RouteFailure::PortClosed(id, port).into_response();
        }
    };
    match pass_on(inside, &reached, request).await {
        Ok(response) => response,
        Err(error) => {
            debug!(sandbox = id, port, %error, "a server inside gave no answer");
            RouteFailure::NoAnswer(id, port).into_response()
        }
    }
}

async fn connect(sandbox: &Arc<Sandbox>, port: u16) -> std::io::Result<TcpStream> {
    let sandbox = Arc::clone(sandbox);
    // A full backlog inside makes it wait.
    let connected = tokio::task::spawn_blocking(move || sandbox.connect(port)).await;
    let inside = connected.map_err(std::io::Error::other)?.map_err(std::io::Error::other)?;
    inside.set_nonblocking(true)?;
    inside.set_nodelay(true)?;
    TcpStream::from_std(inside)
}

async fn pass_on(inside: TcpStream, reached: &Reached, mut request: Request) -> hyper::Result<Response> {
    let protocol = wanted_protocol(request.headers());
    let client = protocol.is_some().then(|| request.extensions_mut().remove::<OnUpgrade>()).flatten();
    prepare(&mut request, reached);
    if let (Some(protocol), Some(_)) = (protocol, &client) {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, protocol);
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(inside)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to a port inside broke");
        }
    });
    let mut response = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = hyper::upgrade::on(&mut response);
        if let Some(client) = client {
            tokio::spawn(join(client, server));
        }
        return Ok(response.map(Body::new));
    }
    remove_hop_by_hop(response.headers_mut());
    // Ours frames the body anew.
    response.headers_mut().remove(TRANSFER_ENCODING);
    *response.version_mut() = Version::HTTP_11;
    Ok(response.map(Body::new))
}

/// The protocol that the client wants to go over to, WebSocket above all.
fn wanted_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

/// What the `Connection` headers name.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// Turns the request to us into one to the server inside.
fn prepare(request: &mut Request, reached: &Reached) {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let host = request.uri().host().and_then(|host| HeaderValue::from_str(host).ok());
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    for name in OURS {
        headers.remove(name);
    }
    let masked = reached.record.mask_request_host.as_deref();
    let masked = masked.map(|mask| mask.replace(PORT_PLACE, &reached.port.to_string()));
    if let Some(masked) = masked.and_then(|mask| HeaderValue::from_str(&mask).ok()) {
        headers.insert(HOST, masked);
    } else if !headers.contains_key(HOST) {
        headers.insert(HOST, host.unwrap_or_else(|| HeaderValue::from_static("localhost")));
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers).filter_map(|token| token.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        // The length and the host are never one hop's, whatever a client says.
        if !matches!(name.as_str(), "content-length" | "host" | "transfer-encoding") {
            headers.remove(name);
        }
    }
}

/// Two connections become one.
async fn join(client: OnUpgrade, server: OnUpgrade) {
    let both = async { tokio::try_join!(client, server) }.await;
    let copied = match both {
        Ok((client, server)) => {
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
        }
        Err(error) => Err(std::io::Error::other(error)),
    };
    if let Err(error) = copied {
        debug!(%error, "a connection that had changed its protocol broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_hop_stays_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Hop , content-length"),
            ("connection", "Upgrade"),
            ("keep-alive", "5"),
            ("x-hop", "1"),
            ("upgrade", "websocket"),
            ("content-length", "3"),
            ("x-mine", "2"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert_eq!(wanted_protocol(&headers).unwrap(), "websocket");
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-mine"]);
    }

    #[test]
    fn an_upgrade_that_the_connection_does_not_name_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(wanted_protocol(&headers), None);
    }
}
