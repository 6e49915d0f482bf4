//! Getting out, and being gone afterwards.

use std::io;

use brood_network::{NetworkError, NetworkPolicy};

use crate::servers::{ask, fetch, greeter, look_up, look_up_kind, name_server, udp_echo};
use crate::world::{Namespace, RESOLVER, World};

#[test]
fn a_sandbox_gets_out_over_tcp_and_udp() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let _web = greeter(&world.internet, "203.0.113.1:8000");
    let _udp = udp_echo(&world.internet, "203.0.113.1:9000");
    assert_eq!(fetch(&sandbox, "203.0.113.1:8000").unwrap(), "10.77.0.2", "servers see the host's address");
    assert_eq!(ask(&sandbox, "203.0.113.1:9000", b"hello").unwrap(), b"hello");
    attachment.detach();
}

#[test]
fn hosts_that_check_where_packets_come_from_do_not_mind() {
    let world = World::new();
    world.host.shell("for i in all default up0; do echo 1 > /proc/sys/net/ipv4/conf/$i/rp_filter; done");
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let _names = name_server(&world.internet, RESOLVER, &[("a.example", &["203.0.113.1"])]);
    let _web = greeter(&world.internet, "203.0.113.1:8000");
    look_up(&sandbox, "a.example").unwrap();
    assert_eq!(fetch(&sandbox, "203.0.113.1:8000").unwrap(), "10.77.0.2");
}

#[test]
fn every_sandbox_sees_the_same_interface() {
    let world = World::new();
    let network = world.start(World::configuration());
    let show = |sandbox: &Namespace| sandbox.shell("ip -o addr; ip -o route; ip -o link | sed 's/@if[0-9]*//'");
    let sandboxes = [Namespace::new(), Namespace::new()];
    let attachments =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap());
    assert_eq!(show(&sandboxes[0]), show(&sandboxes[1]));
    assert!(show(&sandboxes[0]).contains("198.18.0.2/30"), "{}", show(&sandboxes[0]));
    assert!(!show(&sandboxes[0]).contains("fe80"), "no IPv6 by itself: {}", show(&sandboxes[0]));
    assert_ne!(attachments[0].outside_address(), attachments[1].outside_address());
}

#[test]
fn names_are_resolved_and_logged() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let zone: &[(&str, &[&str])] = &[("www.example.com", &["203.0.113.1", "2001:db8::1"])];
    let server = name_server(&world.internet, RESOLVER, zone);
    assert_eq!(look_up(&sandbox, "www.example.com").unwrap(), ["203.0.113.1".parse::<std::net::IpAddr>().unwrap()]);
    assert!(look_up_kind(&sandbox, "www.example.com", 28).unwrap().is_empty(), "no IPv6 answers without IPv6");
    assert_eq!(look_up(&sandbox, "other.example.com").unwrap_err().kind(), io::ErrorKind::NotFound);
    let names: Vec<String> = attachment.look_ups().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["www.example.com", "www.example.com", "other.example.com"]);
    // What the C library would do.
    let resolv_conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(resolv_conf.path(), network.resolv_conf()).unwrap();
    let found = sandbox.shell(&format!(
        "unshare --mount sh -ec 'mount --bind {} $(realpath /etc/resolv.conf); getent ahosts www.example.com'",
        resolv_conf.path().display()
    ));
    assert!(found.contains("203.0.113.1"), "{found}");
    drop(server);
    look_up(&sandbox, "www.example.com").expect_err("nobody answers any more");
}

