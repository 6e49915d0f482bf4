//! Starting PID 1: namespaces, control groups, user mapping, and the way into the root.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use brood_init_protocol::{Enter, Failed, Kind, Step};
use brood_kernel::spawn::{Namespaces, Spawn, SpawnedProgram, reap, spawn};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::cgroup::SandboxCgroup;
use crate::control::Control;
use crate::error::{EngineError, ErrorKind, Result};
use crate::limits::ENTER_TIMEOUT;
use crate::seccomp;

/// The program, built from `init/` together with this crate.
const INIT_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/brood-init"));
/// Ids that a sandbox has: 0 to 65535.
pub const ID_COUNT: u32 = 65536;

/// What tool calls may ever do inside their user namespace: Docker's default set without raw sockets,
/// which can forge what other sandboxes see on a shared network (capabilities(7) has the numbers).
const TOOL_CALL_CAPABILITIES: u64 = 1 // chown
    | 1 << 1 // dac_override
    | 1 << 3 // fowner
    | 1 << 4 // fsetid
    | 1 << 5 // kill
    | 1 << 6 // setgid
    | 1 << 7 // setuid
    | 1 << 8 // setpcap
    | 1 << 10 // net_bind_service
    | 1 << 18 // sys_chroot
    | 1 << 27 // mknod
    | 1 << 29 // audit_write
    | 1 << 31; // setfcap

/// Tool calls die of a full memory before PID 1 does.
const TOOL_CALL_OOM_SCORE: i32 = 500;

/// PID 1's program and the filter of tool calls, ready for use.
#[derive(Debug)]
pub(crate) struct Isolation {
    program: OwnedFd,
    seccomp: Vec<u8>,
    id_base: u32,
    open_files: u32,
}

/// A PID 1 that has entered its root.
#[derive(Debug)]
pub(crate) struct Init {
    pub(crate) pid: Pid,
    pub(crate) descriptor: OwnedFd,
    pub(crate) control: Control,
}

impl Isolation {
    /// `id_base` is the host id of the root inside.
    pub(crate) fn prepare(id_base: u32) -> Result<Self> {
        let failed = |error| EngineError::system("cannot prepare the program of PID 1", error);
        let program = sealed_program().map_err(failed)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let open_files = limit.maximum.unwrap_or(1 << 20).min(1 << 20);
        Ok(Self {
            program,
            seccomp: seccomp::program(),
            id_base,
            open_files: u32::try_from(open_files).unwrap_or(1024),
        })
    }

    /// Starts PID 1 in `cgroup` with `root` (a detached mount) as its root.
    ///
    /// # Errors
    /// With the step that failed; nothing is left running then.
    pub(crate) fn launch(&self, cgroup: &SandboxCgroup, root: BorrowedFd<'_>, host_name: &str) -> Result<Init> {
        let failed = |error| EngineError::system("cannot start PID 1 of the sandbox", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let request = Spawn {
            program: self.program.as_fd(),
            name: c"brood-init",
            control: theirs.as_fd(),
            callers_end: ours.as_fd(),
            namespaces: Namespaces::all(),
            cgroup: Some(cgroup.birth_group()),
        };
        let spawned = spawn(&request).map_err(failed)?;
        drop(theirs);
        let entered = self.bring_in(&spawned, cgroup, ours, root, host_name);
        let control = entered.inspect_err(|_error| end(&spawned.descriptor))?;
        let SpawnedProgram { pid, descriptor, .. } = spawned;
        Ok(Init { pid, descriptor, control })
    }

    fn bring_in(
        &self,
        spawned: &SpawnedProgram,
        cgroup: &SandboxCgroup,
        socket: UnixStream,
        root: BorrowedFd<'_>,
        host_name: &str,
    ) -> Result<Control> {
        let lost = |error| EngineError::system("PID 1 of the sandbox died while it started", error);
        cgroup.adopt(spawned.pid)?;
        self.map_ids(spawned.pid)?;
        // The byte that PID 1's gate waits for; the request may already stand behind it.
        std::io::Write::write_all(&mut &socket, &[0]).map_err(lost)?;
        let control = Control::new(socket);
        let enter = Enter {
            capability_bounds: TOOL_CALL_CAPABILITIES,
            tool_call_oom_score: TOOL_CALL_OOM_SCORE,
            open_files_soft: self.open_files,
            open_files_hard: self.open_files,
            host_name: host_name.as_bytes(),
            seccomp_program: &self.seccomp,
        };
        let mut body = vec![0; self.seccomp.len() + host_name.len() + 64];
        let too_long = || EngineError::new(ErrorKind::Internal, "the request to PID 1 does not fit");
        let length = enter.encode(&mut body).ok_or_else(too_long)?;
        let request = control.reserve();
        let _pending = control.send(request, Kind::Enter, &body[..length], &[root])?;
        rustix::net::sockopt::set_socket_timeout(&control, rustix::net::sockopt::Timeout::Recv, Some(ENTER_TIMEOUT))
            .map_err(|error| lost(error.into()))?;
        loop {
            let message = control.receive(true).map_err(lost)?;
            let message =
                message.ok_or_else(|| EngineError::new(ErrorKind::Internal, "PID 1 died while it started"))?;
            match message.header.kind {
                Kind::Hello => {}
                Kind::Entered => return Ok(control),
                _ => return Err(failure_to_enter(Failed::decode(&message.body))),
            }
        }
    }

    fn map_ids(&self, pid: Pid) -> Result<()> {
        let map = format!("0 {} {ID_COUNT}", self.id_base);
        for name in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{name}", pid.as_raw_nonzero()), &map).map_err(|error| {
                let message = format!("cannot map users {} to {}", self.id_base, self.id_base + ID_COUNT - 1);
                EngineError::system(message, error)
            })?;
        }
        Ok(())
    }
}

fn sealed_program() -> std::io::Result<OwnedFd> {
    // Sealed, so that nothing that runs inside can change it through /proc/1/exe.
    let file = rustix::fs::memfd_create("brood-init", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = INIT_PROGRAM;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A descriptor that is open for writing cannot be executed.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(OwnedFd::from(fs::File::open(path)?))
}

fn failure_to_enter(failed: Option<Failed>) -> EngineError {
    let Some(Failed { step, errno }) = failed else {
        return EngineError::new(ErrorKind::Internal, "PID 1 sent something that does not make sense");
    };
    let remedy = match step {
        Step::MountProc => ": the host's /proc must be fully visible (inside a container: unmask it)",
        Step::MountSys => ": the host's /sys must be fully visible (inside a container: unmask it)",
        _ => "",
    };
    let message = format!("the sandbox cannot be set up ({step:?}){remedy}");
    #[expect(clippy::cast_possible_wrap, reason = "error numbers are below 4096")]
    let error = std::io::Error::from_raw_os_error(errno as i32);
    EngineError::caused_by(ErrorKind::Unsupported, message, error)
}

/// Kills a PID 1 and, with it, everything in its namespace; returns when all are gone.
pub(crate) fn end(descriptor: &OwnedFd) {
    // It may be dead already.
    let _unused = pidfd_send_signal(descriptor, Signal::KILL);
    let _unused = reap(descriptor);
}
