//! Real servers for the tests, each in the namespace that it is started in, each stopped when dropped.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::world::Namespace;

/// Long enough for anything on one machine; only what is silently dropped takes so long.
pub const PATIENCE: Duration = Duration::from_millis(1500);

/// A server thread with the socket whose end ends it.
#[derive(Debug)]
pub struct Server {
    socket: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// How often it was reached.
    pub seen: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A UDP socket that is not connected answers with an error, and wakes its reader all the same.
        rustix::net::shutdown(&*self.socket, Shutdown::Both).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Accepts connections at `address`, each handled by `handle` in a thread of its own.
pub fn tcp<H>(namespace: &Namespace, address: &str, handle: H) -> Server
where
    H: Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
{
    let listener = namespace.run(|| TcpListener::bind(address).unwrap());
    let socket = Arc::new(listener.as_fd().try_clone_to_owned().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, handle) = (Arc::clone(&seen), Arc::new(handle));
    let thread = std::thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            noted.lock().unwrap().push(peer);
            let handle = Arc::clone(&handle);
            std::thread::spawn(move || handle(stream));
        }
    });
    Server { socket, thread: Some(thread), seen }
}

/// Says who is connecting, then ends the connection.
pub fn greeter(namespace: &Namespace, address: &str) -> Server {
    tcp(namespace, address, |mut stream| {
        let peer = stream.peer_addr()?.ip();
        stream.write_all(peer.to_string().as_bytes())
    })
}

/// Sends back what it gets.
pub fn echo(namespace: &Namespace, address: &str) -> Server {
    tcp(namespace, address, |mut stream| {
        let mut part = [0; 4096];
        loop {
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&part[..count])?;
        }
    })
}

/// Answers each datagram with itself.
pub fn udp_echo(namespace: &Namespace, address: &str) -> Server {
    udp(namespace, address, |datagram| Some(datagram.to_vec()))
}

fn udp<H>(namespace: &Namespace, address: &str, answer: H) -> Server
where
    H: Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
{
    let udp = namespace.run(|| UdpSocket::bind(address).unwrap());
    let socket = Arc::new(udp.as_fd().try_clone_to_owned().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        loop {
            match udp.recv_from(&mut buffer) {
                // What a shut-down socket reads.
                Ok((0, peer)) if peer.port() == 0 => return,
                Ok((count, peer)) => {
                    noted.lock().unwrap().push(peer);
                    if let Some(answer) = answer(&buffer[..count]) {
                        udp.send_to(&answer, peer).unwrap();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    });
    Server { socket, thread: Some(thread), seen }
}

/// A name server for these names, over UDP and TCP, at port 53 of `address`.
#[derive(Debug)]
pub struct NameServer(#[expect(dead_code, reason = "held for its drop")] [Server; 2]);

pub fn name_server(namespace: &Namespace, address: &str, zone: &[(&str, &[&str])]) -> NameServer {
    let zone: HashMap<String, Vec<IpAddr>> = zone
        .iter()
        .map(|(name, addresses)| {
            ((*name).to_owned(), addresses.iter().map(|address| address.parse().unwrap()).collect())
        })
        .collect();
    let zone = Arc::new(zone);
    let at = format!("{address}:53");
    let over_udp = Arc::clone(&zone);
    NameServer([
        udp(namespace, &at, move |query| resolve(&over_udp, query)),
        tcp(namespace, &at, move |mut stream| {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query)?;
            let answer = resolve(&zone, &query).ok_or(io::ErrorKind::InvalidData)?;
            stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes())?;
            stream.write_all(&answer)
        }),
    ])
}

/// The answer to a query for A or AAAA records: written anew here, so that the tested reader meets foreign bytes.
fn resolve(zone: &HashMap<String, Vec<IpAddr>>, query: &[u8]) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let addresses = zone.get(&labels.join("."));
    let octets: Vec<Vec<u8>> = addresses
        .into_iter()
        .flatten()
        .filter_map(|address| match (address, kind) {
            (IpAddr::V4(address), 1) => Some(address.octets().to_vec()),
            (IpAddr::V6(address), 28) => Some(address.octets().to_vec()),
            _ => None,
        })
        .collect();
    let code = if addresses.is_some() { 0x80 } else { 0x83 };
    let mut answer = vec![query[0], query[1], 0x81, code, 0, 1, 0, u8::try_from(octets.len()).ok()?, 0, 0, 0, 0];
    answer.extend_from_slice(&query[12..at + 5]);
    for address in octets {
        answer.extend([0xc0, 12]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 30, 0, u8::try_from(address.len()).ok()?]);
        answer.extend(address);
    }
    Some(answer)
}

/// Connects from inside `namespace` and reads to the end.
pub fn fetch(namespace: &Namespace, address: &str) -> io::Result<String> {
    namespace.run(|| {
        let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// Sends `request` and reads to the end.
pub fn exchange(namespace: &Namespace, address: &str, request: &[u8]) -> io::Result<String> {
    namespace.run(|| {
        let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// Sends a datagram and waits for the answer.
pub fn ask(namespace: &Namespace, address: &str, datagram: &[u8]) -> io::Result<Vec<u8>> {
    namespace.run(|| {
        let address: SocketAddr = address.parse().unwrap();
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(datagram)?;
        let mut buffer = [0; 2048];
        let count = socket.recv(&mut buffer)?;
        Ok(buffer[..count].to_vec())
    })
}

/// Looks a name up over UDP, as `getaddrinfo` would with the sandbox's `/etc/resolv.conf`.
pub fn look_up(namespace: &Namespace, name: &str) -> io::Result<Vec<IpAddr>> {
    look_up_kind(namespace, name, 1)
}

pub fn look_up_kind(namespace: &Namespace, name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
    let answer = ask(namespace, "198.18.0.1:53", &query(name, kind))?;
    parse(&answer, name)
}

/// A query for records of this kind.
pub fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

/// The addresses in an answer to [`query`]; no such name and failure are errors.
pub fn parse(answer: &[u8], name: &str) -> io::Result<Vec<IpAddr>> {
    assert_eq!(answer[..2], [0xab, 0xcd]);
    match answer[3] & 15 {
        0 => {}
        3 => return Err(io::ErrorKind::NotFound.into()),
        code => return Err(io::Error::other(format!("response code {code}"))),
    }
    let mut at = 12 + name.len() + 2 + 4;
    let mut found = Vec::new();
    for _ in 0..answer[7] {
        let length = usize::from(answer[at + 11]);
        let octets = &answer[at + 12..at + 12 + length];
        found.push(match length {
            4 => IpAddr::from(<[u8; 4]>::try_from(octets).unwrap()),
            _ => IpAddr::from(<[u8; 16]>::try_from(octets).unwrap()),
        });
        at += 12 + length;
    }
    Ok(found)
}

/// That the connection or datagram was refused at once and audibly, not swallowed.
#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(result: io::Result<T>) {
    let kind = result.expect_err("this must not be reachable").kind();
    assert!(
        matches!(
            kind,
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::PermissionDenied
        ),
        "{kind:?}"
    );
}
