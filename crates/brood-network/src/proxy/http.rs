//! The host in the head of an HTTP/1 request (RFC 9112), from hostile hands.

use super::tls::Greeting;

/// Most header lines looked at.
const LINES_MAX: usize = 200;

/// A request's head, as far as it decides anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes up to and with the empty line.
    length: usize,
    is_upgrade: bool,
}

/// Reads as much of an HTTP connection as there is.
pub(crate) fn greeting(bytes: &[u8]) -> Greeting {
    match parse(bytes) {
        Ok((_, host)) => Greeting::Named(host),
        Err(greeting) => greeting,
    }
}

/// The bytes to send on for what came: the first request made the last one of its connection, so that no later request
/// can name another host. A request to change the protocol (WebSocket) is sent as it is.
pub(crate) fn as_single_request(bytes: &[u8]) -> Vec<u8> {
    let Ok((head, _)) = parse(bytes) else {
        return bytes.to_vec();
    };
    if head.is_upgrade {
        return bytes.to_vec();
    }
    let mut single = Vec::with_capacity(bytes.len() + 32);
    for line in lines(&bytes[..head.length]) {
        let is_kept = field(line).is_none_or(|(name, _)| {
            !name.eq_ignore_ascii_case("connection") && !name.eq_ignore_ascii_case("keep-alive")
        });
        if line.is_empty() {
            single.extend_from_slice(b"Connection: close\r\n\r\n");
        } else if is_kept {
            single.extend_from_slice(line);
            single.extend_from_slice(b"\r\n");
        }
    }
    single.extend_from_slice(&bytes[head.length..]);
    single
}

fn parse(bytes: &[u8]) -> Result<(Head, Option<String>), Greeting> {
    if !begins_like_a_method(bytes) {
        return Err(Greeting::Foreign);
    }
    let length = find(bytes, b"\r\n\r\n").ok_or(Greeting::Incomplete)? + 4;
    let mut lines = lines(&bytes[..length]);
    let request = lines.next().ok_or(Greeting::Foreign)?;
    let target = target(request).ok_or(Greeting::Foreign)?;
    let mut hosts = Vec::new();
    let mut is_upgrade = false;
    for (count, line) in lines.enumerate() {
        if line.is_empty() {
            break;
        }
        // A folded line or one without a name is read differently by different servers.
        let (name, value) = field(line).ok_or(Greeting::Foreign)?;
        if count >= LINES_MAX {
            return Err(Greeting::Foreign);
        }
        if name.eq_ignore_ascii_case("host") {
            hosts.push(value);
        }
        is_upgrade |= name.eq_ignore_ascii_case("upgrade");
    }
    if hosts.len() > 1 {
        return Err(Greeting::Foreign);
    }
    let host = hosts.first().map(|value| host_name(value).ok_or(Greeting::Foreign)).transpose()?;
    // A server takes the name in the request line, if there is one, before that in the header.
    let host = match authority(target) {
        Some(authority) => {
            let named = host_name(authority).ok_or(Greeting::Foreign)?;
            if host.as_ref().is_some_and(|host| *host != named) {
                return Err(Greeting::Foreign);
            }
            Some(named)
        }
        None => host,
    };
    Ok((Head { length, is_upgrade }, host))
}

/// Whether this can become a request line: a method of capital letters, as far as it has come.
fn begins_like_a_method(bytes: &[u8]) -> bool {
    const METHOD_BYTES_MAX: usize = 32;
    match bytes.iter().position(|byte| !byte.is_ascii_uppercase() && *byte != b'-') {
        Some(end) => (1..=METHOD_BYTES_MAX).contains(&end) && bytes[end] == b' ',
        None => bytes.len() <= METHOD_BYTES_MAX,
    }
}

fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head);
    std::iter::from_fn(move || {
        let bytes = rest?;
        let end = find(bytes, b"\r\n")?;
        rest = Some(&bytes[end + 2..]);
        Some(&bytes[..end])
    })
}

fn target(request: &[u8]) -> Option<&str> {
    let mut words = std::str::from_utf8(request).ok()?.split(' ');
    let (_, target, version) = (words.next()?, words.next()?, words.next()?);
    (words.next().is_none() && version.starts_with("HTTP/1.")).then_some(target)
}

/// The host in `http://host/path`; `None` for a mere path.
fn authority(target: &str) -> Option<&str> {
    let (_, rest) = target.split_once("://")?;
    Some(rest.split(['/', '?', '#']).next().unwrap_or(rest))
}

fn field(line: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    let is_token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    let is_line = !value.contains(['\r', '\n', '\0']);
    (is_token && is_line).then(|| (name, value.trim_matches([' ', '\t'])))
}

/// The name in `host` or `host:port`, in lower case.
fn host_name(value: &str) -> Option<String> {
    let name = match value.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
        None => value,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    crate::policy::is_domain_name(name).then(|| name.to_ascii_lowercase())
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Greeting {
        Greeting::Named(Some(name.to_owned()))
    }

    #[test]
    fn hosts_are_found() {
        assert_eq!(greeting(b"GET / HTTP/1.1\r\nHost: Example.com:80\r\n\r\n"), named("example.com"));
        assert_eq!(greeting(b"GET http://a.com/x HTTP/1.1\r\nHost: a.com\r\n\r\n"), named("a.com"));
        assert_eq!(greeting(b"GET / HTTP/1.0\r\n\r\n"), Greeting::Named(None));
        let whole = b"POST / HTTP/1.1\r\nHost: a.com\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(greeting(&whole[..end]), Greeting::Incomplete, "{end}");
        }
    }

    #[test]
    fn two_meanings_are_none() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n",
            "GET http://b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.com\r\n b.com\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.com\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.com@b.com\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.com\nX: b\r\n\r\n",
            "GET / x HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\x16\x03\x01",
            "SSH-2.0-x\r\n",
        ] {
            assert_eq!(greeting(text.as_bytes()), Greeting::Foreign, "{text}");
        }
    }

    #[test]
    fn a_connection_carries_one_request() {
        let two = b"GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: a.com\r\n\r\nGET / HTTP/1.1\r\n";
        let single = String::from_utf8(as_single_request(two)).unwrap();
        assert_eq!(single, "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n");
        let upgrade = b"GET / HTTP/1.1\r\nHost: a.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        assert_eq!(as_single_request(upgrade), upgrade);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(0u8.., 0..300)) {
            greeting(&bytes);
            let request = [&b"GET / HTTP/1.1\r\n"[..], &bytes, b"\r\n\r\n"].concat();
            greeting(&request);
            as_single_request(&request);
        }
    }
}
