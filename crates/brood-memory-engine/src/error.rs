//! What can go wrong in the memory engine.

use brood_pages::pool::PoolError;
use rustix::io::Errno;

/// Why memory could not be squeezed or brought back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused, or is damaged.
    #[error("the pool of encoded pages failed")]
    Pool(#[from] PoolError),
    /// The template's pages can't be read.
    #[error("a template's page can't be read")]
    Template(#[source] Errno),
    /// The tasks of the sandbox can't be stopped or worked on.
    #[error("the sandbox's tasks can't be worked on")]
    Tasks(#[from] brood_deltacr::Error),
    /// A request to the kernel failed.
    #[error("cannot {action} of process {pid}")]
    Kernel {
        /// The process, as the host sees it.
        pid: i32,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The pool's memory can't be made.
    #[error("cannot make the pool of encoded pages")]
    PoolMemory(#[source] std::io::Error),
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn kernel(pid: rustix::process::Pid, action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Kernel { pid: pid.as_raw_nonzero().get(), action, source }
}
