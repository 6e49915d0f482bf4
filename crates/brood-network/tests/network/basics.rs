//! Getting out, and being gone afterwards.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use brood_network::NetworkPolicy;

use crate::world::{Namespace, SERVER, World};

#[test]
fn a_sandbox_gets_out() {
    let world = World::new();
    let network = world.start(World::configuration());
    let sandbox = Namespace::new();
    let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap();
    let listener = world.internet.run(|| TcpListener::bind((SERVER, 8000)).unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_string().as_bytes()).unwrap();
    });
    let seen = sandbox.run(|| {
        let mut stream = TcpStream::connect((SERVER, 8000)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    server.join().unwrap();
    assert_eq!(seen, "10.77.0.2", "the host's address is what servers see");
    attachment.detach();
}
