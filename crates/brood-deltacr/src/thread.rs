//! The state of one thread: registers, signal state, what the C library registered, who it is.

use std::sync::Arc;

use brood_kernel::injection::{Batch, BatchResults, CallIndex, Output};
use brood_kernel::ptrace::{self, Registers, RseqConfiguration, SignalInformation};
use brood_kernel::scheduling;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::credentials::{self, Credentials, CredentialsQuery};
use crate::error::{NamespacePid, Result, kernel};
use crate::interrupted;
use crate::proc_files::Status;
use crate::tree::StoppedThread;
use crate::words::{u32_at, u64_at};

/// Bytes of a thread's name with its end.
const NAME_BYTES: usize = 16;
/// Bytes of the kernel's `stack_t`.
const ALTERNATE_STACK_BYTES: usize = 24;
/// Bytes of `struct sched_attr` that are asked for (its first version).
const SCHEDULING_BYTES: usize = scheduling::ATTRIBUTES_BYTES;
/// Bytes of a processor mask: 1,024 processors.
const PROCESSORS_BYTES: usize = 128;
/// Bytes of the head of a robust futex list, the only length that the kernel accepts.
const ROBUST_LIST_BYTES: u64 = 24;
/// `SS_ONSTACK` in a `stack_t`: reported while a handler runs on it, refused when set.
const STACK_IN_USE: u32 = 1;
/// Seccomp filters of a thread that are looked for before it is refused.
const SECCOMP_FILTERS_MAX: usize = 64;

/// Everything about a thread that a copy of it needs.
#[derive(Debug, Clone)]
pub struct ThreadImage {
    /// As the sandbox sees it.
    pub tid: NamespacePid,
    /// General registers, as the thread was stopped.
    pub registers: Registers,
    /// The XSAVE area.
    pub extended_state: Arc<[u8]>,
    /// Blocked signals, as bits.
    pub signal_mask: u64,
    /// Signals that wait for this thread.
    pub pending: Vec<SignalInformation>,
    /// Its name, padded with zeros.
    pub name: [u8; NAME_BYTES],
    /// Where the kernel clears the thread id at exit.
    pub tid_address: u64,
    /// Head of the list of robust futexes.
    pub robust_list: u64,
    /// Restartable sequences.
    pub rseq: RseqConfiguration,
    /// Alternate signal stack, as the kernel keeps it.
    pub alternate_stack: [u8; ALTERNATE_STACK_BYTES],
    /// Who it is.
    pub credentials: Credentials,
    /// Scheduling policy and niceness, as the kernel keeps them.
    pub scheduling: [u8; SCHEDULING_BYTES],
    /// Processors that it may run on.
    pub processors: Vec<u8>,
    /// Timer slack in nanoseconds.
    pub timer_slack_nanoseconds: u64,
    /// Seccomp filters, oldest first, as programs of eight-byte instructions.
    pub seccomp_filters: Vec<Vec<u8>>,
    /// What the kernel reports of all that can't be taken back, to compare.
    pub(crate) identity: Box<str>,
}

/// Questions about a thread in a batch that runs in it.
#[derive(Debug)]
pub(crate) struct ThreadQuery {
    alternate_stack: Output,
    tid_address: Output,
    robust_list: Output,
    name: Output,
    credentials: CredentialsQuery,
    scheduling: Output,
    processors: Output,
    processors_length: CallIndex,
    timer_slack: CallIndex,
}

