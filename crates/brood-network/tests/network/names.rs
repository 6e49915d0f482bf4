//! Policies about names: DNS, TLS server names, HTTP hosts.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use brood_network::{Attachment, Destination, LoggedVerdict, Network, NetworkConfiguration, NetworkPolicy};

use crate::servers::{
    NameServer, PATIENCE, Server, ask, assert_refused, exchange, fetch, greeter, look_up, look_up_kind, name_server,
    query, tcp, udp_echo,
};
use crate::world::{Namespace, RESOLVER, World};

/// Two machines outside with two names each, and a sandbox.
#[derive(Debug)]
struct Names {
    world: World,
    network: Network,
    sandbox: Namespace,
    _servers: NameServer,
}

fn names() -> Names {
    let world = World::new();
    let network = world.start(World::configuration());
    let zone: &[(&str, &[&str])] = &[
        ("good.example", &["203.0.113.1"]),
        ("shared.example", &["203.0.113.1"]),
        ("bad.example", &["203.0.113.2"]),
        ("deep.good.example", &["203.0.113.3"]),
    ];
    let servers = name_server(&world.internet, RESOLVER, zone);
    Names { world, network, sandbox: Namespace::new(), _servers: servers }
}

impl Names {
    fn attach(&self, policy: NetworkPolicy) -> Attachment {
        self.network.attach(self.sandbox.descriptor(), policy).unwrap()
    }

    /// Looks up, then connects to the port of the first address.
    fn reach(&self, name: &str, port: u16) -> io::Result<String> {
        let address = look_up(&self.sandbox, name)?[0];
        fetch(&self.sandbox, &format!("{address}:{port}"))
    }
}

fn only(names: &[&str]) -> NetworkPolicy {
    NetworkPolicy::only(names.iter().map(|name| name.parse::<Destination>().unwrap()))
}

