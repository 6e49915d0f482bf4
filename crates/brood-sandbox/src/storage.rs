//! The files of one sandbox: made, described, thrown away.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use brood_deltafs::{OverlayMount, Space, Store, StoreError, Upper};
use brood_kernel::beneath::Root;
use rustix::fs::{Gid, Mode, Uid};

use crate::error::{EngineError, ErrorKind, Result};
use crate::sandbox::Disk;
use crate::shared_stack::SharedStack;

/// Blocks that `stat` counts in, whatever the file system's own are.
const STAT_BLOCK_BYTES: u64 = 512;

/// Where a sandbox finds random bytes that no other has, as hexadecimal digits.
pub(crate) const SEED_FILE: &str = "run/brood/seed";
/// Bytes of them: as many as the kernel seeds its own generator with.
const SEED_BYTES: usize = 32;

/// The engine's view of a failure of the store.
pub(crate) fn store_error(error: StoreError) -> EngineError {
    let kind = match &error {
        StoreError::NoLimits { .. } => ErrorKind::Unsupported,
        StoreError::LimitRange { .. } => ErrorKind::Invalid,
        StoreError::Locked { .. } => ErrorKind::Conflict,
        _ if error.is_disk_full() => ErrorKind::Exhausted,
        _ => ErrorKind::Internal,
    };
    EngineError::caused_by(kind, "the layer store failed", error)
}

/// What to undo when a sandbox cannot be made after all.
pub(crate) struct HalfMade<'s> {
    store: &'s Store,
    space: Option<Space>,
    upper: Option<Upper>,
}

impl Drop for HalfMade<'_> {
    fn drop(&mut self) {
        throw_away(self.store, self.upper.take(), self.space.take());
    }
}

/// Makes a fresh upper on a stack, with room for `disk_bytes` if that is given, and mounts both.
pub(crate) fn make(store: &Store, lineage: Arc<SharedStack>, disk_bytes: Option<u64>) -> Result<Disk> {
    let stack = lineage.current();
    let mut half_made = HalfMade { store, space: None, upper: None };
    half_made.space = disk_bytes.map(|bytes| store.new_space(bytes)).transpose().map_err(store_error)?;
    let upper = match &half_made.space {
        Some(space) => store.new_upper_in(space, &stack),
        None => store.new_upper(&stack),
    };
    let upper = half_made.upper.insert(upper.map_err(store_error)?);
    let mount = OverlayMount::mount(&stack, upper).map_err(store_error)?;
    let (Some(upper), space) = (half_made.upper.take(), half_made.space.take()) else {
        return Err(EngineError::new(ErrorKind::Internal, "the upper of a sandbox is missing"));
    };
    Ok(Disk { stack, lineage, upper, space, mount })
}

/// Deletes what a sandbox wrote. Its processes must be gone.
pub(crate) fn discard(store: &Store, disk: Disk) {
    let Disk { stack, lineage, upper, space, mount } = disk;
    drop((mount, lineage));
    throw_away(store, Some(upper), space);
    if let Err(error) = store.release(stack) {
        tracing::error!(%error, "layers of an ended sandbox stay until the next start");
    }
}

/// As [`discard`], for files that the sandbox has just been moved away from: the kernel may still
/// hold their mount for a moment.
pub(crate) fn discard_replaced(store: &Store, disk: Disk) {
    let Disk { stack, lineage, upper, space: _kept, mount } = disk;
    drop((mount, lineage));
    // After a checkpoint there is nothing left at the old upper's path: it has become a layer.
    if upper.changes().exists() {
        throw_away(store, Some(upper), None);
    }
    if let Err(error) = store.release(stack) {
        tracing::error!(%error, "layers that a sandbox left stay until the next start");
    }
}

fn throw_away(store: &Store, upper: Option<Upper>, space: Option<Space>) {
    let discarded = upper.map_or(Ok(()), |upper| store.discard(upper));
    let discarded = discarded.and(space.map_or(Ok(()), |space| store.discard_space(&space)));
    if let Err(error) = discarded {
        tracing::error!(%error, "files of an ended sandbox stay until the next start");
    }
}

