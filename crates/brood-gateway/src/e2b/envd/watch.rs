//! Changes in directories, told as they happen or collected until they are asked for.
//!
//! The kernel's own watches (inotify) on the sandbox's files. A checkpoint or rollback gives the sandbox
//! another file system; the watches that ends are laid again on the new one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use brood_sandbox::files::EntryKind;
use brood_sandbox::sandbox::Sandbox;
use futures::Stream;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::Envd;
use super::entries::describe;
use super::filesystem::acting;
use super::messages::{Empty, FilesystemEvent, WatchDirResponse, WatchRequest, Watcher, WatcherEvents};
use super::process::keepalive;
use crate::e2b::connect::{Code, Piece, RpcError};
use crate::e2b::tokens::random_hex;

const CREATE: i32 = 1;
const WRITE: i32 = 2;
const REMOVE: i32 = 3;
const RENAME: i32 = 4;
const CHMOD: i32 = 5;
/// Directories that one watch covers at most.
const DIRECTORIES_MAX: usize = 8192;
/// Changes that wait for a client that polls; the oldest go first.
const EVENTS_KEPT: usize = 10_000;
/// Watchers that wait to be polled, of one sandbox: the host has few inotify instances.
const WATCHERS_MAX: usize = 16;

/// The watchers that clients poll.
#[derive(Debug, Default)]
pub(in crate::e2b) struct Watchers {
    kept: Mutex<HashMap<(String, String), Kept>>,
}

#[derive(Debug)]
struct Kept {
    events: Arc<Mutex<VecDeque<FilesystemEvent>>>,
    task: tokio::task::AbortHandle,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    /// Ends all watchers but those of sandboxes for which `keep` says so.
    pub(in crate::e2b) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|(sandbox, _), _| keep(sandbox));
    }
}

/// Watched directories of a sandbox.
#[derive(Debug)]
struct Watch {
    sandbox: Arc<Sandbox>,
    path: PathBuf,
    recursive: bool,
    include_entry: bool,
    queue: AsyncFd<OwnedFd>,
    /// Directories by watch descriptor, as paths from the watched one.
    directories: HashMap<i32, PathBuf>,
}

impl Watch {
    fn open(sandbox: Arc<Sandbox>, path: PathBuf, message: &WatchRequest) -> Result<Self, RpcError> {
        let failed =
            |error: io::Error| RpcError::new(Code::ResourceExhausted, format!("cannot watch a directory: {error}"));
        let queue =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let queue = registered(queue).map_err(failed)?;
        let (recursive, include_entry) = (message.recursive, message.include_entry);
        let mut watch = Self { sandbox, path, recursive, include_entry, queue, directories: HashMap::new() };
        watch.lay(Path::new(""))?;
        Ok(watch)
    }

    /// Watches a directory, and what is in it if that is wanted.
    fn lay(&mut self, inside: &Path) -> Result<(), RpcError> {
        let files = self.sandbox.files()?;
        let mut left = vec![inside.to_owned()];
        while let Some(inside) = left.pop() {
            if self.directories.len() >= DIRECTORIES_MAX {
                let message = format!("more than {DIRECTORIES_MAX} directories cannot be watched at once");
                return Err(RpcError::new(Code::ResourceExhausted, message));
            }
            let path = self.path.join(&inside);
            let directory = match files.open_directory(&path) {
                Ok(directory) => directory,
                // Those below come and go.
                Err(_) if inside != Path::new("") => continue,
                Err(error) => return Err(error.into()),
            };
            // A path of ours that leads to the open directory and nowhere else.
            let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
            let changes =
                WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE;
            let number = inotify::add_watch(self.queue.get_ref(), &name, changes).map_err(|error| {
                RpcError::new(Code::ResourceExhausted, format!("cannot watch a directory: {error}"))
            })?;
            self.directories.insert(number, inside.clone());
            if self.recursive {
                let entries = files.list(&path).unwrap_or_default();
                let below = entries.into_iter().filter(|entry| entry.kind == EntryKind::Directory);
                left.extend(below.map(|entry| inside.join(entry.name)));
            }
        }
        Ok(())
    }

