//! The real way out: the host's own network, its name servers, and a package registry through its ordinary client.

use std::fs;
use std::process::Command;

use brood_network::{Network, NetworkConfiguration, NetworkPolicy};

use crate::world::Namespace;

/// `pip` with the host's configuration, inside a sandbox's network on the host's real one.
#[test]
fn pip_downloads_a_package() {
    let has_default_route = fs::read_to_string("/proc/net/route")
        .is_ok_and(|table| table.lines().any(|line| line.contains("\t00000000\t")));
    let pip = |target: &str| format!("timeout 90 python3 -m pip download --no-deps --no-cache-dir -q -d {target} six");
    let directory = tempfile::tempdir().unwrap();
    let reached = |name: &str| {
        let outside = directory.path().join(name).to_string_lossy().into_owned();
        Command::new("sh").args(["-c", &pip(&outside)]).status().is_ok_and(|status| status.success())
    };
    if !has_default_route || !reached("before") {
        eprintln!("SKIPPED: this host itself reaches no package registry with pip");
        return;
    }
    let network =
        Network::start(NetworkConfiguration { instance: "brtest".to_owned(), ..NetworkConfiguration::default() })
            .unwrap();
    let resolv_conf = directory.path().join("resolv.conf");
    fs::write(&resolv_conf, network.resolv_conf()).unwrap();
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let inside = directory.path().join("inside");
    // A mount namespace of its own, in which /etc/resolv.conf is the sandbox's.
    let said = sandbox.shell(&format!(
        "unshare --mount sh -ec 'mount --bind {} \"$(realpath /etc/resolv.conf)\"; {}' || echo failed",
        resolv_conf.display(),
        pip(&inside.to_string_lossy())
    ));
    if said.contains("failed") && !reached("after") {
        eprintln!("SKIPPED: the registry went away in the middle of the test");
        return;
    }
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
    assert!(!attachment.look_ups().is_empty(), "names were looked up here");
    attachment.detach();
}
