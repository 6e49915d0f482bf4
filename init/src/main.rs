//! PID 1 of a sandbox.
//!
//! It runs in fresh namespaces that the daemon made, enters the root that the daemon mounted,
//! starts tool calls and reaps what dies. It keeps all capabilities inside its user namespace,
//! which is also what keeps hostile code from tracing it: tool calls have fewer. Its only input is
//! the control socket; when that closes, the daemon is gone, and the sandbox ends with it.
//!
//! No standard library, no allocator, no thread: its private memory is a stack, a few tables and
//! the message in hand.
#![no_std]
#![no_main]

mod control;
mod enter;
mod processes;
mod spawn;
mod sys;

use brood_init_protocol::{Failed, Header, Kind, Signal, Spawned, Step, wire};

use control::{Control, Message};
use processes::Processes;
use sys::{Errno, linux, syscall};

/// The kernel starts the program here, with the arguments on the stack; none of them is used.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    core::arch::naked_asm!("xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym main)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(70)
}

/// What went wrong, and where.
pub struct Failure {
    step: Step,
    errno: Errno,
}

impl Failure {
    /// For `map_err`.
    fn at(step: Step) -> impl Fn(Errno) -> Self {
        move |errno| Self { step, errno }
    }
}

/// What lives as long as PID 1 does.
struct Init {
    control: Control,
    processes: Processes,
    entered: Option<enter::Entered>,
}

extern "C" fn main() -> ! {
    let Some(child_signals) = prepare() else { sys::exit(71) };
    let control = Control::new();
    if control.send(Kind::Hello, 0, &[], None).is_err() {
        sys::exit(72);
    }
    let mut init = Init { control, processes: Processes::new(), entered: None };
    loop {
        let (message_waits, child_waits) = wait_for_input(child_signals);
        if child_waits {
            drain(child_signals);
            init.processes.reap(&init.control);
        }
        if message_waits {
            match init.control.receive() {
                Some(message) => init.handle(message),
                // The daemon is gone. What it watched over must not outlive it.
                None => end_everything(),
            }
        }
    }
}

/// Lets no signal be ignored: tool calls would inherit that, and the daemon ignores SIGPIPE.
fn reset_signal_actions() {
    // `struct sigaction` of zeros: the default action.
    let default = [0u64; 4];
    for signal in 1..=64u32 {
        // SAFETY: `default` outlives the call. SIGKILL and SIGSTOP refuse, which is fine.
        let _ = unsafe { syscall!(__NR_rt_sigaction, signal, &raw const default, 0, 8) };
    }
}

/// Blocks all signals and opens a descriptor that tells of dead children.
fn prepare() -> Option<i32> {
    let all = u64::MAX;
    // SAFETY: `all` outlives the call and is as long as the call is told.
    unsafe { syscall!(__NR_rt_sigprocmask, linux::SIG_SETMASK, &raw const all, 0, 8) }.ok()?;
    reset_signal_actions();
    // SAFETY: takes no pointers that matter.
    let _ = unsafe { syscall!(__NR_prctl, linux_raw_sys::prctl::PR_SET_DUMPABLE, 0) };
    // Whatever the daemon itself had inherited open must not reach the sandbox.
    // SAFETY: takes no pointers.
    let _ = unsafe { syscall!(__NR_close_range, 0, 2, 0) };
    // SAFETY: takes no pointers.
    let _ = unsafe { syscall!(__NR_close_range, brood_init_protocol::CONTROL_DESCRIPTOR + 1, u32::MAX, 0) };
    let child = 1u64 << (linux::SIGCHLD - 1);
    let flags = sys::SFD_CLOEXEC | sys::SFD_NONBLOCK;
    // SAFETY: `child` outlives the call and is as long as the call is told.
    let signals = unsafe { syscall!(__NR_signalfd4, -1isize, &raw const child, 8, flags) }.ok()? as i32;
    // Descriptors 0 to 2 must be taken, or a passed stream could land there and be overwritten
    // while a tool call's own streams are put in place.
    while occupy_lowest(signals)? < 2 {}
    // Behind 0 to 2 and the control socket, so that no `dup` in a child hits it.
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_fcntl, signals, linux::F_DUPFD_CLOEXEC, 4) }.ok().map(|fd| fd as i32)
}

fn occupy_lowest(descriptor: i32) -> Option<usize> {
    // SAFETY: takes no pointers.
    unsafe { syscall!(__NR_fcntl, descriptor, linux::F_DUPFD_CLOEXEC, 0) }.ok()
}

