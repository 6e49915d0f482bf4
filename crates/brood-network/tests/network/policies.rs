//! Each policy allows and denies what it says, by IPv4, IPv6, TCP, UDP and ICMP.

use std::io::{Read, Write};
use std::net::TcpStream;

use brood_network::{Destination, NetworkConfiguration, NetworkPolicy, Verdict};

use crate::servers::{PATIENCE, ask, assert_refused, echo, fetch, greeter, udp_echo};
use crate::world::{Namespace, World};

const V4: &str = "203.0.113.1:8000";
const OTHER_V4: &str = "203.0.113.2:8000";
const V6: &str = "[2001:db8::1]:8000";
const OTHER_V6: &str = "[2001:db8::2]:8000";

fn destination(text: &str) -> Destination {
    text.parse().unwrap()
}

/// Whether a ping is answered.
fn ping(sandbox: &Namespace, address: &str) -> bool {
    let script = format!(
        "import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout({})
body = struct.pack('!BBHHH', 8, 0, 0, 77, 1)
total = sum(struct.unpack('!4H', body))
check = ~((total & 0xffff) + (total >> 16)) & 0xffff
s.sendto(struct.pack('!BBHHH', 8, 0, check, 77, 1), ('{address}', 0))
while True:
    try:
        packet = s.recv(2048)
    except (TimeoutError, OSError):
        sys.exit(print('no'))
    if packet[20] == 0:
        sys.exit(print('yes'))
    if packet[20] == 3:
        sys.exit(print('no'))",
        PATIENCE.as_secs_f64()
    );
    sandbox.shell(&format!("python3 - <<'END'\n{script}\nEND")).trim() == "yes"
}

#[test]
fn none_and_all() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _servers = [greeter(&world.internet, V4), udp_echo(&world.internet, "203.0.113.1:9000")];
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::none()).unwrap();
    assert_refused(fetch(&sandbox, V4));
    assert_refused(ask(&sandbox, "203.0.113.1:9000", b"x"));
    assert!(!ping(&sandbox, "203.0.113.1"));
    attachment.set_policy(NetworkPolicy::all()).unwrap();
    fetch(&sandbox, V4).unwrap();
    ask(&sandbox, "203.0.113.1:9000", b"x").unwrap();
    assert!(ping(&sandbox, "203.0.113.1"));
}

#[test]
fn allow_lists_and_deny_lists_of_addresses() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _servers = [
        greeter(&world.internet, V4),
        greeter(&world.internet, OTHER_V4),
        udp_echo(&world.internet, "203.0.113.1:9000"),
        udp_echo(&world.internet, "203.0.113.2:9000"),
    ];
    let only = NetworkPolicy::only([destination("203.0.113.1")]);
    let attachment = network.attach(sandbox.descriptor(), only).unwrap();
    fetch(&sandbox, V4).unwrap();
    ask(&sandbox, "203.0.113.1:9000", b"x").unwrap();
    assert!(ping(&sandbox, "203.0.113.1"));
    assert_refused(fetch(&sandbox, OTHER_V4));
    assert_refused(ask(&sandbox, "203.0.113.2:9000", b"x"));
    assert!(!ping(&sandbox, "203.0.113.2"));
    attachment.set_policy(NetworkPolicy::all_but([destination("203.0.113.0/31")])).unwrap();
    assert_refused(fetch(&sandbox, V4));
    fetch(&sandbox, OTHER_V4).unwrap();
    let both = NetworkPolicy {
        default: Verdict::Allow,
        allow: [destination("203.0.113.2")].into(),
        deny: [destination("203.0.113.0/24")].into(),
        ..NetworkPolicy::default()
    };
    attachment.set_policy(both).unwrap();
    assert_refused(fetch(&sandbox, V4));
    fetch(&sandbox, OTHER_V4).unwrap();
}