impl ThreadQuery {
    pub(crate) fn ask(batch: &mut Batch) -> Self {
        let alternate_stack = batch.output(ALTERNATE_STACK_BYTES);
        batch.call(libc::SYS_sigaltstack, &[0, alternate_stack.address]);
        let tid_address = batch.output(8);
        batch.call(libc::SYS_prctl, &[libc::PR_GET_TID_ADDRESS as u64, tid_address.address]);
        let robust_list = batch.output(16);
        batch.call(libc::SYS_get_robust_list, &[0, robust_list.address, robust_list.address + 8]);
        let name = batch.output(NAME_BYTES);
        batch.call(libc::SYS_prctl, &[libc::PR_GET_NAME as u64, name.address]);
        let credentials = CredentialsQuery::ask(batch);
        let scheduling = batch.output(SCHEDULING_BYTES);
        batch.attempt(libc::SYS_sched_getattr, &[0, scheduling.address, SCHEDULING_BYTES as u64, 0]);
        let processors = batch.output(PROCESSORS_BYTES);
        let processors_length =
            batch.attempt(libc::SYS_sched_getaffinity, &[0, PROCESSORS_BYTES as u64, processors.address]);
        let timer_slack = batch.call(libc::SYS_prctl, &[libc::PR_GET_TIMERSLACK as u64]);
        Self {
            alternate_stack,
            tid_address,
            robust_list,
            name,
            credentials,
            scheduling,
            processors,
            processors_length,
            timer_slack,
        }
    }

    /// Puts the answers together with what a tracer sees. `None` if the thread has too many
    /// supplementary groups.
    pub(crate) fn read(
        &self,
        results: &BatchResults,
        thread: &StoppedThread,
        status: &Status,
    ) -> Result<Option<ThreadImage>> {
        let tid = thread.tid;
        let Some(credentials) = self.credentials.read(results, status) else { return Ok(None) };
        let fixed = |output: Output| results.output(output);
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(fixed(self.name));
        let mut alternate_stack = [0; ALTERNATE_STACK_BYTES];
        alternate_stack.copy_from_slice(fixed(self.alternate_stack));
        let mut scheduling = [0; SCHEDULING_BYTES];
        scheduling.copy_from_slice(fixed(self.scheduling));
        let processors = results.result(self.processors_length).unwrap_or(0) as usize;
        Ok(Some(ThreadImage {
            tid: NamespacePid(status.inside.0),
            registers: thread.registers,
            extended_state: ptrace::extended_state(tid).map_err(kernel(tid, "read extended registers"))?.into(),
            signal_mask: thread.signal_mask,
            pending: ptrace::pending_signals(tid, false).map_err(kernel(tid, "read pending signals"))?,
            name,
            tid_address: u64_at(fixed(self.tid_address), 0),
            robust_list: u64_at(fixed(self.robust_list), 0),
            rseq: ptrace::rseq_configuration(tid).map_err(kernel(tid, "read restartable sequences"))?,
            alternate_stack,
            credentials,
            scheduling,
            processors: fixed(self.processors)[..processors.min(PROCESSORS_BYTES)].to_vec(),
            timer_slack_nanoseconds: results.result(self.timer_slack).unwrap_or(0),
            identity: status.identity.as_str().into(),
            seccomp_filters: if status.seccomp == 0 { Vec::new() } else { seccomp_filters(tid)? },
        }))
    }
}

fn seccomp_filters(tid: Pid) -> Result<Vec<Vec<u8>>> {
    let mut filters = Vec::new();
    for index in 0..SECCOMP_FILTERS_MAX {
        let program = match ptrace::seccomp_filter(tid, index) {
            Ok(program) => program,
            Err(Errno::NOENT) => break,
            Err(error) => return Err(kernel(tid, "read seccomp filters")(error)),
        };
        let instruction = |filter: &libc::sock_filter| {
            let [code_low, code_high] = filter.code.to_le_bytes();
            let [a, b, c, d] = filter.k.to_le_bytes();
            [code_low, code_high, filter.jt, filter.jf, a, b, c, d]
        };
        filters.push(program.iter().flat_map(instruction).collect());
    }
    filters.reverse();
    Ok(filters)
}

/// Restores what a thread registered with the kernel, in a batch that runs in it.
pub(crate) fn restore_registrations(batch: &mut Batch, image: &ThreadImage) {
    batch.call(libc::SYS_set_tid_address, &[image.tid_address]);
    batch.call(libc::SYS_set_robust_list, &[image.robust_list, ROBUST_LIST_BYTES]);
    restore_alternate_stack(batch, image);
    if image.rseq.address != 0 {
        restore_rseq(batch, image);
    }
    restore_name(batch, image);
    batch.attempt(libc::SYS_prctl, &[libc::PR_SET_TIMERSLACK as u64, image.timer_slack_nanoseconds]);
    if !image.processors.is_empty() {
        let processors = batch.data(&image.processors);
        batch.attempt(libc::SYS_sched_setaffinity, &[0, image.processors.len() as u64, processors]);
    }
}