/// The root of the files, for work on them from outside.
pub(crate) fn root_of(disk: &Disk) -> Result<Root> {
    root_of_mount(&disk.mount)
}

fn root_of_mount(mount: &OverlayMount) -> Result<Root> {
    let directory = mount.as_fd().try_clone_to_owned();
    let directory = directory.map_err(|error| EngineError::system("cannot use the sandbox's root", error))?;
    Ok(Root::from_directory(directory))
}

/// Writes the files that tell a sandbox who it is.
pub(crate) fn write_identity(disk: &Disk, host_name: &str, resolver: &str, id_base: u32) -> Result<()> {
    let root = root_of(disk)?;
    let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{host_name}\n");
    let hostname = format!("{host_name}\n");
    for (path, text) in [("etc/hosts", &*hosts), ("etc/hostname", &*hostname), ("etc/resolv.conf", resolver)] {
        write_file(&root, path, text, id_base)?;
    }
    write_seed(&root, id_base)
}

/// Writes what tells a sandbox from all others, its siblings included: a fork finds another seed
/// than the state that it was made from had.
fn write_seed(root: &Root, id_base: u32) -> Result<()> {
    let failed = |error| EngineError::caused_by(ErrorKind::Internal, format!("cannot make /{SEED_FILE} inside"), error);
    let directory = Path::new(SEED_FILE).parent().unwrap_or(Path::new("run"));
    if root.open_directory(directory).is_err() {
        root.make_directories(directory, Mode::from_raw_mode(0o755)).map_err(failed)?;
        let made = root.open_directory(directory).map_err(failed)?;
        rustix::fs::fchown(&made, Some(Uid::from_raw(id_base)), Some(Gid::from_raw(id_base)))
            .map_err(|error| EngineError::system("cannot change an owner inside", error))?;
    }
    let mut seed = [0; SEED_BYTES];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut seed, flags)
        .map_err(|error| EngineError::system("the kernel gives no random bytes", error))?;
    let text: String = seed.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect();
    write_file(root, SEED_FILE, &text, id_base)
}

/// Writes the name server's address.
pub(crate) fn write_resolver(mount: &OverlayMount, resolver: &str, id_base: u32) -> Result<()> {
    write_file(&root_of_mount(mount)?, "etc/resolv.conf", resolver, id_base)
}

/// Replaces a file; a link that the image left there is replaced, not followed.
fn write_file(root: &Root, path: &str, text: &str, id_base: u32) -> Result<()> {
    let path = Path::new(path);
    let failed = |error: std::io::Error| EngineError::system(format!("cannot write /{} inside", path.display()), error);
    match root.remove_file(path) {
        Err(error) if !error.is_not_found() => return Err(failed(std::io::Error::other(error))),
        _ => {}
    }
    let mode = Mode::from_raw_mode(0o644);
    let file = root.create_file(path, mode).map_err(|error| failed(std::io::Error::other(error)))?;
    rustix::fs::fchown(&file, Some(Uid::from_raw(id_base)), Some(Gid::from_raw(id_base)))
        .map_err(|error| failed(error.into()))?;
    File::from(file).write_all(text.as_bytes()).map_err(failed)
}

/// Bytes on disk of a tree, hard links counted once.
pub(crate) fn tree_bytes(path: &Path) -> Result<u64> {
    let failed =
        |error| EngineError::caused_by(ErrorKind::Internal, format!("cannot measure {}", path.display()), error);
    let root = Root::open(path).map_err(failed)?;
    let mut linked = HashSet::new();
    let mut bytes = 0;
    for entry in root.walk(Path::new(".")).map_err(failed)? {
        // Files come and go while a live sandbox is measured.
        let Ok(entry) = entry else { continue };
        let status = &entry.status;
        if status.st_nlink < 2 || linked.insert((status.st_dev, status.st_ino)) {
            bytes += u64::try_from(status.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES;
        }
    }
    Ok(bytes)
}