/// An HTTP server that answers each request with the host asked for, and keeps the connection open for more.
fn http(namespace: &Namespace, address: &str) -> Server {
    tcp(namespace, address, |mut stream| {
        let mut seen = Vec::new();
        let mut part = [0; 4096];
        loop {
            let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else {
                match stream.read(&mut part)? {
                    0 => return Ok(()),
                    count => seen.extend_from_slice(&part[..count]),
                }
                continue;
            };
            let head = String::from_utf8_lossy(&seen[..end]).into_owned();
            seen.drain(..end + 4);
            let host = head.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap_or("none").to_owned();
            if head.contains("Upgrade: ") {
                write!(stream, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")?;
                let mut frame = [0; 6];
                stream.read_exact(&mut frame)?;
                return stream.write_all(&frame);
            }
            let (status, location) = match head.split(' ').nth(1) {
                Some("/away") => ("302 Found", "Location: http://bad.example/\r\n"),
                _ => ("200 OK", ""),
            };
            write!(stream, "HTTP/1.1 {status}\r\n{location}Content-Length: {}\r\n\r\n{host}", host.len())?;
            if head.contains("Connection: close") {
                return Ok(());
            }
        }
    })
}

fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

#[test]
fn only_allowed_names_are_resolved_and_reachable() {
    let names = names();
    let _servers = ["203.0.113.1:8000", "203.0.113.2:8000", "203.0.113.3:8000"]
        .map(|address| greeter(&names.world.internet, address));
    let attachment = names.attach(only(&["good.example"]));
    assert_refused(fetch(&names.sandbox, "203.0.113.1:8000"));
    names.reach("good.example", 8000).unwrap();
    assert_eq!(names.reach("bad.example", 8000).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(names.reach("deep.good.example", 8000).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_refused(fetch(&names.sandbox, "203.0.113.2:8000"));
    attachment.set_policy(only(&["*.good.example"])).unwrap();
    names.reach("deep.good.example", 8000).unwrap();
    assert_eq!(names.reach("good.example", 8000).unwrap_err().kind(), io::ErrorKind::NotFound);
    let denied: Vec<String> = attachment
        .look_ups()
        .into_iter()
        .filter(|entry| entry.verdict == LoggedVerdict::Denied)
        .map(|entry| entry.name)
        .collect();
    assert_eq!(denied, ["bad.example", "deep.good.example", "good.example"]);
}

#[test]
fn other_name_servers_are_no_way_round() {
    let names = names();
    let _attachment = names.attach(only(&["good.example"]));
    assert_refused(ask(&names.sandbox, &format!("{RESOLVER}:53"), &query("bad.example", 1)));
    assert_refused(fetch(&names.sandbox, &format!("{RESOLVER}:53")));
}

#[test]
fn without_names_nothing_is_resolved() {
    let names = names();
    let _attachment = names.attach(only(&["203.0.113.0/24"]));
    assert_eq!(look_up(&names.sandbox, "good.example").unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_policy_may_name_its_own_name_servers() {
    let names = names();
    let _other = name_server(&names.world.internet, "203.0.113.8", &[("good.example", &["203.0.113.7"])]);
    let mut policy = NetworkPolicy::all();
    policy.name_servers = vec!["203.0.113.8".parse().unwrap()];
    let _attachment = names.attach(policy);
    let expected: [std::net::IpAddr; 1] = ["203.0.113.7".parse().unwrap()];
    assert_eq!(look_up(&names.sandbox, "good.example").unwrap(), expected);
}

#[test]
fn http_hosts_are_checked() {
    let names = names();
    let _servers = [http(&names.world.internet, "203.0.113.1:80"), http(&names.world.internet, "203.0.113.2:80")];
    let _attachment = names.attach(only(&["good.example"]));
    let to = |host: &str| exchange(&names.sandbox, "203.0.113.1:80", &request(host));
    assert_refused(to("good.example"));
    look_up(&names.sandbox, "good.example").unwrap();
    assert!(to("good.example").unwrap().ends_with("good.example"));
    // Another name at the same address.
    assert_refused(to("shared.example"));
    // An allowed name at an address that it never had.
    assert_refused(exchange(&names.sandbox, "203.0.113.2:80", &request("good.example")));
    // No name, two names, not HTTP.
    assert_refused(exchange(&names.sandbox, "203.0.113.1:80", b"GET / HTTP/1.0\r\n\r\n"));
    assert_refused(exchange(
        &names.sandbox,
        "203.0.113.1:80",
        b"GET / HTTP/1.1\r\nHost: good.example\r\nHost: shared.example\r\n\r\n",
    ));
    assert_refused(exchange(&names.sandbox, "203.0.113.1:80", b"\x00\x01\x02\x03"));
}

#[test]
fn a_second_request_on_a_connection_is_not_served() {
    let names = names();
    let _server = http(&names.world.internet, "203.0.113.1:80");
    let _attachment = names.attach(only(&["good.example"]));
    look_up(&names.sandbox, "good.example").unwrap();
    let both = [request("good.example"), request("shared.example")].concat();
    let answers = exchange(&names.sandbox, "203.0.113.1:80", &both);
    // The server ends the connection with the second request unread, which may reach the client as a reset.
    if let Ok(answers) = answers {
        assert!(answers.contains("good.example") && !answers.contains("shared.example"), "{answers}");
    }
}

#[test]
fn a_redirect_does_not_lead_out() {
    let names = names();
    let _servers = [http(&names.world.internet, "203.0.113.1:80"), http(&names.world.internet, "203.0.113.2:80")];
    let _attachment = names.attach(only(&["good.example"]));
    look_up(&names.sandbox, "good.example").unwrap();
    let answer =
        exchange(&names.sandbox, "203.0.113.1:80", b"GET /away HTTP/1.1\r\nHost: good.example\r\n\r\n").unwrap();
    assert!(answer.contains("Location: http://bad.example/"), "{answer}");
    look_up(&names.sandbox, "bad.example").unwrap_err();
    assert_refused(exchange(&names.sandbox, "203.0.113.2:80", &request("bad.example")));
}

#[test]
fn websockets_pass() {
    let names = names();
    let _server = http(&names.world.internet, "203.0.113.1:80");
    let _attachment = names.attach(only(&["good.example"]));
    look_up(&names.sandbox, "good.example").unwrap();
    let upgrade = b"GET /socket HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut stream = names.sandbox.run(|| TcpStream::connect("203.0.113.1:80").unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(upgrade).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream.write_all(b"\x81\x84mask").unwrap();
    let mut frame = [0; 6];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(&frame, b"\x81\x84mask");
}

/// A real TLS server with a certificate for any of the names.
#[derive(Debug)]
struct Tls {
    server: Child,
    _files: tempfile::TempDir,
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

fn tls(names: &Names, address: &str) -> Tls {
    let files = tempfile::tempdir().unwrap();
    let (key, certificate) = (files.path().join("key"), files.path().join("certificate"));
    let (key, certificate) = (key.to_str().unwrap(), certificate.to_str().unwrap());
    names.sandbox.shell(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -days 1 \
         -keyout {key} -out {certificate} 2>/dev/null"
    ));
    let mut server = names.world.internet.run(|| {
        Command::new("openssl")
            .args(["s_server", "-accept", address, "-key", key, "-cert", certificate, "-www"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    // It says so when it listens.
    let mut line = [0; 6];
    server.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    Tls { server, _files: files }
}

/// Whether a TLS handshake with this name succeeds.
fn handshake(sandbox: &Namespace, address: &str, name: Option<&str>) -> bool {
    let name = name.map_or_else(|| "-noservername".to_owned(), |name| format!("-servername {name}"));
    sandbox
        .shell(&format!(
            "openssl s_client -connect {address} {name} </dev/null 2>/dev/null | grep -c 'BEGIN CERT' || true"
        ))
        .trim()
        == "1"
}

#[test]
fn tls_server_names_are_checked() {
    let names = names();
    let _servers = [tls(&names, "203.0.113.1:443"), tls(&names, "203.0.113.2:443")];
    let attachment = names.attach(only(&["good.example"]));
    assert!(!handshake(&names.sandbox, "203.0.113.1:443", Some("good.example")), "not looked up yet");
    look_up(&names.sandbox, "good.example").unwrap();
    assert!(handshake(&names.sandbox, "203.0.113.1:443", Some("good.example")));
    assert!(!handshake(&names.sandbox, "203.0.113.1:443", Some("shared.example")));
    assert!(!handshake(&names.sandbox, "203.0.113.2:443", Some("good.example")), "an address of another name");
    assert!(!handshake(&names.sandbox, "203.0.113.1:443", None));
    // A deny-list looks at the same name.
    attachment.set_policy(NetworkPolicy::all_but(["bad.example".parse().unwrap()])).unwrap();
    assert!(handshake(&names.sandbox, "203.0.113.2:443", Some("other.example")));
    assert!(!handshake(&names.sandbox, "203.0.113.2:443", Some("BAD.example")));
    look_up(&names.sandbox, "bad.example").unwrap_err();
}

#[test]
fn quic_is_refused_where_names_matter() {
    let names = names();
    let _servers = ["203.0.113.1:443", "203.0.113.1:444"].map(|address| udp_echo(&names.world.internet, address));
    let _attachment = names.attach(only(&["good.example"]));
    look_up(&names.sandbox, "good.example").unwrap();
    assert_refused(ask(&names.sandbox, "203.0.113.1:443", b"quic"));
    ask(&names.sandbox, "203.0.113.1:444", b"other").unwrap();
}

#[test]
fn a_new_policy_cuts_connections_that_were_judged_by_name() {
    let names = names();
    let _server = http(&names.world.internet, "203.0.113.1:80");
    let attachment = names.attach(only(&["good.example"]));
    look_up(&names.sandbox, "good.example").unwrap();
    let upgrade = b"GET / HTTP/1.1\r\nHost: good.example\r\nUpgrade: websocket\r\n\r\n";
    let open = || {
        let mut stream = names.sandbox.run(|| TcpStream::connect("203.0.113.1:80").unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(upgrade).unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        stream
    };
    let mut stream = open();
    attachment.set_policy(only(&["good.example", "bad.example"])).unwrap();
    stream.write_all(b"frame1").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    let mut stream = open();
    attachment.set_policy(only(&["bad.example"])).unwrap();
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest).map(|_| ());
    assert_refused(ended);
}

#[test]
fn names_are_checked_over_ipv6_too() {
    let world = World::new();
    let network = world.start(NetworkConfiguration { with_ipv6: true, ..World::configuration() });
    let zone: &[(&str, &[&str])] = &[("good.example", &["2001:db8::1"]), ("bad.example", &["2001:db8::2"])];
    let _names = name_server(&world.internet, RESOLVER, zone);
    let _servers = ["[2001:db8::1]:80", "[2001:db8::2]:80"].map(|address| http(&world.internet, address));
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), only(&["good.example"])).unwrap();
    assert_refused(exchange(&sandbox, "[2001:db8::1]:80", &request("good.example")));
    let found = look_up_kind(&sandbox, "good.example", 28).unwrap();
    assert_eq!(found, ["2001:db8::1".parse::<std::net::IpAddr>().unwrap()]);
    assert!(exchange(&sandbox, "[2001:db8::1]:80", &request("good.example")).unwrap().ends_with("good.example"));
    assert_refused(exchange(&sandbox, "[2001:db8::1]:80", &request("bad.example")));
    assert_refused(exchange(&sandbox, "[2001:db8::2]:80", &request("good.example")));
}

#[test]
fn private_answers_can_be_trusted() {
    let world = World::new();
    let network = world.start(NetworkConfiguration { private_answers: true, ..World::configuration() });
    world.internet.shell("ip addr add 10.99.0.1/32 dev lo");
    let _names = name_server(&world.internet, RESOLVER, &[("inner.example", &["10.99.0.1"])]);
    let _server = greeter(&world.internet, "10.99.0.1:8000");
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), only(&["inner.example"])).unwrap();
    look_up(&sandbox, "inner.example").unwrap();
    fetch(&sandbox, "10.99.0.1:8000").unwrap();
}

#[test]
fn git_clones_over_http_by_an_allowed_name() {
    let names = names();
    let files = tempfile::tempdir().unwrap();
    let root = files.path().display();
    names.sandbox.shell(&format!(
        "cd {root}; git init -q work; cd work; echo hello > file; git add file
         git -c user.name=t -c user.email=t@example.com commit -qm first
         git clone -q --bare . ../repository.git; cd ../repository.git; git update-server-info
         echo 'nameserver 198.18.0.1' > ../resolv.conf"
    ));
    let mut server = names.world.internet.run(|| {
        Command::new("python3")
            .args(["-u", "-m", "http.server", "--bind", "203.0.113.1", "80", "--directory"])
            .arg(files.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    server.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
    let _attachment = names.attach(only(&["good.example"]));
    names.sandbox.shell(&format!(
        "unshare --mount sh -ec 'mount --bind {root}/resolv.conf $(realpath /etc/resolv.conf)
         git clone -q http://good.example/repository.git {root}/clone'"
    ));
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(std::fs::read_to_string(files.path().join("clone/file")).unwrap(), "hello\n");
}
