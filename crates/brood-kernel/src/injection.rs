//! System calls run inside a stopped task: one at a time, or a whole table of them.
//!
//! A *batch* is a table of system calls and a hundred bytes of position-independent code that
//! walks it, notes each result and ends in a breakpoint. Both lie in the *engine area*, two
//! mappings in the target: a read-execute page for the code and read-write pages for the table.
//! Everything in the area is written anew before each run, so what the target may have put
//! there doesn't matter. While a batch runs, all signals that can be blocked are.

use std::fs::File;

use rustix::io::Errno;
use rustix::process::Pid;
use thiserror::Error;

use crate::ptrace::{self, Registers, Stop};
use crate::{maps, process_memory};

std::arch::global_asm!(
    ".pushsection .rodata.brood_batch, \"a\"",
    ".globl brood_batch_start",
    ".hidden brood_batch_start",
    "brood_batch_start:",
    "mov rax, [rbx]",
    "cmp rax, -1",
    "je 3f",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "mov rcx, [rbx + 64]",
    "test rcx, rcx",
    "jz 2f",
    "mov [rcx], rax",
    "2:",
    "add rbx, 80",
    "cmp rax, -4095",
    "jb brood_batch_start",
    "cmp qword ptr [rbx - 8], 0",
    "je brood_batch_start",
    "3:",
    "int3",
    ".globl brood_batch_end",
    ".hidden brood_batch_end",
    "brood_batch_end:",
    ".popsection",
);

unsafe extern "C" {
    static brood_batch_start: u8;
    static brood_batch_end: u8;
}

/// Bytes of one table entry: number, six arguments, result, address that also receives the
/// result, whether an error ends the batch.
const ENTRY_BYTES: usize = 80;
const RESULT_OFFSET: usize = 56;
const FORWARD_OFFSET: usize = 64;
/// The number that ends a table.
const END_OF_TABLE: i64 = -1;
/// The result of a call that wasn't made.
const NOT_RUN: i64 = i64::MIN;
/// Bytes of the code page.
pub const CODE_BYTES: u64 = 4096;
/// Bytes of the table: about 700 calls with their data.
pub const TABLE_BYTES: u64 = 60 * 1024;
/// Bytes of the whole engine area.
pub const AREA_BYTES: u64 = CODE_BYTES + TABLE_BYTES;
/// Bytes kept free at the end of the table's entries for the end mark.
const END_MARK_BYTES: usize = 8;
/// All signals but SIGTRAP, which ends a batch (and SIGKILL and SIGSTOP, which can't be).
const BATCH_SIGNAL_MASK: u64 = !(1 << (libc::SIGTRAP - 1));

/// Why code could not be run in a task.
#[derive(Debug, Error)]
pub enum InjectionError {
    /// A request to the kernel failed.
    #[error("cannot {action} in task {tid}")]
    Kernel {
        /// The task.
        tid: i32,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The task ended instead.
    #[error("task {tid} ended ({stop:?}) while code ran in it")]
    Ended {
        /// The task.
        tid: i32,
        /// How it ended.
        stop: Stop,
    },
    /// The code raised a fault: the engine area was damaged.
    #[error("injected code in task {tid} got signal {signal} at {address:#x}")]
    Fault {
        /// The task.
        tid: i32,
        /// The signal.
        signal: i32,
        /// Where it stood.
        address: u64,
    },
    /// A call of the batch that had to succeed failed.
    #[error("call {number} ({index} in its batch) failed in task {tid}")]
    Call {
        /// The task.
        tid: i32,
        /// The system call's number.
        number: i64,
        /// Its place in the batch.
        index: usize,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// The batch doesn't fit into the table.
    #[error("batch for task {tid} does not fit into the engine area")]
    TooLarge {
        /// The task.
        tid: i32,
    },
}

fn kernel(tid: Pid, action: &'static str) -> impl FnOnce(Errno) -> InjectionError {
    move |source| InjectionError::Kernel { tid: tid.as_raw_nonzero().get(), action, source }
}

/// The interpreter's machine code.
fn code() -> &'static [u8] {
    let start = std::ptr::addr_of!(brood_batch_start);
    let end = std::ptr::addr_of!(brood_batch_end);
    let length = end.addr() - start.addr();
    // SAFETY: both labels enclose one block of read-only bytes, emitted above.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// Address of a `syscall` instruction relative to the start of the vdso, which is the same in
/// every 64-bit process of the running kernel.
///
/// # Errors
/// As for reading this process' own maps and memory; ENOENT if there is no vdso.
pub fn syscall_instruction_in_vdso() -> Result<u64, Errno> {
    let mut buffer = Vec::new();
    let me = rustix::process::getpid();
    let mappings = maps::read(me, &mut buffer)?;
    let vdso = mappings.iter().find(|mapping| &*mapping.name == "[vdso]").ok_or(Errno::NOENT)?;
    let mut content = vec![0_u8; usize::try_from(vdso.bytes()).map_err(|_| Errno::INVAL)?];
    process_memory::read_exact(&process_memory::open(me)?, vdso.start, &mut content)?;
    let found = content.windows(2).position(|pair| pair == [0x0f, 0x05]);
    found.map(|offset| offset as u64).ok_or(Errno::NOENT)
}

/// The engine area of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineArea {
    /// First address.
    pub start: u64,
}

impl EngineArea {
    /// First address behind the area.
    #[must_use]
    pub fn end(self) -> u64 {
        self.start + AREA_BYTES
    }

