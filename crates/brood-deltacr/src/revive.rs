//! Filling one process: memory, files, threads, and at last who it is.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use brood_kernel::clone;
use brood_kernel::injection::{Batch, BatchResults, InjectionError};
use brood_kernel::ptrace;
use brood_pager::{Adoption, Observer};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::address_space::{AddressSpaceImage, MappedFile, MappingKind};
use crate::births::{Made, wait_for_birth};
use crate::descriptors::OpenFileKind;
use crate::error::{Error, NamespacePid, Result, kernel};
use crate::process::{self, ProcessImage, ProcessState};
use crate::puppet::Puppet;
use crate::rebuild;
use crate::restore::{Supplies, finish};
use crate::seed::Seed;
use crate::signals::{self, SIGNAL_SET_BYTES};
use crate::thread::{self, ThreadImage};
use crate::timers;
use crate::tree::Member;
use crate::watcher::{Paging, Watcher};
use crate::words::bytes_of_u64;

/// Flags that make a thread.
const THREAD_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;
/// How often an id is asked for that a dying thread still has, and the pause in between.
const ID_ATTEMPTS: usize = 1000;
const ID_PAUSE: Duration = Duration::from_micros(50);
/// Bytes of the arguments of clone3.
const CLONE_ARGUMENTS_BYTES: u64 = 88;
/// Room for one small call with data.
const ROOM: usize = 400;
/// Room for everything that makes a thread who it is, seccomp filters left out.
const IDENTITY_ROOM: usize = 16 * 1024;

/// The numbers under which a process got the files that it needs.
pub(crate) struct Received {
    open: BTreeMap<usize, i32>,
    mapped: BTreeMap<(MappedFile, bool), i32>,
    program: i32,
    working_directory: i32,
    root_directory: Option<i32>,
    /// The device that makes userfaultfds.
    userfaultfd: Option<i32>,
    highest: i32,
}

impl Received {
    /// Only open files were handed over.
    pub(crate) fn for_descriptors(numbers: impl Iterator<Item = (usize, i32)>) -> Self {
        let open: BTreeMap<usize, i32> = numbers.collect();
        let highest = open.values().copied().max().unwrap_or(0);
        let (mapped, root_directory, userfaultfd) = (BTreeMap::new(), None, None);
        Self { open, mapped, program: -1, working_directory: -1, root_directory, userfaultfd, highest }
    }
}

/// Fills a process that was made empty. Returns what the engine keeps of it and its threads.
pub(crate) fn revive(
    made: &Made,
    image: &ProcessImage,
    seed: &Seed,
    supplies: &mut Supplies<'_>,
) -> Result<(Member, Vec<Pid>)> {
    let puppet = &made.puppet;
    let missing = || Error::DoesNotFit { reason: format!("process {} has no memory", image.pid) };
    let space = image.memory.as_ref().ok_or_else(missing)?;
    let device = seed.paging().map(Paging::device);
    let received = receive(puppet, image, space, supplies, device)?;
    let number = |file: &MappedFile, writable: bool| {
        let number = received.mapped.get(&(file.clone(), writable)).copied();
        number.ok_or_else(|| Error::DoesNotFit { reason: format!("{file:?} was not handed over") })
    };
    rebuild::make_mappings(puppet, space, seed.specials(), &number)?;
    let watcher = make_watcher(puppet, seed, &received, space)?;
    rebuild::fill(puppet, image, space, &supplies.image.store, &watcher)?;
    let threads = settle(puppet, image, space, &received, supplies)?;
    let own = supplies.image.processes.iter().filter(|other| other.parent == image.pid);
    let has_zombies = own.clone().any(|child| matches!(child.state, ProcessState::Zombie(_)));
    for (tid, thread) in threads.iter().zip(&image.threads).skip(1) {
        finish_thread(puppet, *tid, image, thread)?;
    }
    finish_leader(puppet, image, has_zombies)?;
    let mut member =
        Member { area: Some(puppet.area), watcher: Some(watcher), base: Some(space.clone()), ..Member::default() };
    finish(puppet.pid, image, &threads, &mut member)?;
    Ok((member, threads))
}

