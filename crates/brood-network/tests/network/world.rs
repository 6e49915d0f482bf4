//! A world for one test: a host namespace in which the network runs, and an "Internet" namespace behind it.
//!
//! ```text
//! sandboxes ===veth=== host --up0 10.77.0.2 ------ 10.77.0.1 host0-- internet 203.0.113.1-9, 2001:db8::1-9
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
                move_into_link_name_space(self.descriptor(), Some(LinkNameSpaceType::Network)).unwrap();
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
            let output = Command::new("sh").args(["-ec", script]).output().unwrap();
            assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }
}

/// The host and what is outside.
#[derive(Debug)]
pub struct World {
    pub host: Namespace,
    pub internet: Namespace,
}

/// Addresses of the machines outside, all in one namespace.
pub const SERVER: &str = "203.0.113.1";
pub const RESOLVER: &str = "203.0.113.9";

impl World {
    pub fn new() -> Self {
        let world = Self { host: Namespace::new(), internet: Namespace::new() };
        world.link();
        world
    }

    fn link(&self) {
        // iproute2 takes a namespace by the number of a process in it: a process that sleeps until it is killed.
        let inside =
            self.internet.run(|| Command::new("sleep").arg("infinity").spawn().expect("sleep is part of every system"));
        let mut inside = inside;
        self.host.shell(&format!(
            "ip link set lo up
             ip link add up0 type veth peer name host0 netns {}
             ip addr add 10.77.0.2/24 dev up0
             ip addr add 2001:db8:77::2/64 dev up0 nodad
             ip link set up0 up
             ip route add default via 10.77.0.1
             ip -6 route add default via 2001:db8:77::1",
            inside.id()
        ));
        inside.kill().unwrap();
        inside.wait().unwrap();
        self.internet.shell(
            "ip link set lo up
             ip addr add 10.77.0.1/24 dev host0
             ip addr add 2001:db8:77::1/64 dev host0 nodad
             ip link set host0 up
             for i in 1 2 3 4 5 6 7 8 9; do
               ip addr add 203.0.113.$i/32 dev lo
               ip addr add 2001:db8::$i/128 dev lo nodad
             done",
        );
    }

    /// Starts the network in the host namespace.
    pub fn start(&self, configuration: NetworkConfiguration) -> Network {
        self.host.run(|| Network::start(configuration)).unwrap()
    }

    /// Settings with the test's own name server.
    pub fn configuration() -> NetworkConfiguration {
        NetworkConfiguration { name_servers: vec![RESOLVER.parse().unwrap()], ..NetworkConfiguration::default() }
    }
}