    fn table(self) -> u64 {
        self.start + CODE_BYTES
    }

    /// Whether the interpreter's code lies at the start of the area in the process behind
    /// `memory`, as in a child of a process that has an area.
    #[must_use]
    pub fn has_code(self, memory: &File) -> bool {
        let mut found = vec![0; code().len()];
        process_memory::read_exact(memory, self.start, &mut found).is_ok() && found == code()
    }

    /// Writes the interpreter into the area's code page.
    ///
    /// # Errors
    /// EIO if the area isn't mapped.
    fn write_code(self, memory: &File) -> Result<(), Errno> {
        process_memory::write_forced(memory, self.start, code())
    }
}

/// A call's place in a batch, and so its result's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallIndex(usize);

/// Memory in the table that calls of a batch write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Its address in the target.
    pub address: u64,
    offset: usize,
    length: usize,
}

/// A table of system calls being put together for one engine area.
#[derive(Debug)]
pub struct Batch {
    area: EngineArea,
    entries: Vec<u8>,
    /// Data of the batch, last byte first: it fills the table from its end.
    data: Vec<u8>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new(area: EngineArea) -> Self {
        Self { area, entries: Vec::new(), data: Vec::new() }
    }

    /// Whether there are no calls yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes still free for calls (80 each) and data.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        (TABLE_BYTES as usize).saturating_sub(self.entries.len() + self.data.len() + END_MARK_BYTES)
    }

    /// Appends a call; an error in it ends the batch and makes [`run`](Self::run) fail.
    pub fn call(&mut self, number: i64, arguments: &[u64]) -> CallIndex {
        self.push(number, arguments, true)
    }

    /// Appends a call whose error is only noted.
    pub fn attempt(&mut self, number: i64, arguments: &[u64]) -> CallIndex {
        self.push(number, arguments, false)
    }

    fn push(&mut self, number: i64, arguments: &[u64], required: bool) -> CallIndex {
        let index = self.entries.len() / ENTRY_BYTES;
        self.entries.extend(number.to_ne_bytes());
        for position in 0..6 {
            let argument = arguments.get(position).copied().unwrap_or(0);
            self.entries.extend(argument.to_ne_bytes());
        }
        self.entries.extend(NOT_RUN.to_ne_bytes());
        self.entries.extend(0_u64.to_ne_bytes());
        self.entries.extend(u64::from(required).to_ne_bytes());
        CallIndex(index)
    }

    /// Makes the result of one call an argument (counted from zero) of a later one.
    pub fn forward(&mut self, from: CallIndex, to: CallIndex, argument: usize) {
        let target = self.area.table() + (to.0 * ENTRY_BYTES + 8 + argument * 8) as u64;
        let place = from.0 * ENTRY_BYTES + FORWARD_OFFSET;
        self.entries[place..place + 8].copy_from_slice(&target.to_ne_bytes());
    }

    /// Puts bytes into the table, 16-byte aligned; returns their address in the target.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        self.place(bytes.len(), bytes).address
    }

    /// Puts a string with its ending zero into the table.
    pub fn text(&mut self, text: &[u8]) -> u64 {
        let mut bytes = text.to_vec();
        bytes.push(0);
        self.data(&bytes)
    }

    /// Sets room aside that calls write to.
    pub fn output(&mut self, length: usize) -> Output {
        self.place(length, &[])
    }

    fn place(&mut self, length: usize, bytes: &[u8]) -> Output {
        let padded = (self.data.len() + length).next_multiple_of(16);
        let mut block = vec![0_u8; padded - self.data.len()];
        block[..bytes.len()].copy_from_slice(bytes);
        block.reverse();
        self.data.extend(block);
        let address = self.area.end() - self.data.len() as u64;
        Output { address, offset: self.data.len(), length }
    }

    /// Runs the batch in a stopped task and returns when it has stopped again, with its
    /// registers and signal mask as they were. `memory` is the process' `/proc/PID/mem`.
    ///
    /// Children and threads that calls of the batch make are reported; with the options of
    /// [`ptrace`] for it they are traced and about to stop.
    ///
    /// # Errors
    /// See [`InjectionError`]. After `Kernel` and `Ended` the task is in no defined state.
    pub fn run(&self, tid: Pid, memory: &File) -> Result<BatchResults, InjectionError> {
        let saved = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?;
        let mask = ptrace::signal_mask(tid).map_err(kernel(tid, "read the signal mask"))?;
        let results = self.run_without_saving(tid, memory, &saved)?;
        ptrace::set_registers(tid, &saved).map_err(kernel(tid, "restore registers"))?;
        ptrace::set_signal_mask(tid, mask).map_err(kernel(tid, "restore the signal mask"))?;
        Ok(results)
    }

    /// As [`run`](Self::run), but leaves registers and signal mask as the batch left them, for
    /// a task whose state is set afterwards anyway. `template` supplies segment registers.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_without_saving(
        &self,
        tid: Pid,
        memory: &File,
        template: &Registers,
    ) -> Result<BatchResults, InjectionError> {
        self.prepare(tid, memory, template)?;
        ptrace::resume(tid, 0).map_err(kernel(tid, "start a batch"))?;
        let run = self.wait_for_end(tid)?;
        self.results(tid, memory, run)
    }

    /// Starts the batch in a stopped task and ends its tracing: nobody waits for results. The
    /// batch should not return.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn start_and_detach(&self, tid: Pid, memory: &File, template: &Registers) -> Result<(), InjectionError> {
        self.prepare(tid, memory, template)?;
        ptrace::detach(tid, 0).map_err(kernel(tid, "let a task go"))
    }

    /// Writes the batch and points the task to it.
    fn prepare(&self, tid: Pid, memory: &File, template: &Registers) -> Result<(), InjectionError> {
        if self.entries.len() + self.data.len() + END_MARK_BYTES > TABLE_BYTES as usize {
            return Err(InjectionError::TooLarge { tid: tid.as_raw_nonzero().get() });
        }
        self.write(memory).map_err(kernel(tid, "write a batch"))?;
        ptrace::set_signal_mask(tid, BATCH_SIGNAL_MASK).map_err(kernel(tid, "block signals"))?;
        let mut registers = *template;
        registers.rip = self.area.start;
        registers.rbx = self.area.table();
        // Not used by the code; sigaltstack(2) refuses a change while the stack pointer is on one.
        registers.rsp = self.area.end();
        registers.orig_rax = u64::MAX;
        registers.eflags &= !0x500; // neither single steps nor backward string moves
        ptrace::set_registers(tid, &registers).map_err(kernel(tid, "set registers"))
    }

    fn write(&self, memory: &File) -> Result<(), Errno> {
        self.area.write_code(memory)?;
        let mut head = self.entries.clone();
        head.extend(END_OF_TABLE.to_ne_bytes());
        process_memory::write_forced(memory, self.area.table(), &head)?;
        if self.data.is_empty() {
            return Ok(());
        }
        let tail: Vec<u8> = self.data.iter().rev().copied().collect();
        process_memory::write_forced(memory, self.area.end() - tail.len() as u64, &tail)
    }

    fn wait_for_end(&self, tid: Pid) -> Result<RunNotes, InjectionError> {
        let mut notes = RunNotes::default();
        let trap = self.area.start + code().len() as u64;
        loop {
            let stop = wait_stop(tid)?;
            match stop {
                Stop::Signal(signal) => {
                    let rip = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?.rip;
                    if signal == libc::SIGTRAP && rip == trap {
                        return Ok(notes);
                    }
                    let inside = rip >= self.area.start && rip <= trap;
                    if inside && is_fault(signal) {
                        let tid = tid.as_raw_nonzero().get();
                        return Err(InjectionError::Fault { tid, signal, address: rip });
                    }
                    notes.deferred_signals.push(signal);
                }
                Stop::Event { .. } if !stop.is_interrupt() => {
                    let message = ptrace::event_message(tid);
                    let message = message.map_err(kernel(tid, "read an event"))?;
                    let task = i32::try_from(message).ok().and_then(Pid::from_raw);
                    notes.new_tasks.extend(task);
                }
                Stop::Event { .. } | Stop::Syscall => {}
                Stop::Exited(_) | Stop::Killed(_) => {
                    return Err(InjectionError::Ended { tid: tid.as_raw_nonzero().get(), stop });
                }
            }
            ptrace::resume(tid, 0).map_err(kernel(tid, "continue a batch"))?;
        }
    }

    fn results(&self, tid: Pid, memory: &File, notes: RunNotes) -> Result<BatchResults, InjectionError> {
        let mut entries = vec![0_u8; self.entries.len()];
        process_memory::read_exact(memory, self.area.table(), &mut entries).map_err(kernel(tid, "read results"))?;
        let mut results = Vec::with_capacity(entries.len() / ENTRY_BYTES);
        for (index, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
            let word = |bytes: &[u8], offset: usize| {
                let mut word = [0_u8; 8];
                word.copy_from_slice(&bytes[offset..offset + 8]);
                i64::from_ne_bytes(word)
            };
            let result = word(entry, RESULT_OFFSET);
            let written = &self.entries[index * ENTRY_BYTES..];
            if word(written, ENTRY_BYTES - 8) != 0 && (-4095..0).contains(&result) {
                let code = i32::try_from(-result).unwrap_or(libc::EIO);
                return Err(InjectionError::Call {
                    tid: tid.as_raw_nonzero().get(),
                    number: word(written, 0),
                    index,
                    source: Errno::from_raw_os_error(code),
                });
            }
            results.push(result);
        }
        let mut data = vec![0_u8; self.data.len()];
        if !data.is_empty() {
            let start = self.area.end() - data.len() as u64;
            process_memory::read_exact(memory, start, &mut data).map_err(kernel(tid, "read results"))?;
        }
        Ok(BatchResults { results, data, notes })
    }
}