/// Hands over every file that the process needs.
fn receive(
    puppet: &Puppet,
    image: &ProcessImage,
    space: &AddressSpaceImage,
    supplies: &mut Supplies<'_>,
    userfaultfd: Option<BorrowedFd<'_>>,
) -> Result<Received> {
    let mut open: Vec<usize> = image.descriptors.iter().map(|descriptor| descriptor.file.0).collect();
    open.sort_unstable();
    open.dedup();
    for index in &open {
        supplies.provide_open(*index)?;
    }
    let mut mapped: Vec<(MappedFile, bool)> = vec![(MappedFile::Path(space.layout.program.clone()), false)];
    for mapping in space.mappings.iter() {
        if let MappingKind::Private(file) | MappingKind::Shared(file) = &mapping.kind {
            mapped.push((file.clone(), rebuild::needs_writing(mapping)));
        }
    }
    mapped.sort_unstable();
    mapped.dedup();
    for (file, writable) in &mapped {
        supplies.provide_mapped(file, *writable)?;
    }
    let directory = |path: &str| {
        let opened = supplies.root.open(path, OFlags::RDONLY | OFlags::DIRECTORY);
        opened.map_err(|source| Error::File { path: path.to_owned(), source })
    };
    let working_directory = directory(&image.working_directory)?;
    let root_directory = (&*image.root_directory != "/").then(|| directory(&image.root_directory)).transpose()?;
    let mut files: Vec<BorrowedFd<'_>> = open.iter().filter_map(|index| supplies.open(*index)).collect();
    files.extend(mapped.iter().filter_map(|(file, writable)| supplies.mapped(file, *writable)));
    files.push(std::os::fd::AsFd::as_fd(&working_directory));
    files.extend(root_directory.as_ref().map(std::os::fd::AsFd::as_fd));
    files.extend(userfaultfd);
    let numbers = puppet.give(&files)?;
    let highest = numbers.iter().copied().max().unwrap_or(0);
    let mut numbers = numbers.into_iter();
    let open: BTreeMap<usize, i32> = open.into_iter().zip(&mut numbers).collect();
    let mapped: BTreeMap<(MappedFile, bool), i32> = mapped.into_iter().zip(&mut numbers).collect();
    let program = mapped.get(&(MappedFile::Path(space.layout.program.clone()), false)).copied().unwrap_or(-1);
    let working_directory = numbers.next().unwrap_or(-1);
    let root_directory = root_directory.and_then(|_| numbers.next());
    let userfaultfd = numbers.next();
    Ok(Received { open, mapped, program, working_directory, root_directory, userfaultfd, highest })
}

/// Makes the watcher of a process, in the care of the pager if there is one.
fn make_watcher(puppet: &Puppet, seed: &Seed, received: &Received, space: &AddressSpaceImage) -> Result<Watcher> {
    let Some((paging, device)) = seed.paging().zip(received.userfaultfd) else { return Watcher::tracking(puppet) };
    let adoption = Adoption { keep_clean: true, observer: Some(Arc::clone(&space.hot) as Arc<dyn Observer>) };
    paging.watcher(puppet, device, adoption)
}

/// Directories, layout, descriptors, attributes; at last the other threads, whose ids are
/// returned behind the leader's.
fn settle(
    puppet: &Puppet,
    image: &ProcessImage,
    space: &AddressSpaceImage,
    received: &Received,
    supplies: &Supplies<'_>,
) -> Result<Vec<Pid>> {
    let number = |number: i32| u64::from(number.unsigned_abs());
    let mut batch = puppet.batch();
    if let Some(root) = received.root_directory {
        batch.call(libc::SYS_fchdir, &[number(root)]);
        let here = batch.text(b".");
        batch.call(libc::SYS_chroot, &[here]);
    }
    batch.call(libc::SYS_fchdir, &[number(received.working_directory)]);
    rebuild::set_layout(&mut batch, &space.layout, received.program);
    process::restore_attributes(&mut batch, image);
    puppet.run_if_full(&mut batch, IDENTITY_ROOM)?;
    place_descriptors(puppet, &mut batch, image, received, supplies)?;
    puppet.run_if_full(&mut batch, IDENTITY_ROOM)?;
    if let Some(terminal) = &image.terminal {
        terminal.acquire(&mut batch);
    }
    process::restore_limits(&mut batch, image);
    let mut tasks = vec![puppet.tid];
    for thread in image.threads.iter().skip(1) {
        run_if_full(puppet, &mut batch, &mut tasks)?;
        add_thread(&mut batch, thread.tid);
    }
    collect(&puppet.run(&batch)?, &mut tasks)?;
    Ok(tasks)
}

fn add_thread(batch: &mut Batch, tid: NamespacePid) {
    let id = batch.data(&tid.0.to_ne_bytes());
    let arguments = batch.data(&clone::arguments(THREAD_FLAGS, 0, Some(id)));
    batch.call(libc::SYS_clone3, &[arguments, CLONE_ARGUMENTS_BYTES]);
}

/// Makes one thread in a process; it stands still.
pub(crate) fn make_thread(puppet: &Puppet, tid: NamespacePid) -> Result<Pid> {
    let mut batch = puppet.batch();
    add_thread(&mut batch, tid);
    let mut tasks = Vec::new();
    for attempt in 1.. {
        match puppet.run(&batch) {
            // The former thread with this id has ended, but isn't quite gone.
            Err(Error::Injection(InjectionError::Call { source: Errno::EXIST, .. })) if attempt < ID_ATTEMPTS => {
                std::thread::park_timeout(ID_PAUSE);
            }
            results => {
                collect(&results?, &mut tasks)?;
                break;
            }
        }
    }
    tasks.pop().ok_or(Error::Malformed { pid: puppet.pid.as_raw_nonzero().get(), what: "a new thread" })
}