    /// Waits for changes; none once there is nothing left to watch.
    async fn next(&mut self) -> Option<Vec<FilesystemEvent>> {
        loop {
            let changes = {
                let mut ready = self.queue.readable().await.ok()?;
                match ready.try_io(|queue| read(queue.get_ref())) {
                    Ok(changes) => changes.ok()?,
                    Err(_would_block) => continue,
                }
            };
            let mut events = Vec::new();
            let mut lost = false;
            for (number, flags, name) in changes {
                if flags.contains(ReadFlags::IGNORED) {
                    // The root itself: its file system was exchanged, or it was removed.
                    lost |= self.directories.remove(&number).is_some_and(|inside| inside == Path::new(""));
                    continue;
                }
                self.note(number, flags, &name, &mut events);
            }
            if lost {
                self.directories.clear();
                self.lay(Path::new("")).ok()?;
            }
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    fn note(&mut self, number: i32, flags: ReadFlags, name: &str, events: &mut Vec<FilesystemEvent>) {
        let Some(inside) = self.directories.get(&number) else { return };
        let inside = inside.join(name);
        let kinds = [
            (ReadFlags::CREATE | ReadFlags::MOVED_TO, CREATE),
            (ReadFlags::MOVED_FROM, RENAME),
            (ReadFlags::ATTRIB, CHMOD),
            (ReadFlags::MODIFY, WRITE),
            (ReadFlags::DELETE, REMOVE),
        ];
        for (_, kind) in kinds.into_iter().filter(|(mask, _)| flags.intersects(*mask)) {
            let wanted = self.include_entry && matches!(kind, CREATE | WRITE | CHMOD);
            let entry = wanted.then(|| self.entry(&inside)).flatten();
            events.push(FilesystemEvent { name: inside.to_string_lossy().into_owned(), kind, entry });
        }
        let is_new_directory =
            flags.contains(ReadFlags::ISDIR) && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        if self.recursive && is_new_directory {
            // When there is no room for more, those that are watched go on being so.
            drop(self.lay(&inside));
        }
    }

    fn entry(&self, inside: &Path) -> Option<super::messages::EntryInfo> {
        let files = self.sandbox.files().ok()?;
        let entry = files.stat(self.path.join(inside)).ok()?;
        Some(describe(&files, &files.names(), entry))
    }
}

#[expect(deprecated, reason = "an owned descriptor stays the same, which is all that the unsafe successor asks for")]
fn registered(queue: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(queue)
}

fn read(queue: &OwnedFd) -> io::Result<Vec<(i32, ReadFlags, String)>> {
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    let mut changes = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                changes.push((event.wd(), event.events(), name));
                // What the kernel gave with one call is a whole.
                if reader.is_buffer_empty() {
                    return Ok(changes);
                }
            }
            Err(error) if changes.is_empty() => return Err(error.into()),
            Err(_) => return Ok(changes),
        }
    }
}

async fn open(envd: &Envd, headers: HeaderMap, message: WatchRequest) -> Result<Watch, RpcError> {
    let asked = message.path.clone();
    let path = acting(envd.clone(), headers, asked, |acting, asked| {
        let path = acting.path(&asked)?;
        if acting.files.stat_followed(&path)?.kind != EntryKind::Directory {
            return Err(RpcError::invalid(format!("{} is not a directory", path.display())));
        }
        Ok(path)
    })
    .await?;
    Watch::open(Arc::clone(envd.sandbox()), path, &message)
}

struct Feed {
    watch: Watch,
    keepalive: Duration,
    deadline: Option<tokio::time::Instant>,
    ended: watch::Receiver<bool>,
    ready: VecDeque<Piece<WatchDirResponse>>,
    done: bool,
}

