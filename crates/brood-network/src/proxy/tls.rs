//! The server name in a TLS ClientHello (RFC 8446, RFC 6066), from hostile hands.

/// What the first bytes of a connection tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// More bytes are needed.
    Incomplete,
    /// The name that the client wants, if it says one.
    Named(Option<String>),
    /// Not what the port is for.
    Foreign,
}

/// Record and handshake types.
const RECORD_HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Longest record allowed by the protocol.
const RECORD_BYTES_MAX: usize = 16 * 1024 + 256;

/// Reads as much of a TLS connection as there is.
pub(crate) fn greeting(bytes: &[u8]) -> Greeting {
    match handshake(bytes) {
        Ok(message) => match client_hello(&message) {
            Some(name) => Greeting::Named(name),
            None => Greeting::Foreign,
        },
        Err(greeting) => greeting,
    }
}

/// The first handshake message, put together from as many records as it is spread over.
fn handshake(mut bytes: &[u8]) -> Result<Vec<u8>, Greeting> {
    let mut message = Vec::new();
    loop {
        match bytes.first() {
            None => return Err(Greeting::Incomplete),
            Some(&RECORD_HANDSHAKE) => {}
            Some(_) => return Err(Greeting::Foreign),
        }
        let Some(&[_, major, _, high, low]) = bytes.first_chunk::<5>() else {
            return Err(Greeting::Incomplete);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if major != 3 || length == 0 || length > RECORD_BYTES_MAX {
            return Err(Greeting::Foreign);
        }
        let available = &bytes[5..];
        message.extend_from_slice(&available[..length.min(available.len())]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Greeting::Foreign);
        }
        if let Some(&[_, high, middle, low]) = message.first_chunk::<4>() {
            let wanted = u32::from_be_bytes([0, high, middle, low]) as usize + 4;
            if message.len() >= wanted {
                message.truncate(wanted);
                return Ok(message);
            }
        }
        bytes = available.get(length..).ok_or(Greeting::Incomplete)?;
    }
}

/// The name in a ClientHello; outer `None` if it is malformed, inner if it has none.
fn client_hello(message: &[u8]) -> Option<Option<String>> {
    let mut reader = Reader(message);
    // Type and length, version, random.
    reader.take(4 + 2 + 32)?;
    let session = usize::from(reader.byte()?);
    reader.take(session)?;
    let ciphers = usize::from(reader.pair()?);
    reader.take(ciphers)?;
    let compressions = usize::from(reader.byte()?);
    reader.take(compressions)?;
    if reader.0.is_empty() {
        return Some(None);
    }
    let length = usize::from(reader.pair()?);
    let mut extensions = Reader(reader.take(length)?);
    while !extensions.0.is_empty() {
        let kind = extensions.pair()?;
        let length = usize::from(extensions.pair()?);
        let body = extensions.take(length)?;
        if kind == EXTENSION_SERVER_NAME {
            return server_name(body).map(Some);
        }
    }
    Some(None)
}

fn server_name(body: &[u8]) -> Option<String> {
    let mut reader = Reader(body);
    let length = usize::from(reader.pair()?);
    let mut names = Reader(reader.take(length)?);
    if names.byte()? != HOST_NAME {
        return None;
    }
    let length = usize::from(names.pair()?);
    let name = std::str::from_utf8(names.take(length)?).ok()?;
    // One name only: with two, the server might look at the other one.
    (names.0.is_empty() && crate::policy::is_domain_name(name)).then(|| name.to_ascii_lowercase())
}

/// Reads from the front, never past the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, back) = self.0.split_at_checked(count)?;
        self.0 = back;
        Some(front)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn pair(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with this server name, split into records of `record` bytes.
    fn hello(name: &[u8], record: usize) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &u16::try_from(name.len()).unwrap().to_be_bytes(), name].concat();
        let list = [&u16::try_from(entry.len()).unwrap().to_be_bytes()[..], &entry].concat();
        let extension = [&[0, 0][..], &u16::try_from(list.len()).unwrap().to_be_bytes(), &list].concat();
        let extensions = [&u16::try_from(extension.len()).unwrap().to_be_bytes()[..], &extension].concat();
        let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &extensions].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[CLIENT_HELLO][..], &length[1..], &body].concat();
        message
            .chunks(record)
            .flat_map(|part| {
                let length = u16::try_from(part.len()).unwrap().to_be_bytes();
                [&[RECORD_HANDSHAKE, 3, 1][..], &length, part].concat()
            })
            .collect()
    }

    #[test]
    fn names_are_found_however_they_are_split() {
        for record in [1, 3, 50, 4000] {
            let bytes = hello(b"Example.COM", record);
            assert_eq!(greeting(&bytes), Greeting::Named(Some("example.com".to_owned())), "{record}");
            for end in 0..bytes.len() {
                assert_eq!(greeting(&bytes[..end]), Greeting::Incomplete, "{record} {end}");
            }
        }
    }

    #[test]
    fn what_is_not_a_clear_name_is_foreign() {
        assert_eq!(greeting(b"GET / HTTP/1.1\r\n"), Greeting::Foreign);
        assert_eq!(greeting(&hello(b"a\0b.com", 4000)), Greeting::Foreign);
        assert_eq!(greeting(&hello(b"", 4000)), Greeting::Foreign);
        assert_eq!(greeting(&[RECORD_HANDSHAKE, 3, 1, 0, 0]), Greeting::Foreign);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(0u8.., 0..300)) {
            greeting(&bytes);
            greeting(&[&[RECORD_HANDSHAKE, 3, 1, 1, 0, 1, 0, 0, 200][..], &bytes].concat());
        }
    }
}
