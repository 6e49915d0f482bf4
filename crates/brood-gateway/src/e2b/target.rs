//! Which port of which sandbox a request is for.

use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};

/// Names of the routing headers.
pub(super) const SANDBOX_HEADER: &str = "e2b-sandbox-id";
pub(super) const PORT_HEADER: &str = "e2b-sandbox-port";
/// Longest sandbox id that is looked at: a label of a host name.
const ID_BYTES_MAX: usize = 63;

/// A port of a sandbox, as a request names it; the sandbox need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) id: String,
    pub(super) port: u16,
}

/// A request that is for a sandbox, but does not say which in a way that fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadTarget(pub(super) &'static str);

impl Target {
    /// What the request names; none for the control plane.
    ///
    /// Headers count on hosts that cannot name a sandbox themselves; where the host name has the
    /// form `<port>-<id>.<domain>` it wins, so that a page served by one sandbox cannot reach
    /// another one with headers.
    pub(super) fn of(uri: &Uri, headers: &HeaderMap) -> Result<Option<Self>, BadTarget> {
        if let Some(target) = host(uri, headers).and_then(Self::of_host) {
            return Ok(Some(target));
        }
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        match (text(SANDBOX_HEADER), text(PORT_HEADER)) {
            (Some(id), Some(port)) => {
                let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadTarget("invalid sandbox port"))?;
                let id = plain_id(id).ok_or(BadTarget("invalid sandbox id"))?;
                Ok(Some(Self { id: id.to_owned(), port }))
            }
            _ => Ok(None),
        }
    }

    fn of_host(host: &str) -> Option<Self> {
        let (label, _domain) = host.split_once('.')?;
        let (port, id) = label.split_once('-')?;
        let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
        Some(Self { id: plain_id(id)?.to_owned(), port })
    }
}

fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    // HTTP/2 has the name in the URI.
    uri.host().or_else(|| headers.get(HOST)?.to_str().ok())
}

/// The id without the client part that an older form appends.
fn plain_id(text: &str) -> Option<&str> {
    let id = text.split_once('-').map_or(text, |(id, _client)| id);
    let fits = !id.is_empty()
        && id.len() <= ID_BYTES_MAX
        && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    fits.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: &str, headers: &[(&'static str, &str)]) -> Result<Option<Target>, BadTarget> {
        let mut map = HeaderMap::new();
        map.insert(HOST, host.parse().unwrap());
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Target::of(&Uri::from_static("/x"), &map)
    }

    #[test]
    fn hosts_and_headers_name_a_port() {
        let target = |id: &str, port| Some(Target { id: id.to_owned(), port });
        let both = [("e2b-sandbox-id", "abc1"), ("e2b-sandbox-port", "49983")];
        assert_eq!(of("127.0.0.1:3000", &both).unwrap(), target("abc1", 49983));
        assert_eq!(of("8080-abc1.localhost:3000", &[]).unwrap(), target("abc1", 8080));
        assert_eq!(of("8080-other.example.com", &both).unwrap(), target("other", 8080), "the host wins");
        assert_eq!(of("80-abc1-client.example.com", &[]).unwrap(), target("abc1", 80));
        assert_eq!(of("api.example.com", &[]).unwrap(), None);
        assert_eq!(of("127.0.0.1", &both[..1]).unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = "a".repeat(64);
        for (id, port) in [("../x", "80"), ("", "80"), ("abc", "0"), ("abc", "70000"), ("ABC", "80"), (&long, "80")] {
            assert!(of("localhost", &[("e2b-sandbox-id", id), ("e2b-sandbox-port", port)]).is_err(), "{id} {port}");
        }
        for host in ["0-abc.x", "99999-abc.x", "80-.x", "80-a_b.x", "80abc.x", "80-abc"] {
            assert_eq!(of(host, &[]).unwrap(), None, "{host}");
        }
    }
}