fn run_if_full(puppet: &Puppet, batch: &mut Batch, tasks: &mut Vec<Pid>) -> Result<()> {
    if batch.free_bytes() < ROOM {
        collect(&puppet.run(batch)?, tasks)?;
        *batch = puppet.batch();
    }
    Ok(())
}

fn collect(results: &BatchResults, tasks: &mut Vec<Pid>) -> Result<()> {
    for tid in results.new_tasks() {
        wait_for_birth(*tid)?;
        tasks.push(*tid);
    }
    Ok(())
}

/// Moves the files that were handed over to the numbers that they belong to, and fills sets of
/// watched descriptors that no process has filled before.
pub(crate) fn place_descriptors(
    puppet: &Puppet,
    batch: &mut Batch,
    image: &ProcessImage,
    received: &Received,
    supplies: &Supplies<'_>,
) -> Result<()> {
    let number = |number: i32| u64::from(number.unsigned_abs());
    let highest = image.descriptors.iter().map(|descriptor| descriptor.number).max().unwrap_or(0);
    let spare = highest.max(received.highest) + 1;
    let mut parked = BTreeMap::new();
    for ((index, from), to) in received.open.iter().zip(spare..) {
        puppet.run_if_full(batch, ROOM)?;
        batch.call(libc::SYS_fcntl, &[number(*from), libc::F_DUPFD_CLOEXEC as u64, number(to)]);
        parked.insert(*index, to);
    }
    batch.call(libc::SYS_close_range, &[0, number(spare) - 1, 0]);
    for descriptor in &image.descriptors {
        puppet.run_if_full(batch, ROOM)?;
        let flags = if descriptor.close_on_exec { libc::O_CLOEXEC as u64 } else { 0 };
        let from = parked.get(&descriptor.file.0).copied().unwrap_or(-1);
        batch.call(libc::SYS_dup3, &[number(from), number(descriptor.number), flags]);
    }
    batch.call(libc::SYS_close_range, &[number(spare), u64::from(u32::MAX), 0]);
    for descriptor in &image.descriptors {
        if let OpenFileKind::Epoll(set) = &supplies.image.open_files.files[descriptor.file.0].kind
            && supplies.image.fills(image, descriptor)
        {
            puppet.run_if_full(batch, ROOM * (1 + set.watched.len()))?;
            set.fill(batch, descriptor.number);
        }
    }
    Ok(())
}

fn finish_thread(puppet: &Puppet, tid: Pid, image: &ProcessImage, thread: &ThreadImage) -> Result<()> {
    let mut batch = puppet.batch();
    thread::restore_registrations(&mut batch, thread);
    let (process, own) = (u64::from(image.pid.0.unsigned_abs()), u64::from(thread.tid.0.unsigned_abs()));
    signals::restore_pending(&mut batch, process, Some(own), &thread.pending);
    thread::restore_identity(&mut batch, thread);
    run_in(puppet, tid, &batch)
}

fn finish_leader(puppet: &Puppet, image: &ProcessImage, has_zombies: bool) -> Result<()> {
    let missing = || Error::DoesNotFit { reason: format!("process {} has no threads", image.pid) };
    let leader = image.threads.first().ok_or_else(missing)?;
    let mut batch = puppet.batch();
    thread::restore_registrations(&mut batch, leader);
    timers::restore(&mut batch, &image.attributes.timers);
    puppet.run_if_full(&mut batch, IDENTITY_ROOM)?;
    if has_zombies {
        // The ends of its zombies were news when the image was made, or not; they are in the
        // image then. What was just sent is not.
        let set = batch.data(&bytes_of_u64(&[1 << (libc::SIGCHLD - 1)]));
        let now = batch.data(&[0; 16]);
        batch.attempt(libc::SYS_rt_sigtimedwait, &[set, 0, now, SIGNAL_SET_BYTES]);
    }
    let process = u64::from(image.pid.0.unsigned_abs());
    signals::restore_pending(&mut batch, process, None, &image.pending);
    signals::restore_pending(&mut batch, process, Some(process), &leader.pending);
    puppet.run_if_full(&mut batch, IDENTITY_ROOM)?;
    thread::restore_identity(&mut batch, leader);
    process::restore_after_credentials(&mut batch, &image.attributes);
    puppet.run(&batch)?;
    Ok(())
}

pub(crate) fn run_in(puppet: &Puppet, tid: Pid, batch: &Batch) -> Result<()> {
    let template = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?;
    batch.run_without_saving(tid, &puppet.memory, &template)?;
    Ok(())
}