/// Waits until there is a message or a dead child.
fn wait_for_input(child_signals: i32) -> (bool, bool) {
    let poll = |fd| linux::pollfd { fd, events: linux::POLLIN as i16, revents: 0 };
    let mut polled = [poll(brood_init_protocol::CONTROL_DESCRIPTOR), poll(child_signals)];
    // SAFETY: the array outlives the call and is as long as the call is told.
    let ready = unsafe { syscall!(__NR_ppoll, polled.as_mut_ptr(), polled.len(), 0, 0, 0) };
    if ready.is_err() {
        return (false, false);
    }
    (polled[0].revents != 0, polled[1].revents != 0)
}

/// Reads away the notices about dead children; who died is asked of the kernel itself.
fn drain(child_signals: i32) {
    let mut notice = [0u8; 128 * 4];
    // SAFETY: the buffer outlives the call and is as long as the call is told.
    while unsafe { syscall!(__NR_read, child_signals, notice.as_mut_ptr(), notice.len()) }.is_ok_and(|n| n > 0) {}
}

fn end_everything() -> ! {
    // SAFETY: takes no pointers. The kernel kills all of the namespace when PID 1 exits anyhow;
    // this makes the end come a little earlier.
    let _ = unsafe { syscall!(__NR_kill, -1isize, linux::SIGKILL) };
    sys::exit(0)
}

impl Init {
    /// Carries a request out and answers it.
    fn handle(&mut self, message: Message) {
        let Header { kind, request, .. } = message.header;
        let outcome = match kind {
            Kind::Enter => self.enter(&message).map(|()| Answer::plain(Kind::Entered)),
            Kind::Spawn => self.spawn(&message),
            Kind::Signal => self.signal(&message).map(|()| Answer::plain(Kind::Done)),
            Kind::Track => self.track(&message).map(|()| Answer::plain(Kind::Done)),
            Kind::Exit => end_everything(),
            _ => Err(Failure { step: Step::Decode, errno: sys::EBADMSG }),
        };
        let sent = match outcome {
            Ok(answer) => {
                let body = &answer.body[..answer.body_bytes];
                let sent = self.control.send(answer.kind, request, body, answer.descriptor);
                if let Some(descriptor) = answer.descriptor {
                    sys::close(descriptor);
                }
                sent
            }
            Err(Failure { step, errno }) => {
                self.control.send(Kind::Failed, request, &Failed { step, errno: errno.0 }.encode(), None)
            }
        };
        if sent.is_err() {
            end_everything();
        }
    }

    fn enter(&mut self, message: &Message) -> Result<(), Failure> {
        if self.entered.is_some() {
            return Err(Failure { step: Step::Decode, errno: sys::EBADMSG });
        }
        self.entered = Some(enter::enter(message)?);
        Ok(())
    }

    fn spawn(&mut self, message: &Message) -> Result<Answer, Failure> {
        let Some(entered) = &self.entered else {
            return Err(Failure { step: Step::Decode, errno: sys::EBADMSG });
        };
        if self.processes.is_full() {
            return Err(Failure { step: Step::Track, errno: sys::ENOSPC });
        }
        let started = spawn::spawn(message, entered)?;
        self.processes.track(started.pid);
        let mut answer = Answer::plain(Kind::Spawned);
        let Spawned { pid } = Spawned { pid: started.pid };
        answer.body[..4].copy_from_slice(&pid.to_le_bytes());
        answer.body_bytes = 4;
        answer.descriptor = started.terminal_master;
        Ok(answer)
    }

    fn signal(&self, message: &Message) -> Result<(), Failure> {
        let failed = Failure::at(Step::FindProcess);
        let signal = Signal::decode(message.body()).ok_or(sys::EBADMSG).map_err(&failed)?;
        // Only a process that has not been reaped yet: its number cannot have been given to another.
        if !self.processes.contains(signal.pid) {
            return Err(failed(sys::ESRCH));
        }
        let target = if signal.group { -(signal.pid as isize) } else { signal.pid as isize };
        // SAFETY: takes no pointers.
        unsafe { syscall!(__NR_kill, target, signal.signal) }.map_err(failed).map(|_| ())
    }

    fn track(&mut self, message: &Message) -> Result<(), Failure> {
        let mut reader = wire::Reader::new(message.body());
        while let Some(pid) = reader.u32() {
            if self.processes.is_full() {
                return Err(Failure { step: Step::Track, errno: sys::ENOSPC });
            }
            self.processes.track(pid);
        }
        // Some of them may have died before they were known.
        self.processes.reap(&self.control);
        Ok(())
    }
}

/// An answer under way.
struct Answer {
    kind: Kind,
    body: [u8; 16],
    body_bytes: usize,
    descriptor: Option<i32>,
}

impl Answer {
    fn plain(kind: Kind) -> Self {
        Self { kind, body: [0; 16], body_bytes: 0, descriptor: None }
    }
}
