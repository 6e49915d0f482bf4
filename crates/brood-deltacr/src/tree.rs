//! A sandbox's processes between checkpoints, and how all of them are stopped and let go.
//!
//! Tasks are seized for the time of one operation only: a tracer that stayed attached would be
//! woken by every signal of the sandbox and would keep debuggers inside from working.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::time::{Duration, Instant};

use brood_kernel::injection::EngineArea;
use brood_kernel::ptrace::{self, Options, Registers, Stop};
use brood_kernel::{injection, process_memory};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::address_space::AddressSpaceImage;
use crate::engine_area;
use crate::error::{Error, NamespacePid, Result, kernel};
use crate::interrupted;
use crate::mappings::KnownMappings;
use crate::proc_files::{self, Status};
use crate::watcher::Watcher;

/// Rounds of listing after which a tree that still grows is left alone. Children of stopped
/// tasks are attached at birth, so each round only finds what was born before it.
const LISTING_ROUNDS_MAX: usize = 64;
/// How long a task is waited for before it is looked at why it doesn't stop. A task inside vfork
/// can't until its child executes a program, which that can't while it is stopped itself.
const PROMPT_STOP: Duration = Duration::from_millis(1);
/// How long it may then take before everything is let go again.
const STOP_DEADLINE: Duration = Duration::from_millis(40);
/// How often stopping is tried when tasks inside vfork are in the way.
const STOP_ATTEMPTS: usize = 20;
/// How long a task that was asked to stop is waited for before it is given up.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);
/// First pauses between looks at a task that doesn't stop at once.
const POLL_PAUSE: Duration = Duration::from_micros(20);

/// What the engine keeps about a process between operations.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Tells a process from a later one with the same pid.
    pub(crate) start_time: u64,
    /// Where code can be run in it.
    pub(crate) area: Option<EngineArea>,
    /// Watches its writes since `base`.
    pub(crate) watcher: Option<Watcher>,
    /// The image that its memory is compared with.
    pub(crate) base: Option<AddressSpaceImage>,
    /// Its mappings at the last look.
    pub(crate) known: KnownMappings,
}

/// The processes of a sandbox: all descendants of its PID 1.
#[derive(Debug)]
pub struct Tree {
    init: Pid,
    pub(crate) members: HashMap<Pid, Member>,
    /// Where the vdso holds a `syscall` instruction.
    pub(crate) syscall_offset: u64,
}

/// A process all of whose threads are stopped, or a zombie.
#[derive(Debug)]
pub(crate) struct StoppedProcess {
    /// As the host sees it.
    pub(crate) pid: Pid,
    pub(crate) inside: NamespacePid,
    pub(crate) start_time: u64,
    pub(crate) status: Status,
    /// Stopped threads, the leader first; empty for a zombie.
    pub(crate) threads: Vec<StoppedThread>,
    /// `/proc/PID/mem`; zombies have none.
    pub(crate) memory: Option<File>,
    /// Where code can be run in it, if that was prepared.
    pub(crate) area: Option<EngineArea>,
}

impl StoppedProcess {
    pub(crate) fn is_zombie(&self) -> bool {
        self.threads.is_empty()
    }

    pub(crate) fn memory(&self) -> Result<&File> {
        let gone =
            Error::Kernel { pid: self.pid.as_raw_nonzero().get(), action: "reach the memory", source: Errno::SRCH };
        self.memory.as_ref().ok_or(gone)
    }
}

/// A stopped thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoppedThread {
    /// As the host sees it.
    pub(crate) tid: Pid,
    /// As it was found.
    pub(crate) registers: Registers,
    /// Blocked signals as they were found.
    pub(crate) signal_mask: u64,
    /// What stopped it: the engine, or job control before.
    pub(crate) stop: Stop,
}

impl StoppedThread {
    /// The signal of job control that holds this thread, if it was stopped already.
    pub(crate) fn job_control_signal(&self) -> Option<i32> {
        match self.stop {
            Stop::Event { signal, .. } if signal != libc::SIGTRAP => Some(signal),
            _ => None,
        }
    }
}

impl Tree {
    /// The processes below `init`, a sandbox's PID 1 as the host sees it.
    ///
    /// # Errors
    /// If this process can't read its own vdso.
    pub fn new(init: Pid) -> Result<Self> {
        let syscall_offset = injection::syscall_instruction_in_vdso()
            .map_err(kernel(rustix::process::getpid(), "find a system call instruction"))?;
        Ok(Self { init, members: HashMap::new(), syscall_offset })
    }

