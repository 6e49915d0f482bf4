//! Putting one living process back to its image.

use brood_kernel::ptrace;
use rustix::fs::OFlags;
use rustix::process::Pid;

use crate::address_space::{MappedFile, MappingKind};
use crate::error::{Error, Result, kernel};
use crate::mappings::{self, KnownMappings};
use crate::memory;
use crate::memory_rollback::{reset_mappings, reset_pages};
use crate::proc_files;
use crate::process::{self, ProcessImage};
use crate::puppet::Puppet;
use crate::rebuild;
use crate::restore::Supplies;
use crate::revive::{self, Received};
use crate::rollback::puppet_of;
use crate::signals;
use crate::thread::{self, ThreadImage};
use crate::timers;
use crate::tree::{Member, StoppedProcess};

/// Room for everything that a thread registered.
const THREAD_ROOM: usize = 4096;

/// Why a process can't be put back, if it can't: what it gave up since, or changed for good.
pub(crate) fn cannot_stay(process: &StoppedProcess, wanted: &ProcessImage) -> Option<&'static str> {
    let mut buffer = Vec::new();
    if process.threads.len() != process.status.threads {
        return Some("a thread has ended");
    }
    for thread in &process.threads {
        let Ok(status) = proc_files::status(process.pid, thread.tid, &mut buffer) else {
            return Some("a thread has ended");
        };
        let Some(image) = wanted.threads.iter().find(|image| image.tid.0 == status.inside.0) else {
            continue;
        };
        if *status.identity != *image.identity {
            return Some("a thread's privileges have changed");
        }
    }
    let Ok(timers) = timers::list(process.pid, &mut buffer) else { return Some("its timers can't be read") };
    let same = timers.iter().map(|timer| (timer.id, timer.clock, timer.signal, timer.value));
    let wanted_timers = wanted.attributes.timers.posix.iter();
    if !same.eq(wanted_timers.map(|timer| (timer.id, timer.clock, timer.signal, timer.value))) {
        return Some("its timers are others");
    }
    let program = rustix::fs::readlink(format!("/proc/{}/exe", process.pid.as_raw_nonzero()), Vec::new());
    let same_program = wanted
        .memory
        .as_ref()
        .zip(program.ok())
        .is_some_and(|(memory, program)| program.to_string_lossy() == *memory.layout.program);
    (!same_program).then_some("it runs another program")
}

/// Puts a process back. Returns the number of pages written or dropped, and its threads.
pub(crate) fn reset(
    process: &mut StoppedProcess,
    wanted: &ProcessImage,
    member: &mut Member,
    supplies: &mut Supplies<'_>,
    files_differ: bool,
) -> Result<(usize, Vec<Pid>)> {
    let puppet = puppet_of(process)?;
    let current = proc_files::status(process.pid, process.pid, &mut Vec::new())?;
    let threads = reset_threads(&puppet, process, wanted)?;
    let pages = reset_memory(&puppet, process, wanted, member, supplies)?;
    if files_differ || current.umask != wanted.umask || working_directory(process.pid)? != *wanted.working_directory {
        reset_files(&puppet, wanted, supplies, files_differ)?;
    }
    reset_attributes(&puppet, process, wanted, current.caught | current.ignored)?;
    for (tid, image) in threads.iter().zip(&wanted.threads) {
        let is_leader = *tid == puppet.tid;
        reset_thread(&puppet, *tid, image, wanted, is_leader)?;
        thread::restore_registers(*tid, image)?;
    }
    Ok((pages, threads))
}

fn working_directory(pid: Pid) -> Result<String> {
    let link = rustix::fs::readlink(format!("/proc/{}/cwd", pid.as_raw_nonzero()), Vec::new());
    Ok(link.map_err(kernel(pid, "read the working directory"))?.to_string_lossy().into_owned())
}

