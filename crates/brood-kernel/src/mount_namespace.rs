//! Working inside the mount namespace of somebody else.
//!
//! A namespace is entered by a thread, and only by one whose root and working
//! directory are its own. [`MountNamespaceThread`] keeps such a thread, because
//! starting one for each visit would cost more than most visits.

use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

type Job = Box<dyn FnOnce(BorrowedFd<'_>) + Send>;

/// Gives the calling thread a root, working directory and umask of its own.
///
/// # Errors
/// ENOMEM.
pub fn unshare_directories() -> rustix::io::Result<()> {
    // SAFETY: of the flags of unshare(2) only CLONE_FILES can break memory or
    // I/O safety, by making descriptors mean other things in other threads.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

/// Gives the calling thread a copy of its mount namespace, and a root and
/// working directory of its own.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: as in `unshare_directories`.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }
}

/// A thread that enters mount namespaces to run something there.
#[derive(Debug)]
pub struct MountNamespaceThread {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl MountNamespaceThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be made, or `/proc` is not mounted.
    pub fn start() -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let (ready, started) = channel();
        let thread = std::thread::Builder::new().name("mount-namespace".to_owned()).spawn(move || {
            let home = File::open("/proc/thread-self/ns/mnt").and_then(|home| {
                unshare_directories()?;
                Ok(home)
            });
            match home {
                Ok(home) => {
                    drop(ready.send(Ok(())));
                    serve(&queue, home.as_fd());
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        started.recv().unwrap_or_else(|_gone| Err(std::io::Error::other("the thread ended at once")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `body` in `namespace` (an open `/proc/PID/ns/mnt`), with root and
    /// working directory at the root of the namespace, and waits for its
    /// result. One after the other: `body` should be short. A panic in it is
    /// passed on.
    ///
    /// # Errors
    /// The namespace cannot be entered, which takes CAP_SYS_ADMIN in the user
    /// namespace that owns it.
    pub fn run<T: Send + 'static>(
        &self,
        namespace: BorrowedFd<'_>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> rustix::io::Result<T> {
        let namespace: OwnedFd = namespace.try_clone_to_owned().map_err(|_full| Errno::MFILE)?;
        let (reply, result) = channel::<rustix::io::Result<Result<T, Box<dyn Any + Send>>>>();
        let job: Job = Box::new(move |home| {
            let outcome = visit(namespace.as_fd(), home, body);
            drop(reply.send(outcome));
        });
        let jobs = self.jobs.as_ref().ok_or(Errno::SRCH)?;
        jobs.send(job).map_err(|_ended| Errno::SRCH)?;
        match result.recv().map_err(|_ended| Errno::SRCH)?? {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for MountNamespaceThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Its jobs do not panic: `visit` catches that.
            drop(thread.join());
        }
    }
}

fn serve(queue: &Receiver<Job>, home: BorrowedFd<'_>) {
    for job in queue {
        job(home);
    }
}

/// Enters `namespace`, runs `body`, and comes back to `home`.
fn visit<T>(
    namespace: BorrowedFd<'_>,
    home: BorrowedFd<'_>,
    body: impl FnOnce() -> T,
) -> rustix::io::Result<Result<T, Box<dyn Any + Send>>> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))?;
    let outcome = catch_unwind(AssertUnwindSafe(body));
    // Staying would run later jobs' path look-ups in a hostile tree.
    if move_into_link_name_space(home, Some(LinkNameSpaceType::Mount)).is_err() {
        std::process::abort();
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{FsContext, Reach, attach, open_directory, set_private};
    use rustix::mount::MountAttrFlags;
    use std::path::Path;

    /// A namespace of its own, with a tmpfs with the file `mark` on /tmp.
    fn namespace() -> File {
        std::thread::spawn(|| {
            unshare_mounts().unwrap();
            set_private(open_directory(Path::new("/")).unwrap().as_fd(), Reach::Tree).unwrap();
            let tmpfs = FsContext::new("tmpfs").unwrap().mount(MountAttrFlags::empty()).unwrap();
            attach(tmpfs.as_fd(), open_directory(Path::new("/tmp")).unwrap().as_fd(), Path::new(".")).unwrap();
            std::fs::write("/tmp/mark-of-the-test", "").unwrap();
            File::open("/proc/thread-self/ns/mnt").unwrap()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn jobs_run_inside_and_the_thread_comes_back() {
        let thread = MountNamespaceThread::start().unwrap();
        let inside = namespace();
        let home = File::open("/proc/self/ns/mnt").unwrap();
        let there = || Path::new("/tmp/mark-of-the-test").exists();
        assert!(thread.run(inside.as_fd(), there).unwrap());
        assert!(!thread.run(home.as_fd(), there).unwrap());
        assert!(!there());
        let no_namespace = File::open("/proc/self/ns/uts").unwrap();
        assert_eq!(thread.run(no_namespace.as_fd(), there), Err(Errno::INVAL));
    }

    #[test]
    fn a_panic_is_passed_on_and_does_not_end_the_thread() {
        let thread = MountNamespaceThread::start().unwrap();
        let inside = namespace();
        let body = || -> () { panic!("on purpose") };
        let outcome = catch_unwind(AssertUnwindSafe(|| thread.run(inside.as_fd(), body)));
        outcome.unwrap_err();
        assert_eq!(thread.run(inside.as_fd(), || 7), Ok(7));
    }
}