    /// PID 1 of the sandbox, as the host sees it.
    #[must_use]
    pub fn init(&self) -> Pid {
        self.init
    }

    /// Stops every task of the tree. They go on when the result is dropped or
    /// [resumed](StoppedTree::resume).
    ///
    /// # Errors
    /// If a task doesn't stop, is traced by another, or the tree keeps growing; all tasks go on.
    pub fn stop(&mut self) -> Result<StoppedTree<'_>> {
        for attempt in 1.. {
            let mut tasks = StoppedTasks::default();
            match tasks.stop_all(self.init) {
                Ok(mut processes) => {
                    self.members.retain(|pid, member| {
                        processes.iter().any(|process| process.pid == *pid && process.start_time == member.start_time)
                    });
                    for process in &mut processes {
                        let known = self.members.get(&process.pid).and_then(|member| member.area);
                        process.area = known.or_else(|| engine_area::inherited(process));
                    }
                    return Ok(StoppedTree { tree: self, processes, tasks, since: Instant::now() });
                }
                Err(Error::DoesNotStop { .. }) if attempt < STOP_ATTEMPTS => drop(tasks),
                Err(error) => return Err(error),
            }
        }
        Err(Error::KeepsGrowing)
    }
}

/// Tasks held by this tracer. Dropping lets all of them go.
#[derive(Debug, Default)]
pub(crate) struct StoppedTasks {
    stopped: BTreeMap<i32, Option<Stop>>,
}

impl StoppedTasks {
    /// Adds a task that is traced and stopped since its birth.
    pub(crate) fn adopt(&mut self, tid: Pid) {
        let stop = Stop::Signal(libc::SIGTRAP);
        self.stopped.entry(tid.as_raw_nonzero().get()).or_insert(Some(stop));
    }

    fn stop_all(&mut self, init: Pid) -> Result<Vec<StoppedProcess>> {
        for _ in 0..LISTING_ROUNDS_MAX {
            let processes = list_descendants(init)?;
            self.seize_all(&processes)?;
            let waiting = self.stopped.iter().filter(|(_, stop)| stop.is_none());
            let waiting: Vec<i32> = waiting.map(|(tid, _)| *tid).collect();
            if waiting.is_empty() {
                return self.describe(init, &processes);
            }
            self.wait_for_all(&waiting)?;
        }
        Err(Error::KeepsGrowing)
    }

    /// Seizes all tasks that aren't seized yet and asks them to stop.
    fn seize_all(&mut self, processes: &[Pid]) -> Result<()> {
        let options =
            Options::SYSCALL_GOOD | Options::FORK | Options::VFORK | Options::CLONE | Options::SUSPEND_SECCOMP;
        for pid in processes {
            for number in proc_files::numbered_entries(*pid, "task").unwrap_or_default() {
                let Some(tid) = Pid::from_raw(number).filter(|_| !self.stopped.contains_key(&number)) else {
                    continue;
                };
                match ptrace::seize(tid, options) {
                    Ok(()) => {}
                    // Gone, or a zombie: neither runs.
                    Err(Errno::SRCH | Errno::PERM) if !is_alive(*pid, tid) => continue,
                    // Attached at birth; its parent's report of that is still to come.
                    Err(Errno::PERM) if is_traced_here(*pid, tid) => {
                        self.stopped.insert(number, None);
                        continue;
                    }
                    Err(error) => return Err(kernel(tid, "seize a task")(error)),
                }
                self.stopped.insert(number, None);
                match ptrace::interrupt(tid) {
                    // A task that has ended meanwhile is noticed when it is waited for.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(kernel(tid, "stop a task")(error)),
                }
            }
        }
        Ok(())
    }