/// Ends threads that the image doesn't have and makes those that are missing. Returns the
/// threads in the image's order.
fn reset_threads(puppet: &Puppet, process: &mut StoppedProcess, wanted: &ProcessImage) -> Result<Vec<Pid>> {
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    for thread in &process.threads {
        let inside = proc_files::status(process.pid, thread.tid, &mut buffer)?.inside.0;
        if wanted.threads.iter().any(|image| image.tid.0 == inside) {
            found.push((inside, thread.tid));
        } else {
            end_thread(puppet, thread.tid)?;
        }
    }
    let mut threads = Vec::with_capacity(wanted.threads.len());
    for image in &wanted.threads {
        match found.iter().find(|(inside, _)| *inside == image.tid.0) {
            Some((_, tid)) => threads.push(*tid),
            None => threads.push(revive::make_thread(puppet, image.tid)?),
        }
    }
    for (tid, image) in threads.iter().zip(&wanted.threads) {
        let rseq = ptrace::rseq_configuration(*tid).map_err(kernel(*tid, "read restartable sequences"))?;
        let mut batch = puppet.batch();
        thread::drop_foreign_rseq(&mut batch, image, &rseq);
        if !batch.is_empty() {
            revive::run_in(puppet, *tid, &batch)?;
        }
    }
    process.threads.retain(|thread| threads.contains(&thread.tid));
    Ok(threads)
}

fn end_thread(puppet: &Puppet, tid: Pid) -> Result<()> {
    let mut batch = puppet.batch();
    // Nobody is to be told: the memory that it would clear is put back anyway.
    batch.call(libc::SYS_set_tid_address, &[0]);
    batch.call(libc::SYS_set_robust_list, &[0, 24]);
    batch.call(libc::SYS_exit, &[0]);
    match revive::run_in(puppet, tid, &batch) {
        Err(Error::Injection(brood_kernel::injection::InjectionError::Ended { .. })) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(Error::Malformed { pid: tid.as_raw_nonzero().get(), what: "the end of a thread" }),
    }
}

fn reset_memory(
    puppet: &Puppet,
    process: &StoppedProcess,
    wanted: &ProcessImage,
    member: &mut Member,
    supplies: &mut Supplies<'_>,
) -> Result<usize> {
    let missing = || Error::DoesNotFit { reason: format!("process {} has no memory", wanted.pid) };
    let space = wanted.memory.as_ref().ok_or_else(missing)?;
    let base = member.base.take().ok_or_else(missing)?;
    // The heap's end first: unmapping a grown heap would leave it high, over a hole.
    let mut batch = puppet.batch();
    batch.call(libc::SYS_brk, &[space.layout.heap.1]);
    puppet.run(&batch)?;
    let mut buffer = Vec::new();
    let current = mappings::survey_for_reset(process, &mut member.known, &space.mappings, &mut buffer)?;
    let is_same = std::sync::Arc::ptr_eq(&current, &space.mappings) || current == space.mappings;
    if !is_same {
        let files = needed_files(puppet, &current, wanted, supplies)?;
        let number = |file: &MappedFile, writable: bool| {
            let position = files.iter().find(|(known, can_write, _)| known == file && *can_write == writable);
            position.map(|(_, _, number)| *number).ok_or_else(missing)
        };
        let made = reset_mappings(puppet, &current, &space.mappings, &number)?;
        close_all(puppet, files.iter().map(|(_, _, number)| *number))?;
        if made {
            member.known = KnownMappings::default();
        }
    }
    let watcher = member.watcher.as_ref().ok_or_else(missing)?;
    if !is_same {
        memory::watch_all(process.pid, watcher.userfaultfd(), &space.mappings)?;
    }
    let pages = reset_pages(process, puppet, wanted, space, &base.pages, watcher, &supplies.image.store)?;
    member.base = Some(space.clone());
    Ok(pages)
}

/// Hands over files that mappings to be made again need.
fn needed_files(
    puppet: &Puppet,
    current: &[crate::address_space::MappingImage],
    wanted: &ProcessImage,
    supplies: &mut Supplies<'_>,
) -> Result<Vec<(MappedFile, bool, i32)>> {
    let Some(space) = wanted.memory.as_ref() else { return Ok(Vec::new()) };
    let mut needed = Vec::new();
    for change in crate::mapping_diff::changes(current, &space.mappings) {
        if let crate::mapping_diff::Change::Map(mapping) = change
            && let MappingKind::Private(file) | MappingKind::Shared(file) = &mapping.kind
        {
            needed.push((file.clone(), rebuild::needs_writing(&mapping)));
        }
    }
    needed.sort_unstable();
    needed.dedup();
    for (file, writable) in &needed {
        supplies.provide_mapped(file, *writable)?;
    }
    if needed.is_empty() {
        return Ok(Vec::new());
    }
    let files: Vec<_> = needed.iter().filter_map(|(file, writable)| supplies.mapped(file, *writable)).collect();
    let numbers = puppet.give(&files)?;
    Ok(needed.into_iter().zip(numbers).map(|((file, writable), number)| (file, writable, number)).collect())
}

