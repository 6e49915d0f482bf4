//! Carrying out a plan of births in a sandbox's namespaces.

use std::time::{Duration, Instant};

use brood_kernel::clone;
use brood_kernel::injection::Batch;
use brood_kernel::ptrace::{self, Stop};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::creation::{Birth, Maker};
use crate::credentials;
use crate::error::{Error, NamespacePid, Result, kernel};
use crate::proc_files;
use crate::puppet::Puppet;
use crate::restore::RestoreTarget;
use crate::seed::{Seed, SeedTurn};

/// Namespaces that a restored process joins, with the flags of setns(2).
const NAMESPACES: [(&str, i32); 6] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("net", libc::CLONE_NEWNET),
    ("cgroup", libc::CLONE_NEWCGROUP),
];
/// Ids tried for the stub beyond those of the plan.
const STUB_ATTEMPTS: i32 = 64;
/// How long a process that was killed may take to end, and the pause between looks.
const END_DEADLINE: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_micros(20);
/// Bytes of the arguments of clone3.
const CLONE_ARGUMENTS_BYTES: u64 = 88;
/// `__WALL`: wait for children whatever signal they send.
const WAIT_ALL: u64 = 0x4000_0000;

/// A process that was made, still stopped.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) inside: NamespacePid,
    pub(crate) puppet: Puppet,
    birth: Birth,
}

/// Processes that were made. They are killed when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Nursery {
    pub(crate) made: Vec<Made>,
    stub: Option<Puppet>,
}