#[test]
fn answers_over_tcp() {
    use std::io::{Read, Write};
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let _attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let _server = name_server(&world.internet, RESOLVER, &[("a.example", &["203.0.113.1"])]);
    let answer = sandbox.run(|| {
        let mut stream = std::net::TcpStream::connect("198.18.0.1:53").unwrap();
        let query = crate::servers::query("a.example", 1);
        stream.write_all(&u16::try_from(query.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&query).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(crate::servers::parse(&answer, "a.example").unwrap().len(), 1);
}

#[test]
fn one_daemon_for_each_instance_name() {
    let world = World::new();
    let first = world.start(World::configuration());
    let second = world.host.run(|| brood_network::Network::start(World::configuration()));
    assert!(matches!(second, Err(NetworkError::InstanceRunning { .. })), "{second:?}");
    drop(first);
    drop(world.start(World::configuration()));
}

#[test]
fn nothing_is_left_behind() {
    let world = World::new();
    let state = || {
        world.host.shell(
            "ip -o -4 addr; ip -o link; ip -4 route show table all; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward",
        )
    };
    let before = state();
    let network = world.start(World::configuration());
    let sandboxes = [Namespace::new(), Namespace::new(), Namespace::new()];
    let mut attachments: Vec<_> =
        sandboxes.iter().map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap()).collect();
    let running = state();
    assert_ne!(before, running);
    attachments.pop();
    attachments.pop().unwrap().detach();
    // An attachment that outlives its network.
    drop(network);
    assert_eq!(state(), before);
    drop(attachments);
    assert_eq!(sandboxes[0].shell("ip -o link | wc -l").trim(), "1");
}

#[test]
fn a_start_that_fails_undoes_what_it_did() {
    let world = World::new();
    world.host.shell("echo 0 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
    let state = || {
        world.host.shell("ip -o -4 addr; ip -o link; ip -4 route show table all; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward")
    };
    let before = state();
    let with_ipv6 = brood_network::NetworkConfiguration { with_ipv6: true, ..World::configuration() };
    world.host.run(|| brood_network::Network::start(with_ipv6)).expect_err("the gateway gets no IPv6 address");
    assert_eq!(state(), before);
    drop(world.start(World::configuration()));
    assert_eq!(state(), before);
}

#[test]
fn detaching_fifty_times_leaves_no_trace() {
    let world = World::new();
    let network = world.start(World::configuration());
    let count =
        || world.host.shell("ip -o link | wc -l; ip -4 -o route show table all | wc -l; nft list ruleset | wc -l");
    let policy = || NetworkPolicy::only(["203.0.113.0/24".parse().unwrap(), "*.example.com".parse().unwrap()]);
    let once = |policy| {
        let sandbox = Namespace::new();
        let attachment = network.attach(sandbox.descriptor(), policy).unwrap();
        attachment.join_group("task", "name").unwrap();
        attachment.detach();
    };
    once(policy());
    let before = count();
    for _ in 0..50 {
        once(policy());
    }
    assert_eq!(count(), before);
}

#[test]
fn a_sandbox_may_break_its_own_end_only() {
    let world = World::new();
    let network = world.start(World::configuration());
    let _web = greeter(&world.internet, "203.0.113.1:8000");
    let sandboxes = [Namespace::new(), Namespace::new()];
    let [first, second] =
        sandboxes.each_ref().map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap());
    sandboxes[0].shell("ip link del eth0");
    first.set_policy(NetworkPolicy::none()).unwrap();
    first.detach();
    assert_eq!(fetch(&sandboxes[1], "203.0.113.1:8000").unwrap(), "10.77.0.2");
    second.detach();
}

#[test]
fn what_is_prepared_is_cut_off_until_it_is_attached() {
    let world = World::new();
    let network = world.start(World::configuration());
    let _web = greeter(&world.internet, "203.0.113.1:8000");
    let sandbox = Namespace::new();
    let prepared = network.prepare(sandbox.descriptor()).unwrap();
    crate::servers::assert_refused(fetch(&sandbox, "203.0.113.1:8000"));
    let attachment = prepared.attach(NetworkPolicy::all()).unwrap();
    assert_eq!(fetch(&sandbox, "203.0.113.1:8000").unwrap(), "10.77.0.2");
    attachment.detach();
    let prepared = network.prepare(Namespace::new().descriptor()).unwrap();
    drop(prepared);
}

#[test]
fn what_the_host_lacks_is_found() {
    let world = World::new();
    let examine = |namespace: &Namespace| namespace.run(|| brood_network::examine("brood"));
    let is_name_server = |finding: &brood_network::Finding| matches!(finding, brood_network::Finding::NoNameServer);
    let network = world.start(World::configuration());
    assert!(examine(&world.host).iter().all(is_name_server));
    // As container engines and host firewalls do.
    world.host.shell(
        "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; };
              add table inet guard; add chain inet guard in { type filter hook input priority 0; policy drop; }'",
    );
    let findings: Vec<String> = examine(&world.host).iter().map(ToString::to_string).collect();
    assert!(findings.iter().any(|text| text.contains("\"FORWARD\"") && text.contains("oifname")), "{findings:?}");
    assert!(findings.iter().any(|text| text.contains("\"in\"")), "{findings:?}");
    drop(network);
    let bare = Namespace::new();
    assert!(examine(&bare).contains(&brood_network::Finding::NoDefaultRoute));
}

#[test]
fn a_namespace_may_belong_to_a_user_namespace() {
    use std::io::Read;
    let world = World::new();
    let network = world.start(World::configuration());
    let _server = greeter(&world.internet, "203.0.113.1:8000");
    // As sandboxes are made: the network namespace belongs to the user namespace made with it.
    let mut inside = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", "echo ready; exec sleep infinity"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    inside.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", inside.id())).unwrap();
    let attachment = network.attach(std::os::fd::AsFd::as_fd(&namespace), NetworkPolicy::all()).unwrap();
    let enter = |script: &str| {
        let id = inside.id().to_string();
        let output = std::process::Command::new("nsenter")
            .args(["--user", "--net", "--target", &id, "sh", "-c", script])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let fetch = "python3 -c \"import socket; print(socket.create_connection(('203.0.113.1', 8000)).recv(99))\"";
    assert!(enter(fetch).contains("10.77.0.2"), "{}", enter(fetch));
    // Root inside may do what it wants with its own end, but not move it to where its rules do not reach.
    assert!(!enter("ip link set eth0 netns 1 && echo moved").contains("moved"));
    attachment.detach();
    inside.kill().unwrap();
    inside.wait().unwrap();
}
