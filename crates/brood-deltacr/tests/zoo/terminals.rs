//! Terminals of the engine, in all flavours.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use brood_deltacr::PageStore;
use rustix::pty::OpenptFlags;

use crate::harness::{Sandbox, capture, program, roll_back};

/// The test's side of a pseudo-terminal and the path of the other.
fn terminal() -> (OwnedFd, String) {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let path = rustix::pty::ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    (ours, path)
}

fn start() -> (Sandbox, OwnedFd) {
    let (ours, path) = terminal();
    let variable = format!("ZOO_TERMINAL={path}");
    let mut sandbox = Sandbox::start(&["/usr/bin/env", &variable, program("terminal").to_str().unwrap()]);
    sandbox.pipes.terminal = Some(std::fs::metadata(&path).unwrap().rdev());
    (sandbox, ours)
}

fn shown(ours: &OwnedFd) -> String {
    let mut text = [0; 64];
    let count = rustix::io::read(ours.as_fd(), &mut text).unwrap();
    String::from_utf8_lossy(&text[..count]).into_owned()
}

#[test]
fn a_session_on_a_terminal_goes_on() {
    let store = PageStore::new();
    let (mut sandbox, ours) = start();
    let mut tree = sandbox.tree();
    let _image = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(sandbox.ask("v"), "ok");
    assert_eq!(shown(&ours), "shown");
}

#[test]
fn a_fork_has_its_session_on_a_terminal_of_its_own() {
    let store = PageStore::new();
    let (mut original, _original_side) = start();
    let mut tree = original.tree();
    let image = capture(&mut tree, &store, &original.pipes);
    let mut fork = Sandbox::empty();
    let (ours, _path) = terminal();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    fork.pipes.offer_terminal(rustix::pty::ioctl_tiocgptpeer(&ours, flags).unwrap());
    fork.restore(&image);
    assert_eq!(fork.ask("v"), "ok", "the fork");
    assert_eq!(shown(&ours), "shown");
    assert_eq!(original.ask("v"), "ok", "the original");
}

#[test]
fn a_rolled_back_session_keeps_its_terminal_with_the_former_settings() {
    let store = PageStore::new();
    let (mut sandbox, ours) = start();
    let mut tree = sandbox.tree();
    let image = capture(&mut tree, &store, &sandbox.pipes);
    assert_eq!(sandbox.ask("m"), "ok");
    let statistics = roll_back(&mut tree, &image, &sandbox);
    assert!(!statistics.made_anew);
    assert_eq!(sandbox.ask("v"), "ok");
    assert_eq!(shown(&ours), "shown");
}