pub(super) async fn stream(
    envd: Envd,
    headers: HeaderMap,
    message: WatchRequest,
) -> Result<impl Stream<Item = Piece<WatchDirResponse>>, RpcError> {
    let keepalive = keepalive(&headers);
    let timeout = super::process::timeout(&headers)?;
    let watch = open(&envd, headers, message).await?;
    let start = WatchDirResponse { start: Some(Empty {}), ..WatchDirResponse::default() };
    let feed = Feed {
        watch,
        keepalive,
        deadline: timeout.map(|timeout| tokio::time::Instant::now() + timeout),
        ended: envd.state.ended(),
        ready: VecDeque::from([Piece::Message(start)]),
        done: false,
    };
    Ok(futures::stream::unfold(feed, |mut feed| async move {
        if feed.ready.is_empty() && !feed.done {
            feed.advance().await;
        }
        let piece = feed.ready.pop_front()?;
        Some((piece, feed))
    }))
}

impl Feed {
    async fn advance(&mut self) {
        let deadline = self.deadline;
        let out_of_time = async move {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            events = self.watch.next() => match events {
                Some(events) => {
                    let pieces = events.into_iter().map(|event| {
                        Piece::Message(WatchDirResponse { filesystem: Some(event), ..WatchDirResponse::default() })
                    });
                    self.ready.extend(pieces);
                    return;
                }
                None => None,
            },
            () = tokio::time::sleep(self.keepalive) => {
                let alive = WatchDirResponse { keepalive: Some(Empty {}), ..WatchDirResponse::default() };
                self.ready.push_back(Piece::Message(alive));
                return;
            }
            () = out_of_time => Some(RpcError::new(Code::DeadlineExceeded, "the watch has run out of time")),
            _ = self.ended.wait_for(|ended| *ended) => Some(RpcError::new(Code::Unavailable, "the server is shutting down")),
        };
        self.ready.push_back(Piece::End(end));
        self.done = true;
    }
}

pub(super) async fn create(envd: Envd, headers: HeaderMap, message: WatchRequest) -> Result<Watcher, RpcError> {
    let mut watch = open(&envd, headers, message).await?;
    let id = random_hex(20);
    let events: Arc<Mutex<VecDeque<FilesystemEvent>>> = Arc::default();
    let mut kept = envd.state.watchers().kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.keys().filter(|(sandbox, _)| sandbox == envd.reached.id()).count() >= WATCHERS_MAX {
        let message = format!("a sandbox can have {WATCHERS_MAX} watchers: remove one");
        return Err(RpcError::new(Code::ResourceExhausted, message));
    }
    let collected = Arc::clone(&events);
    let task = tokio::spawn(async move {
        while let Some(more) = watch.next().await {
            let mut events = collected.lock().unwrap_or_else(PoisonError::into_inner);
            events.extend(more);
            let excess = events.len().saturating_sub(EVENTS_KEPT);
            events.drain(..excess);
        }
    });
    kept.insert((envd.reached.id().to_owned(), id.clone()), Kept { events, task: task.abort_handle() });
    Ok(Watcher { watcher_id: id })
}

pub(super) fn take(envd: &Envd, message: &Watcher) -> Result<WatcherEvents, RpcError> {
    let kept = envd.state.watchers().kept.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (envd.reached.id().to_owned(), message.watcher_id.clone());
    let watcher = kept.get(&key).ok_or_else(no_watcher)?;
    let events = std::mem::take(&mut *watcher.events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(WatcherEvents { events: events.into() })
}

pub(super) fn remove(envd: &Envd, message: &Watcher) -> Result<Empty, RpcError> {
    let mut kept = envd.state.watchers().kept.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (envd.reached.id().to_owned(), message.watcher_id.clone());
    kept.remove(&key).map(|_| Empty {}).ok_or_else(no_watcher)
}

fn no_watcher() -> RpcError {
    RpcError::new(Code::NotFound, "there is no such watcher")
}