/// Sets the thread's name.
pub(crate) fn restore_name(batch: &mut Batch, image: &ThreadImage) {
    let name = batch.data(&image.name);
    batch.call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
}

/// Installs the thread's filters and makes it who it was. The last calls of its restore: it
/// loses its capabilities.
pub(crate) fn restore_identity(batch: &mut Batch, image: &ThreadImage) {
    /// `SECCOMP_SET_MODE_FILTER`.
    const SET_FILTER: u64 = 1;
    for filter in &image.seccomp_filters {
        let program = batch.data(filter);
        let mut header = ((filter.len() / 8) as u64).to_le_bytes().to_vec();
        header.extend(program.to_le_bytes());
        let header = batch.data(&header);
        batch.call(libc::SYS_seccomp, &[SET_FILTER, 0, header]);
    }
    credentials::restore(batch, &image.credentials);
}

/// Ends a registration of restartable sequences that isn't the image's. To be done before memory
/// is put back: the kernel kills a thread whose registered area is unmapped.
pub(crate) fn drop_foreign_rseq(batch: &mut Batch, image: &ThreadImage, rseq_now: &RseqConfiguration) {
    const UNREGISTER: u64 = 1;
    if rseq_now.address != 0 && *rseq_now != image.rseq {
        let arguments = [rseq_now.address, u64::from(rseq_now.length_bytes), UNREGISTER, u64::from(rseq_now.signature)];
        batch.call(libc::SYS_rseq, &arguments);
    }
}

/// Puts back what a living thread may have changed of its registrations. `rseq_now` is its
/// present restartable-sequences registration.
pub(crate) fn reset_registrations(batch: &mut Batch, image: &ThreadImage, rseq_now: &RseqConfiguration) {
    batch.call(libc::SYS_set_tid_address, &[image.tid_address]);
    batch.call(libc::SYS_set_robust_list, &[image.robust_list, ROBUST_LIST_BYTES]);
    restore_alternate_stack(batch, image);
    if image.rseq.address != 0 && *rseq_now != image.rseq {
        restore_rseq(batch, image);
    }
    restore_name(batch, image);
    batch.attempt(libc::SYS_prctl, &[libc::PR_SET_TIMERSLACK as u64, image.timer_slack_nanoseconds]);
}

fn restore_alternate_stack(batch: &mut Batch, image: &ThreadImage) {
    let mut stack = image.alternate_stack;
    let flags = u32_at(&stack, 8) & !STACK_IN_USE;
    stack[8..12].copy_from_slice(&flags.to_le_bytes());
    let stack = batch.data(&stack);
    batch.call(libc::SYS_sigaltstack, &[stack, 0]);
}

fn restore_rseq(batch: &mut Batch, image: &ThreadImage) {
    let rseq = &image.rseq;
    batch.call(libc::SYS_rseq, &[rseq.address, u64::from(rseq.length_bytes), 0, u64::from(rseq.signature)]);
}

/// Sets what is set from outside: scheduling, which may take more rights than the thread has,
/// registers and the mask of blocked signals.
pub(crate) fn restore_registers(tid: Pid, image: &ThreadImage) -> Result<()> {
    if let Err(error) = scheduling::set_attributes(tid, &image.scheduling) {
        tracing::warn!(?tid, %error, "scheduling attributes could not be set");
    }
    ptrace::set_extended_state(tid, &image.extended_state).map_err(kernel(tid, "set extended registers"))?;
    ptrace::set_registers(tid, &interrupted::registers_for_copy(&image.registers))
        .map_err(kernel(tid, "set registers"))?;
    ptrace::set_signal_mask(tid, image.signal_mask).map_err(kernel(tid, "set the signal mask"))
}
