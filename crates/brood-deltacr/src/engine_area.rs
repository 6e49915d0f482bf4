//! The engine area of each process: made once, checked before use, left in place.

use brood_kernel::injection::{self, Batch, BatchResults, EngineArea, InjectionError};
use brood_kernel::{maps, process_memory, ptrace};
use rustix::process::Pid;

use crate::error::{Error, Result, kernel};
use crate::tree::{StoppedProcess, StoppedThread};
use crate::words::u64_at;

/// Where the area goes if nothing else is there: far below the mappings that the kernel places
/// from the top, far above heaps.
pub const WANTED_ADDRESS: u64 = 0x7000_0000_0000;
/// Offset of the pointer to the running critical section in a restartable-sequences area.
const CRITICAL_SECTION_OFFSET: u64 = 8;
/// Bytes of the description of a critical section.
const CRITICAL_SECTION_BYTES: usize = 32;

/// The area that a child has from its parent by the fork.
pub(crate) fn inherited(process: &StoppedProcess) -> Option<EngineArea> {
    let area = EngineArea { start: WANTED_ADDRESS };
    process.memory.as_ref().is_some_and(|memory| area.has_code(memory)).then_some(area)
}

/// Maps the area if the process hasn't got it (any more); tells whether it was mapped. That
/// happens in new processes and in those that executed a program.
pub(crate) fn ensure(
    process: &StoppedProcess,
    known: Option<EngineArea>,
    syscall_offset: u64,
    buffer: &mut Vec<u8>,
) -> Result<(EngineArea, bool)> {
    let leader = leader(process)?;
    if let Some(area) = known
        && answers(process, leader, area)?
    {
        return Ok((area, false));
    }
    let mappings = maps::read(process.pid, buffer).map_err(kernel(process.pid, "read mappings"))?;
    let vdso = mappings.iter().find(|mapping| &*mapping.name == "[vdso]");
    let malformed = Error::Malformed { pid: process.pid.as_raw_nonzero().get(), what: "the vdso" };
    let instruction = vdso.ok_or(malformed)?.start + syscall_offset;
    Ok((injection::map_area(leader.tid, process.memory()?, instruction, WANTED_ADDRESS)?, true))
}

/// Whether code runs in the area. What the process did to its mappings shows here.
fn answers(process: &StoppedProcess, leader: &StoppedThread, area: EngineArea) -> Result<bool> {
    let mut probe = [0_u8; 1];
    let code = process_memory::read_exact(process.memory()?, area.start, &mut probe);
    let table = process_memory::read_exact(process.memory()?, area.end() - 1, &mut probe);
    if code.is_err() || table.is_err() {
        return Ok(false);
    }
    let mut batch = Batch::new(area);
    batch.call(libc::SYS_getpid, &[]);
    match run(process, leader, &batch) {
        Ok(_) => Ok(true),
        Err(Error::Injection(InjectionError::Fault { .. })) => {
            ptrace::set_registers(leader.tid, &leader.registers).map_err(kernel(leader.tid, "set registers"))?;
            ptrace::set_signal_mask(leader.tid, leader.signal_mask)
                .map_err(kernel(leader.tid, "set the signal mask"))?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn leader(process: &StoppedProcess) -> Result<&StoppedThread> {
    let malformed = Error::Malformed { pid: process.pid.as_raw_nonzero().get(), what: "the threads" };
    process.threads.first().ok_or(malformed)
}

/// Runs a batch in a thread and sends signals again that were taken from it meanwhile.
pub(crate) fn run(process: &StoppedProcess, thread: &StoppedThread, batch: &Batch) -> Result<BatchResults> {
    let results = batch.run(thread.tid, process.memory()?)?;
    for signal in results.deferred_signals() {
        send_again(process.pid, thread.tid, *signal);
    }
    Ok(results)
}

pub(crate) fn send_again(pid: Pid, tid: Pid, signal: i32) {
    let Some(signal) = rustix::process::Signal::from_named_raw(signal) else { return };
    if let Err(error) = rustix::process::kill_process(pid, signal) {
        tracing::warn!(?tid, ?signal, %error, "a signal could not be sent again");
    }
}

/// Moves threads that stand inside a restartable sequence to its abort handler, as the kernel
/// would have done had they been preempted. Running a batch would make it forget the sequence.
pub(crate) fn leave_restartable_sequences(process: &mut StoppedProcess) -> Result<()> {
    let mut updates = Vec::new();
    for (index, thread) in process.threads.iter().enumerate() {
        let rseq = ptrace::rseq_configuration(thread.tid).map_err(kernel(thread.tid, "read restartable sequences"))?;
        if rseq.address == 0 {
            continue;
        }
        let mut pointer = [0; 8];
        let memory = process.memory()?;
        if process_memory::read_exact(memory, rseq.address + CRITICAL_SECTION_OFFSET, &mut pointer).is_err() {
            continue;
        }
        let section_address = u64::from_le_bytes(pointer);
        let mut section = [0; CRITICAL_SECTION_BYTES];
        if section_address == 0 || process_memory::read_exact(memory, section_address, &mut section).is_err() {
            continue;
        }
        let (start, length, abort) = (u64_at(&section, 8), u64_at(&section, 16), u64_at(&section, 24));
        if thread.registers.rip.wrapping_sub(start) < length {
            updates.push((index, abort));
        }
    }
    for (index, abort) in updates {
        let thread = &mut process.threads[index];
        thread.registers.rip = abort;
        ptrace::set_registers(thread.tid, &thread.registers).map_err(kernel(thread.tid, "set registers"))?;
    }
    Ok(())
}
