//! Doing something in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace that cannot be entered or opened.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The calling thread's own namespace cannot be opened.
    #[error("could not open the thread's own network namespace")]
    Own(#[source] io::Error),
    /// The sandbox's namespace cannot be entered; needs `CAP_SYS_ADMIN`.
    #[error("could not enter the sandbox's network namespace")]
    Enter(#[source] io::Error),
}

/// Runs `work` with the calling thread in `namespace`, then returns to where the thread was. Sockets that `work` opens
/// stay in `namespace`.
///
/// # Errors
/// The namespace is none, or the caller lacks `CAP_SYS_ADMIN` over it.
///
/// # Panics
/// If the way back is barred, the process aborts: a thread of the daemon that stays in a sandbox's network would talk to
/// whatever the sandbox set up there.
pub(crate) fn run_inside<T>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T) -> Result<T, NamespaceError> {
    let own = current()?;
    enter(namespace).map_err(NamespaceError::Enter)?;
    let _back = Return(own);
    Ok(work())
}

/// The network namespace of the calling thread.
///
/// # Errors
/// `/proc` is not mounted.
pub fn current() -> Result<OwnedFd, NamespaceError> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from).map_err(NamespaceError::Own)
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).map_err(io::Error::from)
}

/// Takes the thread back when dropped, also while unwinding.
struct Return(OwnedFd);

impl Drop for Return {
    fn drop(&mut self) {
        if let Err(error) = enter(self.0.as_fd()) {
            tracing::error!(%error, "cannot leave the network namespace of a sandbox");
            std::process::abort();
        }
    }
}