impl Nursery {
    /// Makes all processes of a plan, without anything in them yet. Ghosts are gone when this
    /// returns.
    pub(crate) fn make_all(seed: &Seed, target: &RestoreTarget<'_>, births: &[Birth]) -> Result<Self> {
        let mut nursery = Self::default();
        let highest = births.iter().map(|birth| birth.pid.0).max().unwrap_or(1);
        let stub = make_stub(&seed.take_turn()?, target.init, highest)?;
        let stub = nursery.stub.insert(Puppet::new(stub, stub, seed.area())?);
        (target.place)(stub.pid).map_err(|error| {
            kernel(stub.pid, "place in its control group")(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        enter_namespaces(stub, target.init)?;
        nursery.bear(None, births)?;
        nursery.join_groups()?;
        nursery.end_ghosts()?;
        if let Some(stub) = nursery.stub.take() {
            end(stub.pid)?;
        }
        Ok(nursery)
    }

    /// Makes the children of a process (of the stub, for `None`) and theirs.
    fn bear(&mut self, maker: Option<usize>, births: &[Birth]) -> Result<()> {
        let position = maker.and_then(|index| self.made.get(index));
        let own = position.map(|made| made.birth);
        let puppet = match (position, &self.stub) {
            (Some(made), _) => &made.puppet,
            (None, Some(stub)) => stub,
            (None, None) => return Ok(()),
        };
        let is_child = |birth: &&Birth| match (birth.maker, own) {
            (Maker::Stub, None) => true,
            (Maker::Process(pid) | Maker::Sibling(pid), Some(own)) => pid == own.pid,
            _ => false,
        };
        let (early, late): (Vec<&Birth>, Vec<&Birth>) = births.iter().filter(is_child).partition(|birth| birth.early);
        let mut batch = puppet.batch();
        let mut tasks = Vec::new();
        if own.is_some_and(|own| own.group == Some(own.pid)) {
            batch.call(libc::SYS_setpgid, &[0, 0]);
        }
        for child in &early {
            add_clone(puppet, &mut batch, child, &mut tasks)?;
        }
        if own.is_none_or(|own| own.founds_session) {
            batch.call(libc::SYS_setsid, &[]);
        }
        for child in &late {
            add_clone(puppet, &mut batch, child, &mut tasks)?;
        }
        if !batch.is_empty() {
            tasks.extend_from_slice(puppet.run(&batch)?.new_tasks());
        }
        let area = puppet.area;
        for (birth, pid) in early.into_iter().chain(late).zip(tasks) {
            wait_for_birth(pid)?;
            let puppet = Puppet::new(pid, pid, area)?;
            self.made.push(Made { inside: birth.pid, puppet, birth: *birth });
            self.bear(Some(self.made.len() - 1), births)?;
        }
        Ok(())
    }

    fn join_groups(&self) -> Result<()> {
        for made in &self.made {
            let Some(group) = made.birth.group.filter(|group| *group != made.inside) else { continue };
            let mut batch = made.puppet.batch();
            batch.call(libc::SYS_setpgid, &[0, u64::from(group.0.unsigned_abs())]);
            made.puppet.run(&batch)?;
        }
        Ok(())
    }

    fn end_ghosts(&mut self) -> Result<()> {
        let (ghosts, made): (Vec<Made>, Vec<Made>) =
            std::mem::take(&mut self.made).into_iter().partition(|made| made.birth.ghost);
        self.made = made;
        for ghost in ghosts {
            end(ghost.puppet.pid)?;
            let Maker::Process(maker) = ghost.birth.maker else { continue };
            // A maker that stays has to collect it, or it would find a child that it never had.
            if let Some(maker) = self.made.iter().find(|made| made.inside == maker) {
                let mut batch = maker.puppet.batch();
                let pid = u64::from(ghost.inside.0.unsigned_abs());
                batch.call(libc::SYS_wait4, &[pid, 0, WAIT_ALL, 0]);
                maker.puppet.run(&batch)?;
            }
        }
        Ok(())
    }

    /// Gives up the duty to kill.
    pub(crate) fn release(mut self) -> Vec<Made> {
        std::mem::take(&mut self.made)
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let made = self.made.iter().map(|made| made.puppet.pid);
        for pid in made.chain(self.stub.as_ref().map(|stub| stub.pid)) {
            if let Err(error) = end(pid) {
                tracing::warn!(?pid, %error, "a half-made process could not be ended");
            }
        }
    }
}

/// Kills a traced process and collects it as its tracer.
pub(crate) fn end(pid: Pid) -> Result<()> {
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(kernel(pid, "end a helper")(error)),
    }
    let deadline = Instant::now() + END_DEADLINE;
    while Instant::now() < deadline {
        match ptrace::wait(pid, false) {
            Ok(Some(stop)) if stop.is_end() => return Ok(()),
            Err(Errno::CHILD) => return Ok(()),
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(error) => return Err(kernel(pid, "wait for a helper")(error)),
        }
        // The end of a process is reported when that of all its threads has been.
        let threads = proc_files::numbered_entries(pid, "task").unwrap_or_default();
        for tid in threads.into_iter().filter_map(Pid::from_raw).filter(|tid| *tid != pid) {
            while ptrace::wait(tid, false).is_ok_and(|stop| stop.is_some_and(|stop| !stop.is_end())) {}
        }
        std::thread::park_timeout(END_PAUSE);
    }
    Err(kernel(pid, "see the end of a helper")(Errno::TIMEDOUT))
}

/// Waits until a task that was attached at birth stands still.
pub(crate) fn wait_for_birth(tid: Pid) -> Result<()> {
    match ptrace::wait(tid, true).map_err(kernel(tid, "wait for a new task"))? {
        Some(stop) if stop.is_interrupt() => Ok(()),
        Some(Stop::Exited(_) | Stop::Killed(_)) | None => Err(kernel(tid, "wait for a new task")(Errno::SRCH)),
        Some(_) => Err(Error::Malformed { pid: tid.as_raw_nonzero().get(), what: "the first stop" }),
    }
}

fn add_clone(puppet: &Puppet, batch: &mut Batch, birth: &Birth, tasks: &mut Vec<Pid>) -> Result<()> {
    /// More than a call with its data takes.
    const ROOM: usize = 400;
    if batch.free_bytes() < ROOM {
        tasks.extend_from_slice(puppet.run(batch)?.new_tasks());
        *batch = puppet.batch();
    }
    let (flags, signal) = match birth.maker {
        Maker::Sibling(_) => (libc::CLONE_PARENT as u64, 0),
        _ if birth.ghost => (0, 0),
        _ => (0, libc::SIGCHLD),
    };
    let id = batch.data(&birth.pid.0.to_ne_bytes());
    let arguments = batch.data(&clone::arguments(flags, signal, Some(id)));
    batch.call(libc::SYS_clone3, &[arguments, CLONE_ARGUMENTS_BYTES]);
    Ok(())
}

/// Makes the stub: a copy of the seed in the pid namespace of `init`, a child of the engine.
fn make_stub(turn: &SeedTurn<'_>, init: Pid, highest: i32) -> Result<Pid> {
    let puppet = &turn.puppet;
    let init_number = u64::from(init.as_raw_nonzero().get().unsigned_abs());
    let own_number = u64::from(puppet.pid.as_raw_nonzero().get().unsigned_abs());
    let mut last = Errno::EXIST;
    for offset in 1..=STUB_ATTEMPTS {
        let mut batch = puppet.batch();
        let target = batch.call(libc::SYS_pidfd_open, &[init_number, 0]);
        let home = batch.call(libc::SYS_pidfd_open, &[own_number, 0]);
        let enter = batch.attempt(libc::SYS_setns, &[0, libc::CLONE_NEWPID as u64]);
        batch.forward(target, enter, 0);
        let id = batch.data(&(highest + offset).to_ne_bytes());
        let arguments = batch.data(&clone::arguments(libc::CLONE_PARENT as u64, 0, Some(id)));
        let clone = batch.attempt(libc::SYS_clone3, &[arguments, CLONE_ARGUMENTS_BYTES]);
        let leave = batch.attempt(libc::SYS_setns, &[0, libc::CLONE_NEWPID as u64]);
        batch.forward(home, leave, 0);
        batch.call(libc::SYS_close_range, &[1, u64::from(u32::MAX), 0]);
        let results = puppet.run(&batch)?;
        let failed = |action| kernel(init, action);
        results.result(enter).map_err(failed("join the pid namespace"))?;
        results.result(leave).map_err(failed("leave the pid namespace"))?;
        match (results.result(clone), results.new_tasks()) {
            (Ok(_), [stub]) => {
                wait_for_birth(*stub)?;
                return Ok(*stub);
            }
            (Err(Errno::EXIST), _) => {}
            (Err(error), _) => last = error,
            (Ok(_), _) => last = Errno::SRCH,
        }
        if last != Errno::EXIST {
            break;
        }
    }
    Err(kernel(init, "make a process in the namespaces")(last))
}

/// Takes the stub into all other namespaces, as their root.
fn enter_namespaces(stub: &Puppet, init: Pid) -> Result<()> {
    let mut flags = 0;
    for (name, flag) in NAMESPACES {
        let link = |pid: Pid| rustix::fs::readlink(format!("/proc/{}/ns/{name}", pid.as_raw_nonzero()), Vec::new());
        let (theirs, own) = (link(init), link(stub.pid));
        if theirs.map_err(kernel(init, "read namespaces"))? != own.map_err(kernel(stub.pid, "read namespaces"))? {
            flags |= flag;
        }
    }
    // The stub has the seed's descriptors: its pipe, then the process descriptor of PID 1.
    let mut batch = stub.batch();
    if flags != 0 {
        batch.call(libc::SYS_setns, &[1, flags as u64]);
    }
    if flags & libc::CLONE_NEWUSER != 0 {
        credentials::become_namespace_root(&mut batch);
    }
    batch.call(libc::SYS_close_range, &[0, u64::from(u32::MAX), 0]);
    stub.run(&batch)?;
    Ok(())
}
