//! What no policy opens: the host, link-local addresses, other sandboxes, false senders.

use std::io;

use brood_network::{Destination, NetworkPolicy};

use crate::servers::{PATIENCE, Server, ask, assert_refused, fetch, greeter, look_up, name_server, udp_echo};
use crate::world::{Namespace, RESOLVER, World};

/// The widest policy there is.
fn everything() -> NetworkPolicy {
    let ranges = ["0.0.0.0/0", "::/0", "10.77.0.2", "169.254.169.254", "198.18.0.0/15", "127.0.0.0/8"];
    let mut policy = NetworkPolicy::all();
    policy.allow = ranges.map(|range| range.parse::<Destination>().unwrap()).into();
    policy
}

#[test]
fn the_host_is_never_reachable() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), everything()).unwrap();
    // A service on every address of the host, the gateway's included.
    let service = greeter(&world.host, "0.0.0.0:22");
    let datagrams = udp_echo(&world.host, "0.0.0.0:68");
    for address in ["10.77.0.2", "198.18.0.1"] {
        assert_refused(fetch(&sandbox, &format!("{address}:22")));
        assert_refused(ask(&sandbox, &format!("{address}:68"), b"x"));
    }
    // Its own outside address, and what would be the loopback device of the host.
    assert_refused(fetch(&sandbox, &format!("{}:22", attachment.outside_address())));
    sandbox.shell(
        "ip route add 127.9.0.0/16 via 198.18.0.1 table local; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet",
    );
    fetch(&sandbox, "127.9.0.1:22").unwrap_err();
    assert!(service.seen.lock().unwrap().is_empty());
    assert!(datagrams.seen.lock().unwrap().is_empty());
}

#[test]
fn the_daemons_own_ports_are_closed() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let mut policy = everything();
    policy.deny = ["evil.example".parse().unwrap()].into();
    let _attachment = network.attach(sandbox.descriptor(), policy).unwrap();
    let listening = world.host.shell("cat /proc/net/tcp /proc/net/udp");
    let ports: Vec<u16> = listening
        .lines()
        .filter_map(|line| {
            let local = line.split_whitespace().nth(1)?;
            let (address, port) = local.split_once(':')?;
            (address == "010012C6").then(|| u16::from_str_radix(port, 16).unwrap())
        })
        .collect();
    assert_eq!(ports.len(), 3, "name server twice, proxy once: {listening}");
    for port in ports {
        assert_refused(fetch(&sandbox, &format!("198.18.0.1:{port}")));
        assert_refused(ask(&sandbox, &format!("198.18.0.1:{port}"), b"x"));
    }
}

#[test]
fn a_port_that_the_host_leads_elsewhere_is_still_the_hosts() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), everything()).unwrap();
    let service = greeter(&world.internet, "203.0.113.1:8000");
    // As container engines publish ports.
    world.host.shell(
        "nft 'add table ip other; add chain ip other pre { type nat hook prerouting priority -100; };
              add rule ip other pre ip daddr 10.77.0.2 tcp dport 8000 dnat to 203.0.113.1'",
    );
    assert_refused(fetch(&sandbox, "10.77.0.2:8000"));
    assert!(service.seen.lock().unwrap().is_empty());
    fetch(&sandbox, "203.0.113.1:8000").unwrap();
}

#[test]
fn link_local_addresses_are_never_reachable() {
    let world = World::new();
    let network = world.start(World::configuration());
    world.internet.shell("ip addr add 169.254.169.254/32 dev lo");
    world.host.shell("ip route add 169.254.169.254 via 10.77.0.1");
    let metadata = greeter(&world.internet, "169.254.169.254:80");
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), everything()).unwrap();
    fetch(&world.host, "169.254.169.254:80").expect("the host reaches it");
    assert_refused(fetch(&sandbox, "169.254.169.254:80"));
    assert_eq!(metadata.seen.lock().unwrap().len(), 1);
}

#[test]
fn other_sandboxes_are_never_reachable() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandboxes = [Namespace::new(), Namespace::new()];
    let [_first, second] =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), everything()).unwrap());
    let servers = [greeter(&sandboxes[1], "0.0.0.0:8000"), udp_echo(&sandboxes[1], "0.0.0.0:9000")];
    assert_refused(fetch(&sandboxes[0], &format!("{}:8000", second.outside_address())));
    assert_refused(ask(&sandboxes[0], &format!("{}:9000", second.outside_address()), b"x"));
    // Neither from the host nor from machines next to it.
    fetch(&world.host, &format!("{}:8000", second.outside_address())).unwrap_err();
    world.internet.shell("ip route add 198.18.0.0/15 via 10.77.0.2");
    fetch(&world.internet, &format!("{}:8000", second.outside_address())).unwrap_err();
    fetch(&world.internet, "198.18.0.1:53").unwrap_err();
    assert!(servers.iter().all(|server| server.seen.lock().unwrap().is_empty()));
}

/// Sends packets made by hand, from root inside, and reports what arrived at `server`.
fn send_raw(sandbox: &Namespace, source: &str, target: &str, port: u16) {
    sandbox.shell(&format!(
        "python3 - <<'END'
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
udp = struct.pack('!HHHH', 4444, {port}, 12, 0) + b'spoo'
ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0,
                 socket.inet_aton('{source}'), socket.inet_aton('{target}'))
s.sendto(ip + udp, ('{target}', 0))
END"
    ));
}

fn senders(server: &Server) -> Vec<String> {
    server.seen.lock().unwrap().iter().map(|peer| peer.ip().to_string()).collect()
}

