//! What can't be captured is refused by name, and the program never notices.

use brood_deltacr::{Error, PageStore, RefusalKind};

use crate::harness::{Sandbox, program};

fn refused(kind: &str, expected: RefusalKind, words: &str) {
    let store = PageStore::new();
    let variable = format!("ZOO_KIND={kind}");
    let mut sandbox = Sandbox::start(&["/usr/bin/env", &variable, program("refused").to_str().unwrap()]);
    let mut tree = sandbox.tree();
    let mut stopped = tree.stop().unwrap();
    let before = std::fs::read(format!("/proc/{}/maps", child_of(&sandbox))).unwrap();
    let error = stopped.capture(&store, &sandbox.pipes).unwrap_err();
    let after = std::fs::read(format!("/proc/{}/maps", child_of(&sandbox))).unwrap();
    let _standstill = stopped.resume();
    let Error::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.kind, expected, "{refusal}");
    assert!(refusal.to_string().contains(words), "{refusal}");
    assert_eq!(before, after, "nothing was touched");
    assert_eq!(sandbox.ask("v"), "ok");
    assert_eq!(store.usage().used, 0);
}

fn child_of(sandbox: &Sandbox) -> String {
    let path = format!("/proc/{0}/task/{0}/children", sandbox.init.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_socket() {
    refused("socket", RefusalKind::Socket, "zoo-refused");
}

#[test]
fn an_inotify_descriptor() {
    refused("inotify", RefusalKind::EventSource, "inotify");
}

#[test]
fn a_file_without_a_name() {
    refused("deleted", RefusalKind::File, "has no name any more");
}

#[test]
fn a_locked_file() {
    refused("locked", RefusalKind::File, "is locked");
}

#[test]
fn a_file_of_the_kernel() {
    refused("proc", RefusalKind::File, "proc file system");
}

#[test]
fn a_namespace_of_its_own() {
    refused("namespace", RefusalKind::Namespace, "uts namespace");
}