#[derive(Debug, Default)]
struct RunNotes {
    new_tasks: Vec<Pid>,
    deferred_signals: Vec<i32>,
}

/// What a batch brought.
#[derive(Debug)]
pub struct BatchResults {
    results: Vec<i64>,
    data: Vec<u8>,
    notes: RunNotes,
}

impl BatchResults {
    /// The result of a call.
    ///
    /// # Errors
    /// The call's own error.
    pub fn result(&self, call: CallIndex) -> Result<u64, Errno> {
        let value = self.results.get(call.0).copied().unwrap_or(NOT_RUN);
        match u64::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) if (-4095..0).contains(&value) => {
                Err(Errno::from_raw_os_error(i32::try_from(-value).unwrap_or(libc::EIO)))
            }
            Err(_) => Err(Errno::CANCELED),
        }
    }

    /// What calls wrote to an output.
    #[must_use]
    pub fn output(&self, output: Output) -> &[u8] {
        let start = self.data.len() - output.offset;
        &self.data[start..start + output.length]
    }

    /// Tasks made by calls of the batch, in order.
    #[must_use]
    pub fn new_tasks(&self) -> &[Pid] {
        &self.notes.new_tasks
    }

    /// Signals that arrived meanwhile (SIGSTOP, which can't be blocked); they were taken from
    /// the task and have to be sent again.
    #[must_use]
    pub fn deferred_signals(&self) -> &[i32] {
        &self.notes.deferred_signals
    }
}

