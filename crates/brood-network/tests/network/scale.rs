//! Many sandboxes at once. The benchmark does the same with five hundred.

use brood_network::{Attachment, NetworkPolicy};

use crate::servers::{fetch, greeter};
use crate::world::{Namespace, World};

#[test]
fn sixty_sandboxes_at_once() {
    let world = World::new();
    let network = world.start(World::configuration());
    let server = greeter(&world.internet, "203.0.113.1:8000");
    let sandboxes: Vec<Namespace> = (0..60).map(|_| Namespace::new()).collect();
    // From several threads, as a daemon does.
    let attachments: Vec<Attachment> = std::thread::scope(|scope| {
        let halves: Vec<_> = sandboxes
            .chunks(20)
            .map(|part| {
                scope.spawn(|| {
                    part.iter()
                        .map(|sandbox| network.attach(sandbox.descriptor(), NetworkPolicy::all()).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    for sandbox in &sandboxes {
        fetch(sandbox, "203.0.113.1:8000").unwrap();
    }
    assert_eq!(server.seen.lock().unwrap().len(), 60);
    let mut addresses: Vec<_> = attachments.iter().map(Attachment::outside_address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 60);
    drop(attachments);
}
