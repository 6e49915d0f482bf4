//! A daemon that is killed: its rules stay in force, and its successor removes everything.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use brood_network::{Network, NetworkPolicy};

use crate::servers::{assert_refused, fetch, greeter};
use crate::world::{Namespace, World};

/// Where the test tells the daemon which namespace to attach. Without it there is no daemon to be.
const SANDBOX: &str = "BROOD_TEST_SANDBOX";

/// The daemon of the test below: its own process, because it is to be killed. Does nothing by itself.
#[test]
fn daemon() {
    let Some(path) = std::env::var_os(SANDBOX) else {
        return;
    };
    let sandbox = std::fs::File::open(path).unwrap();
    let network = Network::start(World::configuration()).unwrap();
    let policy = NetworkPolicy::only(["203.0.113.1".parse().unwrap(), "a.example".parse().unwrap()]);
    let attachment = network.attach(std::os::fd::AsFd::as_fd(&sandbox), policy).unwrap();
    attachment.join_group("task", "name").unwrap();
    println!("READY");
    // Until it is killed.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(attachment);
}

#[test]
fn a_killed_daemon_leaves_its_rules_and_its_successor_nothing() {
    let world = World::new();
    let sandbox = Namespace::new();
    world.host.shell("echo 0 > /proc/sys/net/ipv4/ip_forward");
    let state = || {
        world.host.shell("ip -o -4 addr; ip -o link; ip -4 route show table all; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward")
    };
    let before = state();
    let _servers = ["203.0.113.1:8000", "203.0.113.2:8000"].map(|address| greeter(&world.internet, address));
    let path = format!("/proc/{}/fd/{}", std::process::id(), sandbox.descriptor().as_raw_fd());
    let mut daemon = world.host.run(|| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::daemon", "--nocapture"])
            .env(SANDBOX, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut said = String::new();
    let out = daemon.stdout.as_mut().unwrap();
    while !said.contains("READY") {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        said.push(char::from(byte[0]));
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    fetch(&sandbox, "203.0.113.1:8000").unwrap();
    assert_refused(fetch(&sandbox, "203.0.113.2:8000"));
    let network = world.start(World::configuration());
    assert_eq!(sandbox.shell("ip -o link | wc -l").trim(), "1", "the old veth is gone");
    drop(network);
    assert_eq!(state(), before);
}
