//! Ports that lead inside, and groups.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::fixture::{Sandbox, brood, spawn};

/// Answers each connection with its name and what it was sent; says when it listens.
const SERVER: &str = "import socket, sys\n\
    s = socket.create_server((sys.argv[1], 7000))\n\
    print('listening', flush=True)\n\
    while True:\n  c, _ = s.accept()\n  c.sendall(sys.argv[2].encode() + b' ' + c.recv(100))\n  c.close()";

/// A server inside, once it listens.
fn serve(sandbox: &Sandbox, address: &str, name: &str) {
    sandbox.exec_with(&["--detach"], &["python3", "-c", SERVER, address, name]).succeeded();
    let wait =
        "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7000), 1)' 2>/dev/null; do :; done";
    sandbox.exec_with(&["--timeout", "30s"], &["/bin/sh", "-c", wait]).succeeded();
}

fn ask(address: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"hello").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_forwarded_port_leads_inside_without_any_network() {
    let sandbox = Sandbox::new();
    serve(&sandbox, "127.0.0.1", "one");
    let mut forward = spawn(&["port-forward", &sandbox.id, ":7000", "--json"]);
    let mut line = String::new();
    BufReader::new(forward.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    let address = told["host"].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{told}");
    for _ in 0..20 {
        assert_eq!(ask(address), "one hello");
    }
    brood(&["kill", &sandbox.id]).succeeded();
    // It notices with the next connection.
    let _refused_or_cut = TcpStream::connect(address).map(|mut connection| connection.read(&mut [0; 1]));
    assert!(!forward.wait().unwrap().success());
}

#[test]
fn a_published_port_lives_as_long_as_its_sandbox() {
    let sandbox = Sandbox::with(&["--publish", "127.0.0.1::7000"]);
    serve(&sandbox, "127.0.0.1", "two");
    let told = brood(&["inspect", &sandbox.id, "--json"]).succeeded().stdout;
    let start = told.find("\"127.0.0.1:").unwrap_or_else(|| panic!("{told}")) + 1;
    let address = told[start..].split('"').next().unwrap().to_owned();
    assert_eq!(ask(&address), "two hello");
    let taken = brood(&["create", crate::fixture::TEMPLATE, "--publish", &format!("{address}:80")]);
    taken.ended(1).said("cannot be published");
    brood(&["kill", &sandbox.id]).succeeded();
    TcpStream::connect(&address).unwrap_err();
}

#[test]
fn members_of_a_group_find_each_other_by_name_and_others_do_not() {
    brood(&["network", "create", "e2e-group"]).succeeded();
    brood(&["network", "create", "e2e-group"]).ended(1).said("e2e-group");
    let server = Sandbox::with(&["--group", "e2e-group", "--alias", "database"]);
    let client = Sandbox::with(&["--group", "e2e-group", "--alias", "worker"]);
    let stranger = Sandbox::with(&["--network", "all"]);
    serve(&server, "0.0.0.0", "three");
    let ask = "import socket; c = socket.create_connection(('database', 7000), 5); c.sendall(b'hello'); print(c.recv(100).decode())";
    client.exec(&["python3", "-c", ask]).succeeded().printed("three hello\n");
    stranger.exec(&["python3", "-c", ask]).ended(1).said("gaierror");
    let told = brood(&["network", "ls", "--json"]).succeeded().stdout;
    assert!(told.contains("database") && told.contains("worker"), "{told}");
    brood(&["network", "rm", "e2e-group"]).ended(1).said("e2e-group");
    brood(&["kill", &server.id, &client.id]).succeeded();
    brood(&["network", "rm", "e2e-group"]).succeeded();
    brood(&["create", crate::fixture::TEMPLATE, "--group", "e2e-group"]).ended(1).said("e2e-group");
}
