//! What sandboxes reach, and how they are reached.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;

use brood_sandbox::error::ErrorKind;
use brood_sandbox::output::OutputEvent;
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call};

/// Listens on the addresses given as arguments and greets everybody with the address that was connected to.
const GREETERS: &str = "
import selectors, socket, sys
selector = selectors.DefaultSelector()
for text in sys.argv[1:]:
    address, port = text.rsplit(' ', 1)
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    listener = socket.create_server((address, int(port)), family=family, backlog=128)
    selector.register(listener, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in selector.select():
        connection, _ = key.fileobj.accept()
        connection.sendall(connection.getsockname()[0].encode())
        connection.close()
";

/// Starts a background server inside; returns when it listens.
fn serve(sandbox: &Arc<Sandbox>, addresses: &[&str]) {
    let mut request = call(&["python3", "-c", GREETERS]);
    request.arguments.extend(addresses.iter().map(|address| (*address).to_owned()));
    request.background = true;
    let (_process, mut output) = sandbox.spawn_with_output(request).unwrap();
    match output.next_blocking() {
        Some(OutputEvent::Data { bytes, .. }) => assert_eq!(bytes[..], *b"ready\n"),
        other => panic!("{other:?}"),
    }
}

fn read_all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn any_port_inside_is_reached_without_a_network() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    serve(&sandbox, &["127.0.0.1 8001", "0.0.0.0 8002", "::1 8003"]);
    for (port, address) in [(8001, "127.0.0.1"), (8002, "127.0.0.1"), (8003, "::1")] {
        assert_eq!(read_all(sandbox.connect(port).unwrap()), address);
    }
    assert_eq!(sandbox.connect(8004).unwrap_err().kind(), ErrorKind::NotFound);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..8).for_each(|_| assert_eq!(read_all(sandbox.connect(8001).unwrap()), "127.0.0.1")));
        }
    });
    // Whoever connected is where they were, and nothing holds the namespace.
    let other = engine.sandbox();
    assert_eq!(other.connect(8001).unwrap_err().kind(), ErrorKind::NotFound);
    sandbox.kill().unwrap();
    assert_eq!(sandbox.connect(8001).unwrap_err().kind(), ErrorKind::NotFound);
}