    fn wait_for_all(&mut self, tids: &[i32]) -> Result<()> {
        let deadline = Instant::now() + PROMPT_STOP;
        let mut late = Vec::new();
        for tid in tids.iter().filter_map(|number| Pid::from_raw(*number)) {
            match self.wait_for(tid, deadline) {
                Err(Error::DoesNotStop { .. }) => late.push(tid),
                result => result?,
            }
        }
        for tid in late {
            let children = self.let_children_run(tid)?;
            self.wait_for(tid, Instant::now() + STOP_DEADLINE)?;
            for child in children {
                match ptrace::interrupt(child) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(kernel(child, "stop a task")(error)),
                }
            }
        }
        Ok(())
    }

    fn wait_for(&mut self, tid: Pid, deadline: Instant) -> Result<()> {
        let number = tid.as_raw_nonzero().get();
        match wait_until_stopped(tid, deadline, &mut self.stopped)? {
            Some(stop) => self.stopped.insert(number, Some(stop)),
            None => self.stopped.remove(&number),
        };
        Ok(())
    }

    /// Lets the stopped children of a task run: it may be inside vfork, and wait for one of them
    /// to execute a program. They have to be stopped again.
    fn let_children_run(&mut self, parent: Pid) -> Result<Vec<Pid>> {
        let mut buffer = Vec::new();
        let mut running = Vec::new();
        for child in proc_files::children(parent, &mut buffer)? {
            let number = child.as_raw_nonzero().get();
            if self.stopped.get(&number) == Some(&None) {
                // Attached at birth and not looked at yet.
                match self.wait_for(child, Instant::now() + STOP_DEADLINE) {
                    Ok(()) | Err(Error::DoesNotStop { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(stop @ Some(_)) = self.stopped.get_mut(&number)
                && ptrace::resume(child, 0).is_ok()
            {
                *stop = None;
                running.push(child);
            }
        }
        Ok(running)
    }

    fn describe(&mut self, init: Pid, processes: &[Pid]) -> Result<Vec<StoppedProcess>> {
        let mut buffer = Vec::new();
        let mut found = Vec::with_capacity(processes.len());
        for pid in processes {
            let status = match proc_files::status(*pid, *pid, &mut buffer) {
                // A zombie that PID 1, which isn't stopped, has collected since it was listed.
                Err(Error::Kernel { source: Errno::NOENT | Errno::SRCH, .. }) => continue,
                status => status?,
            };
            let orphaned_zombie = status.state == 'Z' && status.parent == init.as_raw_nonzero().get();
            if orphaned_zombie {
                continue; // PID 1 is about to collect it.
            }
            let start_time = proc_files::stat(*pid, &mut buffer)?.start_time;
            let (mut threads, mut opened) = (Vec::new(), None);
            if status.state != 'Z' || status.threads > 1 {
                let memory = process_memory::open(*pid).map_err(kernel(*pid, "open the memory"))?;
                for number in proc_files::numbered_entries(*pid, "task")? {
                    threads.extend(self.describe_thread(number, &memory)?);
                }
                opened = (!threads.is_empty()).then_some(memory);
            }
            found.push(StoppedProcess {
                pid: *pid,
                inside: NamespacePid(status.inside.0),
                start_time,
                status,
                threads,
                memory: opened,
                area: None,
            });
        }
        Ok(found)
    }

    fn describe_thread(&self, number: i32, memory: &File) -> Result<Option<StoppedThread>> {
        let (Some(tid), Some(Some(stop))) = (Pid::from_raw(number), self.stopped.get(&number)) else {
            return Ok(None);
        };
        let mut registers = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?;
        let signal_mask = ptrace::signal_mask(tid).map_err(kernel(tid, "read the signal mask"))?;
        let mut next = [0; 2];
        let may_be_arranged = registers.orig_rax.cast_signed() >= 0 && registers.rax == registers.orig_rax;
        if may_be_arranged
            && process_memory::read_exact(memory, registers.rip, &mut next).is_ok()
            && interrupted::take_restart_back(&mut registers, next)
        {
            ptrace::set_registers(tid, &registers).map_err(kernel(tid, "set registers"))?;
        }
        if interrupted::was_disturbed(tid, &registers, signal_mask)? {
            interrupted::call_again(&mut registers);
            ptrace::set_registers(tid, &registers).map_err(kernel(tid, "set registers"))?;
        }
        Ok(Some(StoppedThread { tid, registers, signal_mask, stop: *stop }))
    }
}

impl Drop for StoppedTasks {
    fn drop(&mut self) {
        // Stopped tasks first: those that can't stop wait for one of them.
        let (stopped, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.stopped).into_iter().partition(|(_, stop)| stop.is_some());
        let tid = |(number, _): &(i32, Option<Stop>)| Pid::from_raw(*number);
        for tid in stopped.iter().filter_map(tid) {
            if let Err(error) = ptrace::detach(tid, 0)
                && error != Errno::SRCH
            {
                tracing::warn!(?tid, %error, "a task could not be let go");
            }
        }
        let mut running: Vec<Pid> = running.iter().filter_map(tid).collect();
        let deadline = Instant::now() + RELEASE_DEADLINE;
        let mut born = BTreeMap::new();
        while !running.is_empty() && Instant::now() < deadline {
            // One may wait for another to go on: none is waited for alone.
            running.retain(|tid| !let_go_if_stopped(*tid, &mut born));
            running.extend(std::mem::take(&mut born).into_keys().filter_map(Pid::from_raw));
        }
        for tid in running {
            tracing::warn!(?tid, "a task could not be let go");
        }
    }
}

/// Lets a task that is still on its way to a stop go if it has arrived. Returns whether nothing is
/// left to be done about it.
fn let_go_if_stopped(tid: Pid, born: &mut BTreeMap<i32, Option<Stop>>) -> bool {
    // It may have been let run again on purpose; one that has ended answers below.
    let _asked = ptrace::interrupt(tid);
    match wait_until_stopped(tid, Instant::now() + PROMPT_STOP, born) {
        Ok(Some(_)) => ptrace::detach(tid, 0).is_ok(),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// All descendants of a process, parents before children.
pub(crate) fn list_descendants(init: Pid) -> Result<Vec<Pid>> {
    let mut buffer = Vec::new();
    let mut found = proc_files::children(init, &mut buffer)?;
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(proc_files::children(pid, &mut buffer)?);
        next += 1;
    }
    Ok(found)
}

fn is_alive(pid: Pid, tid: Pid) -> bool {
    let mut buffer = Vec::new();
    let status = proc_files::status(pid, tid, &mut buffer);
    status.is_ok_and(|status| !matches!(status.state, 'Z' | 'X'))
}

fn is_traced_here(pid: Pid, tid: Pid) -> bool {
    let status = proc_files::status(pid, tid, &mut Vec::new());
    status.is_ok_and(|status| status.tracer == rustix::thread::gettid().as_raw_nonzero().get())
}

/// Waits for a seized task to stop for the engine; `None` if it ended. Signals that arrive on
/// the way are delivered, children born on the way noted as attached.
fn wait_until_stopped(tid: Pid, deadline: Instant, born: &mut BTreeMap<i32, Option<Stop>>) -> Result<Option<Stop>> {
    let mut pause = Duration::ZERO;
    loop {
        let stop = match ptrace::wait(tid, false) {
            Ok(Some(stop)) => stop,
            Ok(None) if Instant::now() >= deadline => {
                return Err(Error::DoesNotStop { tid: tid.as_raw_nonzero().get() });
            }
            Ok(None) => {
                // The first looks only give the processor away: most tasks stop in 10 us.
                if pause.is_zero() {
                    std::thread::yield_now();
                } else {
                    std::thread::park_timeout(pause);
                }
                pause = (pause + POLL_PAUSE / 16).min(POLL_PAUSE * 10);
                continue;
            }
            Err(Errno::CHILD) => return Ok(None),
            Err(error) => return Err(kernel(tid, "wait for a task")(error)),
        };
        match stop {
            Stop::Exited(_) | Stop::Killed(_) => return Ok(None),
            Stop::Event { .. } if stop.is_interrupt() => return Ok(Some(stop)),
            Stop::Event { .. } => {
                let child = ptrace::event_message(tid).ok().and_then(|message| i32::try_from(message).ok());
                if let Some(child) = child {
                    born.entry(child).or_insert(None);
                }
                ptrace::resume(tid, 0).map_err(kernel(tid, "resume a task"))?;
            }
            Stop::Signal(signal) => ptrace::resume(tid, signal).map_err(kernel(tid, "resume a task"))?,
            Stop::Syscall => ptrace::resume(tid, 0).map_err(kernel(tid, "resume a task"))?,
        }
    }
}

/// A tree all of whose tasks are stopped. They go on when it is dropped.
#[derive(Debug)]
pub struct StoppedTree<'tree> {
    pub(crate) tree: &'tree mut Tree,
    pub(crate) processes: Vec<StoppedProcess>,
    pub(crate) tasks: StoppedTasks,
    since: Instant,
}

impl<'tree> StoppedTree<'tree> {
    /// Number of processes, zombies among them.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// When the last task had stopped.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Ends the tracing of all tasks and returns what is known of the tree.
    pub(crate) fn into_tree(self) -> &'tree mut Tree {
        self.tree
    }

    /// Lets all tasks go on and tells how long they stood still.
    #[must_use = "the time is what a checkpoint is measured by"]
    pub fn resume(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }
}