fn wait_stop(tid: Pid) -> Result<Stop, InjectionError> {
    ptrace::wait(tid, true).and_then(|stop| stop.ok_or(Errno::CHILD)).map_err(kernel(tid, "wait for a stop"))
}

fn is_fault(signal: i32) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGILL | libc::SIGBUS | libc::SIGTRAP | libc::SIGFPE)
}

/// Makes one system call in a stopped task that was seized with
/// [`Options::SYSCALL_GOOD`](ptrace::Options::SYSCALL_GOOD), by way of the `syscall`
/// instruction at `instruction`. Raises no signal in the target, unlike a batch; takes about
/// twice as long. Registers are put back.
///
/// # Errors
/// `Call` with the call's own error, or see [`InjectionError`].
pub fn single_call(tid: Pid, instruction: u64, number: i64, arguments: [u64; 6]) -> Result<u64, InjectionError> {
    let saved = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?;
    let mask = ptrace::signal_mask(tid).map_err(kernel(tid, "read the signal mask"))?;
    ptrace::set_signal_mask(tid, BATCH_SIGNAL_MASK).map_err(kernel(tid, "block signals"))?;
    let mut registers = saved;
    registers.rip = instruction;
    registers.rax = number.cast_unsigned();
    registers.orig_rax = u64::MAX;
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
    ptrace::set_registers(tid, &registers).map_err(kernel(tid, "set registers"))?;
    let mut syscall_stops = 0;
    while syscall_stops < 2 {
        ptrace::resume_to_syscall(tid).map_err(kernel(tid, "start a call"))?;
        let stop = wait_stop(tid)?;
        if stop.is_end() {
            return Err(InjectionError::Ended { tid: tid.as_raw_nonzero().get(), stop });
        }
        syscall_stops += usize::from(stop == Stop::Syscall);
    }
    let result = ptrace::registers(tid).map_err(kernel(tid, "read registers"))?.rax;
    ptrace::set_registers(tid, &saved).map_err(kernel(tid, "restore registers"))?;
    ptrace::set_signal_mask(tid, mask).map_err(kernel(tid, "restore the signal mask"))?;
    match result.cast_signed() {
        error @ -4095..0 => Err(InjectionError::Call {
            tid: tid.as_raw_nonzero().get(),
            number,
            index: 0,
            source: Errno::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO)),
        }),
        _ => Ok(result),
    }
}

