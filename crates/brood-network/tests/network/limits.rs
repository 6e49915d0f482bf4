//! Limits on traffic and connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use brood_network::{NetworkConfiguration, NetworkLimits, NetworkPolicy};

use crate::servers::{PATIENCE, ask, assert_refused, echo, fetch, greeter, tcp, udp_echo};
use crate::world::{Namespace, World};

fn limited(limits: NetworkLimits) -> NetworkPolicy {
    NetworkPolicy { limits, ..NetworkPolicy::all() }
}

#[test]
fn connections_are_counted() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandboxes = [Namespace::new(), Namespace::new()];
    let _server = echo(&world.internet, "203.0.113.1:8000");
    let limits = NetworkLimits { connections: Some(3), ..NetworkLimits::default() };
    let attachments =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), limited(limits)).unwrap());
    let connect = |sandbox: &Namespace| {
        sandbox.run(|| TcpStream::connect_timeout(&"203.0.113.1:8000".parse().unwrap(), PATIENCE))
    };
    let open: Vec<TcpStream> = (0..3).map(|_| connect(&sandboxes[0]).unwrap()).collect();
    assert_refused(connect(&sandboxes[0]));
    connect(&sandboxes[1]).expect("each sandbox has a limit of its own");
    attachments[0].set_policy(NetworkPolicy::all()).unwrap();
    connect(&sandboxes[0]).unwrap();
    drop(open);
}

#[test]
fn no_sandbox_fills_the_table_of_connections() {
    let world = World::new();
    let network = world.start(NetworkConfiguration { connections_max: 50, ..World::configuration() });
    let sandboxes = [Namespace::new(), Namespace::new()];
    let _server = udp_echo(&world.internet, "203.0.113.1:9000");
    let attachments =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap());
    // Each datagram to another port is a connection of its own, as far as tracking goes.
    let flood = |sandbox: &Namespace| {
        sandbox.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 10_000..10_500 {
                // Refusals are reported at one of the next calls.
                socket.send_to(b"x", ("203.0.113.1", port)).ok();
            }
        });
    };
    flood(&sandboxes[0]);
    let tracked =
        || world.host.shell("grep -c 'dport=10[0-9][0-9][0-9] ' /proc/net/nf_conntrack").trim().parse().unwrap();
    let count: usize = tracked();
    assert!((40..=50).contains(&count), "{count}");
    // The kernel may have become tired of saying so.
    ask(&sandboxes[0], "203.0.113.1:9000", b"x").expect_err("one more connection");
    ask(&sandboxes[1], "203.0.113.1:9000", b"x").unwrap();
    let [first, _second] = attachments;
    first.detach();
    assert_eq!(world.host.shell("nft list set inet brood counted | grep -c 'ct count' || true").trim(), "1");
}

#[test]
fn new_connections_are_slowed_down() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _server = greeter(&world.internet, "203.0.113.1:8000");
    let limits = NetworkLimits { new_connections_per_second: Some(5), ..NetworkLimits::default() };
    let _attachment = network.attach(sandbox.descriptor(), limited(limits)).unwrap();
    let start = Instant::now();
    let passed = (0..100).filter(|_| fetch(&sandbox, "203.0.113.1:8000").is_ok()).count();
    let most = 6 + 5 * (usize::try_from(start.elapsed().as_secs()).unwrap() + 1);
    assert!((5..=most).contains(&passed), "{passed} of 100 in {:?}", start.elapsed());
}

#[test]
fn bytes_are_limited_in_both_directions() {
    const BYTES: usize = 2_000_000;
    const RATE: u64 = 600_000;
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let source = tcp(&world.internet, "203.0.113.1:8000", |mut stream| stream.write_all(&vec![7; BYTES]));
    let sink = tcp(&world.internet, "203.0.113.1:8001", |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(&all.len().to_le_bytes())
    });
    let receive = || {
        let mut stream = sandbox.run(|| TcpStream::connect("203.0.113.1:8000").unwrap());
        let start = Instant::now();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), BYTES);
        start.elapsed()
    };
    let send = || {
        let mut stream = sandbox.run(|| TcpStream::connect("203.0.113.1:8001").unwrap());
        let start = Instant::now();
        stream.write_all(&vec![7; BYTES]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        start.elapsed()
    };
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let free = receive().max(send());
    assert!(free < Duration::from_millis(900), "{free:?} without a limit");
    let limits = NetworkLimits { receive_bytes_per_second: Some(RATE), ..NetworkLimits::default() };
    attachment.set_policy(limited(limits)).unwrap();
    // What one second may carry passes at once.
    let least = Duration::from_millis(1500);
    assert!(receive() > least);
    assert!(send() < Duration::from_millis(900));
    let limits = NetworkLimits { send_bytes_per_second: Some(RATE), ..NetworkLimits::default() };
    attachment.set_policy(limited(limits)).unwrap();
    assert!(send() > least);
    assert!(receive() < Duration::from_millis(900));
    drop((source, sink));
}

#[test]
fn traffic_is_counted_as_the_sandbox_sees_it() {
    const BYTES: usize = 1_000_000;
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let _source = tcp(&world.internet, "203.0.113.1:8000", |mut stream| stream.write_all(&vec![7; BYTES]));
    let before = attachment.traffic().unwrap();
    sandbox.run(|| {
        let mut all = Vec::new();
        TcpStream::connect("203.0.113.1:8000").unwrap().read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), BYTES);
    });
    let after = attachment.traffic().unwrap();
    let received = usize::try_from(after.received_bytes - before.received_bytes).unwrap();
    assert!((BYTES..BYTES * 11 / 10).contains(&received), "{received}");
    assert!(after.sent_packets > before.sent_packets);
    assert!(after.sent_bytes - before.sent_bytes < u64::try_from(BYTES / 10).unwrap());
    sandbox.shell("ip link del eth0");
    attachment.traffic().unwrap_err();
}
