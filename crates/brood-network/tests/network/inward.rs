//! Getting in without published ports, forwarded and published ports, and private groups.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use brood_network::{AddressPlan, Attachment, ConnectError, Forwarder, Network, NetworkPolicy};

use crate::servers::{PATIENCE, Server, assert_refused, echo, fetch, greeter, look_up, udp_echo};
use crate::world::{Namespace, World};

fn sandbox(network: &Network, policy: NetworkPolicy) -> (Namespace, Attachment) {
    let namespace = Namespace::new();
    let attachment = network.attach(namespace.descriptor(), policy).unwrap();
    (namespace, attachment)
}

fn read_all(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn any_port_inside_can_be_reached() {
    let world = World::new();
    let network = world.start(World::configuration());
    let (inside, attachment) = sandbox(&network, NetworkPolicy::none());
    let _servers =
        ["127.0.0.1:8001", "0.0.0.0:8002", "[::1]:8003", "198.18.0.2:8004"].map(|address| greeter(&inside, address));
    for (port, peer) in [(8001, "127.0.0.1"), (8002, "127.0.0.1"), (8003, "::1"), (8004, "198.18.0.2")] {
        assert_eq!(read_all(attachment.connect(port).unwrap()).unwrap(), peer, "{port}");
    }
    assert!(matches!(attachment.connect(8005), Err(ConnectError::Refused { port: 8005, .. })));
    // The caller is where it was.
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    assert_eq!(own, std::fs::read_link("/proc/self/ns/net").unwrap());
}

#[test]
fn forwarded_ports_carry_megabytes_both_ways() {
    let world = World::new();
    let network = world.start(World::configuration());
    let (inside, attachment) = sandbox(&network, NetworkPolicy::none());
    let _server = echo(&inside, "127.0.0.1:8000");
    let forward = world.host.run(|| attachment.forward_port("127.0.0.1:0".parse().unwrap(), 8000)).unwrap();
    let sent: Vec<u8> = (0..8_000_000_u32).map(|number| number.to_le_bytes()[0] ^ number.to_le_bytes()[1]).collect();
    let mut stream = world.host.run(|| TcpStream::connect(forward.local_address()).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let to_send = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent, "{} of {} bytes, or not the same", received.len(), sent.len());
}

#[test]
fn a_forwarded_port_ends_with_its_sandbox() {
    let world = World::new();
    let network = world.start(World::configuration());
    let (inside, attachment) = sandbox(&network, NetworkPolicy::none());
    let _server = echo(&inside, "127.0.0.1:8000");
    // Published: for everybody who reaches the host.
    let forward = world.host.run(|| attachment.forward_port("0.0.0.0:8080".parse().unwrap(), 8000)).unwrap();
    let mut open = world.internet.run(|| TcpStream::connect("10.77.0.2:8080").unwrap());
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    open.write_all(b"x").unwrap();
    open.read_exact(&mut [0]).unwrap();
    let closed = world.host.run(|| attachment.forward_port("127.0.0.1:0".parse().unwrap(), 8001)).unwrap();
    assert_refused(fetch(&world.host, &closed.local_address().to_string()));
    attachment.detach();
    assert_refused(open.read_exact(&mut [0]));
    assert_refused(fetch(&world.host, "127.0.0.1:8080"));
    drop(forward);
    assert_eq!(fetch(&world.host, "127.0.0.1:8080").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn ports_lead_into_sandboxes_without_a_network() {
    let world = World::new();
    let forwarder = Forwarder::start(AddressPlan::default()).unwrap();
    let inside = Namespace::new();
    inside.shell("ip link set lo up");
    let _server = echo(&inside, "127.0.0.1:8000");
    let namespace = Arc::new(inside.descriptor().try_clone_to_owned().unwrap());
    let local = "127.0.0.1:0".parse().unwrap();
    let forward = world.host.run(|| forwarder.forward(local, &namespace, 8000)).unwrap();
    let address = forward.local_address();
    let open = || {
        let mut stream = world.host.run(|| TcpStream::connect(address).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0]).map(|()| stream)
    };
    let mut first = open().unwrap();
    forward.reset_connections();
    assert_refused(first.read_exact(&mut [0]));
    let mut second = open().unwrap();
    // What is taken cannot be had twice.
    let taken = world.host.run(|| forwarder.forward(address, &namespace, 8000)).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    // The forward does not keep the namespace.
    drop(namespace);
    open().unwrap_err();
    second.write_all(b"x").unwrap();
    second.read_exact(&mut [0]).unwrap();
    drop(forward);
    assert_refused(second.read_exact(&mut [0]));
    let refused = world.host.run(|| TcpStream::connect(address).unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn members_of_a_group_reach_each_other_by_name() {
    let world = World::new();
    let network = world.start(World::configuration());
    let (web, at_web) = sandbox(&network, NetworkPolicy::none());
    let (database, at_database) = sandbox(&network, NetworkPolicy::all());
    let (stranger, at_stranger) = sandbox(&network, NetworkPolicy::all());
    at_web.join_group("task-1", "web").unwrap();
    at_database.join_group("task-1", "database").unwrap();
    at_stranger.join_group("task-2", "database").unwrap();
    let servers: [Server; 2] = [greeter(&database, "0.0.0.0:5432"), udp_echo(&database, "0.0.0.0:5353")];
    let _other = greeter(&web, "0.0.0.0:80");
    let address = look_up(&web, "database").unwrap()[0];
    assert_eq!(look_up(&web, "Database.task-1").unwrap(), [address]);
    assert_eq!(address, at_database.outside_address());
    assert_eq!(fetch(&web, &format!("{address}:5432")).unwrap(), at_web.outside_address().to_string());
    crate::servers::ask(&web, &format!("{address}:5353"), b"x").unwrap();
    fetch(&database, &format!("{}:80", at_web.outside_address())).unwrap();
    // Itself, under the address that it has inside.
    assert_eq!(look_up(&database, "database").unwrap()[0].to_string(), "198.18.0.2");
    assert_refused(fetch(&stranger, &format!("{address}:5432")));
    assert_ne!(look_up(&stranger, "database").unwrap(), [address]);
    look_up(&stranger, "web").unwrap_err();
    assert_eq!(servers[0].seen.lock().unwrap().len(), 1);
    at_database.detach();
    look_up(&web, "database").unwrap_err();
    fetch(&web, &format!("{address}:5432")).unwrap_err();
    // The name is free again.
    let (_next, at_next) = sandbox(&network, NetworkPolicy::none());
    at_next.join_group("task-1", "database").unwrap();
    at_next.join_group("task-1", "web").unwrap_err();
    at_next.join_group("task-2", "replica").unwrap();
}

#[test]
fn single_addresses_can_be_opened_against_the_rule() {
    let world = World::new();
    let network = world.start(World::configuration());
    world.internet.shell("ip addr add 169.254.169.254/32 dev lo");
    world.host.shell("ip route add 169.254.169.254 via 10.77.0.1");
    let _servers = [
        greeter(&world.host, "0.0.0.0:8000"),
        greeter(&world.internet, "169.254.169.254:80"),
        greeter(&world.internet, "203.0.113.1:8000"),
    ];
    let (inside, attachment) = sandbox(&network, NetworkPolicy::none());
    let (neighbour, _neighbour) = sandbox(&network, NetworkPolicy::all());
    let mut policy = NetworkPolicy::none();
    policy.open = ["10.77.0.2", "198.18.0.1", "169.254.169.254"].map(|address| address.parse().unwrap()).into();
    attachment.set_policy(policy).unwrap();
    for address in ["10.77.0.2:8000", "198.18.0.1:8000", "169.254.169.254:80"] {
        fetch(&inside, address).expect(address);
        assert_refused(fetch(&neighbour, address));
    }
    assert_refused(fetch(&inside, "203.0.113.1:8000"));
    attachment.set_policy(NetworkPolicy::none()).unwrap();
    assert_refused(fetch(&inside, "10.77.0.2:8000"));
}

#[test]
fn connections_are_forgotten_on_demand_and_with_the_sandbox() {
    let world = World::new();
    let network = world.start(World::configuration());
    let (inside, attachment) = sandbox(&network, NetworkPolicy::all());
    let (other, _other) = sandbox(&network, NetworkPolicy::all());
    let _server = echo(&world.internet, "203.0.113.1:8000");
    let connect = |from: &Namespace| {
        let mut stream = from.run(|| TcpStream::connect("203.0.113.1:8000").unwrap());
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream
    };
    let tracked = || {
        world.host.shell("grep -c 'dport=8000.*ESTABLISHED\\|ESTABLISHED.*dport=8000' /proc/net/nf_conntrack || true")
    };
    let _streams = [connect(&inside), connect(&other)];
    assert_eq!(tracked().trim(), "2");
    attachment.reset_connections().unwrap();
    assert_eq!(tracked().trim(), "1");
    let _again = connect(&inside);
    assert_eq!(tracked().trim(), "2");
    attachment.detach();
    assert_eq!(tracked().trim(), "1");
}