/// Maps an engine area in the process of a stopped task, at `wanted` if nothing is there.
///
/// # Errors
/// As for [`single_call`].
pub fn map_area(tid: Pid, memory: &File, instruction: u64, wanted: u64) -> Result<EngineArea, InjectionError> {
    let readable = u64::from((libc::PROT_READ | libc::PROT_WRITE).unsigned_abs());
    let executable = u64::from((libc::PROT_READ | libc::PROT_EXEC).unsigned_abs());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |address, flags: i32| {
        let flags = u64::from(flags.unsigned_abs());
        let arguments = [address, AREA_BYTES, readable, flags, u64::MAX, 0];
        single_call(tid, instruction, libc::SYS_mmap, arguments)
    };
    let start = match map(wanted, flags | libc::MAP_FIXED_NOREPLACE) {
        Err(InjectionError::Call { source: Errno::EXIST, .. }) => map(0, flags)?,
        other => other?,
    };
    let arguments = [start, CODE_BYTES, executable, 0, 0, 0];
    single_call(tid, instruction, libc::SYS_mprotect, arguments)?;
    let area = EngineArea { start };
    area.write_code(memory).map_err(kernel(tid, "write the engine area"))?;
    Ok(area)
}

#[cfg(test)]
#[path = "injection_tests.rs"]
mod tests;