#[test]
fn the_same_by_ipv6() {
    let world = World::new();
    let network = world.start(NetworkConfiguration { with_ipv6: true, ..World::configuration() });
    let sandbox = Namespace::new();
    let _servers = [
        greeter(&world.internet, V4),
        greeter(&world.internet, V6),
        greeter(&world.internet, OTHER_V6),
        udp_echo(&world.internet, "[2001:db8::2]:9000"),
    ];
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    assert_eq!(fetch(&sandbox, V6).unwrap(), "2001:db8:77::2");
    ask(&sandbox, "[2001:db8::2]:9000", b"x").unwrap();
    attachment.set_policy(NetworkPolicy::only([destination("2001:db8::1")])).unwrap();
    fetch(&sandbox, V6).unwrap();
    assert_refused(fetch(&sandbox, OTHER_V6));
    assert_refused(ask(&sandbox, "[2001:db8::2]:9000", b"x"));
    assert_refused(fetch(&sandbox, V4));
    attachment.set_policy(NetworkPolicy::only([destination("0.0.0.0/0")])).unwrap();
    fetch(&sandbox, V4).unwrap();
    assert_refused(fetch(&sandbox, V6));
    attachment.set_policy(NetworkPolicy::none()).unwrap();
    assert_refused(fetch(&sandbox, V6));
}

#[test]
fn without_ipv6_there_is_no_way_round_by_it() {
    let world = World::new();
    let network = world.start(World::configuration());
    // The host itself forwards IPv6, as many do.
    world.host.shell("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    let sandbox = Namespace::new();
    let server = greeter(&world.internet, V6);
    let _attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    fetch(&sandbox, V6).unwrap_err();
    // Root inside gives itself what it lacks, in every way that could be routed.
    for address in ["fd62:726f:6f64::2/64", "2001:db8:99::2/64", "fe80::2/64"] {
        sandbox.shell(&format!(
            "ip -6 addr add {address} dev eth0 nodad; ip -6 route replace default dev eth0 src {}",
            address.trim_end_matches("/64")
        ));
        fetch(&sandbox, V6).expect_err(address);
    }
    assert!(server.seen.lock().unwrap().is_empty());
}

#[test]
fn a_new_policy_cuts_what_it_does_not_allow_and_nothing_else() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _servers = [echo(&world.internet, V4), echo(&world.internet, OTHER_V4)];
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let mut streams = [V4, OTHER_V4].map(|address| sandbox.run(|| TcpStream::connect(address).unwrap()));
    let say = |stream: &mut TcpStream| -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"ping")?;
        stream.read_exact(&mut [0; 4])
    };
    for stream in &mut streams {
        say(stream).unwrap();
    }
    attachment.set_policy(NetworkPolicy::only([destination("203.0.113.1")])).unwrap();
    say(&mut streams[0]).unwrap();
    assert_refused(say(&mut streams[1]));
    attachment.set_policy(NetworkPolicy::none()).unwrap();
    assert_refused(say(&mut streams[0]));
}

#[test]
fn policies_of_two_sandboxes_are_independent() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandboxes = [Namespace::new(), Namespace::new()];
    let _server = greeter(&world.internet, V4);
    let [first, second] =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap());
    first.set_policy(NetworkPolicy::none()).unwrap();
    assert_refused(fetch(&sandboxes[0], V4));
    fetch(&sandboxes[1], V4).unwrap();
    first.set_policy(NetworkPolicy::all()).unwrap();
    second.set_policy(NetworkPolicy::none()).unwrap();
    fetch(&sandboxes[0], V4).unwrap();
    assert_refused(fetch(&sandboxes[1], V4));
}

#[test]
fn the_biggest_policy_fits() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _servers = [greeter(&world.internet, V4), greeter(&world.internet, OTHER_V4)];
    let mut policy = NetworkPolicy::only([destination("203.0.113.1")]);
    let most = brood_network::RULES_MAX - 1;
    policy.allow.extend((0..most).map(|number| destination(&format!("192.{}.{}.0/25", number / 256, number % 256))));
    let attachment = network.attach(sandbox.descriptor(), policy.clone()).unwrap();
    fetch(&sandbox, V4).unwrap();
    assert_refused(fetch(&sandbox, OTHER_V4));
    policy.allow.insert(destination("203.0.113.2"));
    attachment.set_policy(policy).unwrap_err();
    fetch(&sandbox, V4).unwrap();
}