fn close_all(puppet: &Puppet, numbers: impl Iterator<Item = i32>) -> Result<()> {
    let mut batch = puppet.batch();
    for number in numbers {
        puppet.run_if_full(&mut batch, 200)?;
        batch.call(libc::SYS_close, &[u64::from(number.unsigned_abs())]);
    }
    if batch.is_empty() { Ok(()) } else { puppet.run(&batch).map(drop) }
}

/// Puts descriptors (if they differ), working directory and umask back.
fn reset_files(puppet: &Puppet, wanted: &ProcessImage, supplies: &mut Supplies<'_>, descriptors: bool) -> Result<()> {
    let mut open: Vec<usize> = wanted.descriptors.iter().map(|descriptor| descriptor.file.0).collect();
    open.sort_unstable();
    open.dedup();
    if !descriptors {
        open.clear();
    }
    for index in &open {
        supplies.provide_open(*index)?;
    }
    let directory = supplies.root.open(&wanted.working_directory, OFlags::RDONLY | OFlags::DIRECTORY);
    let path = wanted.working_directory.to_string();
    let directory = directory.map_err(|source| Error::File { path, source })?;
    let mut files: Vec<_> = open.iter().filter_map(|index| supplies.open(*index)).collect();
    files.push(std::os::fd::AsFd::as_fd(&directory));
    let numbers = puppet.give(&files)?;
    let own = numbers.last().copied().unwrap_or(-1);
    let mut batch = puppet.batch();
    batch.call(libc::SYS_fchdir, &[u64::from(own.unsigned_abs())]);
    batch.call(libc::SYS_close, &[u64::from(own.unsigned_abs())]);
    batch.call(libc::SYS_umask, &[u64::from(wanted.umask)]);
    if descriptors {
        let received = Received::for_descriptors(open.into_iter().zip(numbers));
        revive::place_descriptors(puppet, &mut batch, wanted, &received, supplies)?;
    }
    puppet.run(&batch)?;
    Ok(())
}

fn reset_attributes(puppet: &Puppet, process: &StoppedProcess, wanted: &ProcessImage, signals_now: u64) -> Result<()> {
    let leader = puppet.tid;
    let pending = ptrace::pending_signals(leader, true).map_err(kernel(process.pid, "read pending signals"))?;
    let mut batch = puppet.batch();
    process::reset_attributes(&mut batch, wanted);
    signals::reset_actions(&mut batch, &wanted.attributes.actions, signals_now);
    signals::discard_pending(&mut batch, &pending);
    timers::arm(&mut batch, &wanted.attributes.timers);
    let own = u64::from(wanted.pid.0.unsigned_abs());
    signals::restore_pending(&mut batch, own, None, &wanted.pending);
    puppet.run(&batch)?;
    Ok(())
}

fn reset_thread(puppet: &Puppet, tid: Pid, image: &ThreadImage, wanted: &ProcessImage, is_leader: bool) -> Result<()> {
    let rseq = ptrace::rseq_configuration(tid).map_err(kernel(tid, "read restartable sequences"))?;
    let pending = ptrace::pending_signals(tid, false).map_err(kernel(tid, "read pending signals"))?;
    let mut batch = puppet.batch();
    debug_assert!(batch.free_bytes() > THREAD_ROOM);
    thread::reset_registrations(&mut batch, image, &rseq);
    signals::discard_pending(&mut batch, &pending);
    let process = u64::from(wanted.pid.0.unsigned_abs());
    signals::restore_pending(&mut batch, process, Some(u64::from(image.tid.0.unsigned_abs())), &image.pending);
    if is_leader {
        process::restore_after_credentials(&mut batch, &wanted.attributes);
    }
    revive::run_in(puppet, tid, &batch)
}
