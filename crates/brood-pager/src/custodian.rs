//! Who else holds the userfaultfds.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::space::SpaceId;

/// Holds copies of userfaultfds beyond the life of this process. When the last descriptor of a userfaultfd is closed, the
/// kernel shows zeros where pages are owed; as long as another process has one, touchers wait.
pub trait Custodian: Send + Sync + Debug {
    /// Called before an address space is served for the first time.
    fn keep(&self, space: SpaceId, userfaultfd: BorrowedFd<'_>);

    /// The address space has ended.
    fn forget(&self, space: SpaceId);
}
