//! New network namespaces.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::thread::UnshareFlags;

/// Makes a network namespace that holds nothing but a loopback device that is down, owned by the calling thread's user
/// namespace. It lives as long as the descriptor or anything in it does. The caller stays where it is.
///
/// # Errors
/// The caller lacks `CAP_SYS_ADMIN`, a limit on namespaces is reached, or `/proc` is not mounted.
///
/// See unshare(2), `CLONE_NEWNET`.
pub fn new_network_namespace() -> io::Result<OwnedFd> {
    // A thread of its own: the calling one could not be sure of its way back.
    let thread = std::thread::Builder::new().spawn(|| {
        unshare_network()?;
        File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
    })?;
    thread.join().map_err(|_| io::Error::other("the thread that makes a network namespace panicked"))?
}

/// Moves the calling thread, and no other, into a new network namespace.
fn unshare_network() -> io::Result<()> {
    // SAFETY: Only CLONE_NEWNET is given. It changes which network the thread's future sockets belong to and touches
    // neither memory nor descriptors nor anything else that other threads or library code rely on being shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn new_namespaces_differ_from_each_other_and_from_the_own() {
        let inode = |descriptor: &dyn AsFd| rustix::fs::fstat(descriptor).unwrap().st_ino;
        let first = new_network_namespace().unwrap();
        let second = new_network_namespace().unwrap();
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        assert_ne!(inode(&first), inode(&second));
        assert_ne!(inode(&first), inode(&own));
        assert_ne!(inode(&second), inode(&own));
    }
}
