//! A world for one test: a host namespace in which the network runs, and an "Internet" namespace behind it.
//!
//! ```text
//! sandboxes ===veth=== host --up0 10.77.0.2 ------ 10.77.0.1 eth0-- internet 203.0.113.1-9, 2001:db8::1-9
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;

use brood_kernel::network_namespace::new_network_namespace;
use brood_network::{Network, NetworkConfiguration};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of the test's own; it goes away with the value.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    pub fn new() -> Self {
        Self(new_network_namespace().expect("tests of the network need root"))
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Runs `work` in a thread of its own inside the namespace, and passes its panic on.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.descriptor(), Some(LinkNameSpaceType::Network))
                    .expect("tests of the network need root");
                work()
            });
            match inside.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs a shell script inside; it must succeed.
    pub fn shell(&self, script: &str) -> String {
        self.run(|| {
            let output = Command::new("sh").args(["-ec", script]).output().expect("sh is part of every system");
            assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }
}

impl Namespace {
    /// Lays a cable: `name` here, `eth0` in `other`.
    pub fn connect_to(&self, other: &Self, name: &str, own_address: &str, other_address: &str) {
        // iproute2 takes a namespace by the number of a process in it: a process that sleeps until it is killed.
        let mut inside =
            other.run(|| Command::new("sleep").arg("infinity").spawn().expect("sleep is part of every system"));
        self.shell(&format!(
            "ip link add {name} type veth peer name eth0 netns {}
             ip addr add {own_address} dev {name}
             ip link set {name} up",
            inside.id()
        ));
        inside.kill().expect("it is our child");
        inside.wait().expect("it is our child");
        other.shell(&format!("ip link set lo up; ip addr add {other_address} dev eth0; ip link set eth0 up"));
        // Asking makes the kernel take notice of the carrier at once.
        self.shell(&format!("ip link show dev {name}"));
    }
}

/// The host and what is outside.
#[derive(Debug)]
pub struct World {
    pub host: Namespace,
    pub internet: Namespace,
}

/// Addresses of the machines outside, all in one namespace.
pub const RESOLVER: &str = "203.0.113.9";

impl World {
    pub fn new() -> Self {
        let world = Self { host: Namespace::new(), internet: Namespace::new() };
        world.link();
        world
    }

    fn link(&self) {
        self.host.shell("ip link set lo up");
        self.host.connect_to(&self.internet, "up0", "10.77.0.2/24", "10.77.0.1/24");
        self.host.shell(
            "ip addr add 2001:db8:77::2/64 dev up0 nodad
             ip route add default via 10.77.0.1
             ip -6 route add default via 2001:db8:77::1",
        );
        self.internet.shell(
            "ip link set lo up
             ip addr add 2001:db8:77::1/64 dev eth0 nodad
             for i in 1 2 3 4 5 6 7 8 9; do
               ip addr add 203.0.113.$i/32 dev lo
               ip addr add 2001:db8::$i/128 dev lo nodad
             done",
        );
    }

    /// Starts the network in the host namespace.
    pub fn start(&self, configuration: NetworkConfiguration) -> Network {
        self.host.run(|| Network::start(configuration)).expect("the network starts")
    }

    /// Settings with the test's own name server.
    pub fn configuration() -> NetworkConfiguration {
        NetworkConfiguration {
            name_servers: vec![RESOLVER.parse().expect("an address")],
            ..NetworkConfiguration::default()
        }
    }
}