#[test]
fn raw_sockets_cannot_lie_about_the_sender() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandboxes = [Namespace::new(), Namespace::new()];
    let [_first, second] =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), everything()).unwrap());
    let server = udp_echo(&world.internet, "203.0.113.1:9000");
    let false_senders = ["10.77.0.2".to_owned(), "203.0.113.9".to_owned(), second.outside_address().to_string()];
    for source in &false_senders {
        send_raw(&sandboxes[0], source, "203.0.113.1", 9000);
    }
    // The honest one comes through, behind them, so all have been decided about.
    send_raw(&sandboxes[0], "198.18.0.2", "203.0.113.1", 9000);
    ask(&sandboxes[0], "203.0.113.1:9000", b"x").unwrap();
    assert_eq!(senders(&server), ["10.77.0.2", "10.77.0.2"]);
}

#[test]
fn raw_sockets_do_not_get_round_a_policy() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let server = udp_echo(&world.internet, "203.0.113.2:9000");
    let allowed = udp_echo(&world.internet, "203.0.113.1:9000");
    let policy = NetworkPolicy::only(["203.0.113.1".parse().unwrap()]);
    let _attachment = network.attach(sandbox.descriptor(), policy).unwrap();
    send_raw(&sandbox, "198.18.0.2", "203.0.113.2", 9000);
    // A frame by hand as well, straight to the veth.
    sandbox.shell(
        "python3 - <<'END'
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0x0800))
udp = struct.pack('!HHHH', 4444, 9000, 12, 0) + b'spoo'
head = lambda check: struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 1, 0, 64, 17, check,
                                 socket.inet_aton('198.18.0.2'), socket.inet_aton('203.0.113.2'))
total = sum(struct.unpack('!10H', head(0)))
total = (total & 0xffff) + (total >> 16)
mac = s.getsockname()[4]
s.send(mac + mac + b'\\x08\\x00' + head(~total & 0xffff) + udp)
END",
    );
    ask(&sandbox, "203.0.113.1:9000", b"x").unwrap();
    assert_eq!(senders(&allowed).len(), 1);
    assert!(senders(&server).is_empty());
}

#[test]
fn a_sandbox_that_calls_itself_differently_gets_nowhere() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let server = greeter(&world.internet, "203.0.113.1:8000");
    let _attachment = network.attach(sandbox.descriptor(), everything()).unwrap();
    sandbox.shell("ip addr add 198.19.0.9/32 dev eth0; ip route replace default via 198.18.0.1 src 198.19.0.9");
    fetch(&sandbox, "203.0.113.1:8000").unwrap_err();
    assert!(server.seen.lock().unwrap().is_empty());
    sandbox.shell("ip route replace default via 198.18.0.1 src 198.18.0.2");
    fetch(&sandbox, "203.0.113.1:8000").unwrap();
}

#[test]
fn rebinding_a_name_opens_nothing() {
    let world = World::new();
    let network = world.start(World::configuration());
    world.internet.shell("ip addr add 10.99.0.1/32 dev lo; ip addr add 169.254.169.254/32 dev lo");
    world.host.shell("ip route add 169.254.169.254 via 10.77.0.1");
    let addresses: &[&str] = &["10.77.0.2", "127.0.0.1", "169.254.169.254", "10.99.0.1", "198.18.0.1", "203.0.113.1"];
    let _names = name_server(&world.internet, RESOLVER, &[("rebind.example", addresses)]);
    let inner = greeter(&world.internet, "10.99.0.1:8000");
    let metadata = greeter(&world.internet, "169.254.169.254:8000");
    let host = greeter(&world.host, "0.0.0.0:8000");
    let _public = greeter(&world.internet, "203.0.113.1:8000");
    let sandbox = Namespace::new();
    let _attachment =
        network.attach(sandbox.descriptor(), NetworkPolicy::only(["rebind.example".parse().unwrap()])).unwrap();
    assert_eq!(look_up(&sandbox, "rebind.example").unwrap().len(), addresses.len());
    for address in ["10.77.0.2", "169.254.169.254", "10.99.0.1", "198.18.0.1"] {
        assert_refused(fetch(&sandbox, &format!("{address}:8000")));
    }
    fetch(&sandbox, "203.0.113.1:8000").expect("the one public address is what the name allows");
    assert!([&inner, &metadata, &host].iter().all(|server| server.seen.lock().unwrap().is_empty()));
}

#[test]
fn nobody_else_is_forwarded_because_of_us() {
    let world = World::new();
    // A second machine next to the host, which routes through it.
    let neighbour = Namespace::new();
    world.host.connect_to(&neighbour, "lan0", "10.88.0.1/24", "10.88.0.2/24");
    neighbour.shell("ip route add default via 10.88.0.1");
    world.internet.shell("ip route add 10.88.0.0/24 via 10.77.0.2");
    let _server = greeter(&world.internet, "203.0.113.1:8000");
    world.host.shell("echo 0 > /proc/sys/net/ipv4/ip_forward");
    let network = world.start(World::configuration());
    let timed_out = fetch(&neighbour, "203.0.113.1:8000").unwrap_err();
    assert_eq!(timed_out.kind(), io::ErrorKind::TimedOut, "dropped, after {PATIENCE:?}");
    drop(network);
    // A host that forwarded before goes on forwarding.
    world.host.shell("echo 1 > /proc/sys/net/ipv4/ip_forward");
    let _network = world.start(World::configuration());
    fetch(&neighbour, "203.0.113.1:8000").unwrap();
}
