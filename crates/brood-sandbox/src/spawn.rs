//! From a request to the message that PID 1 carries out.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use brood_init_protocol::spawn::{GROUPS_MAX, Spawn};
use brood_init_protocol::{Failed, Step, wire};
use rustix::fs::{Gid, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::SandboxId;
use crate::limits::ARGUMENT_BYTES_MAX;
use crate::model::ProcessRequest;
use crate::process::Streams;
use crate::sandbox::{Disk, Sandbox};
use crate::storage;
use crate::users::{self, Identity};

/// Where commands are looked up when the environment does not say: as in Docker.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const UMASK: u32 = 0o022;

/// A message for PID 1, and both ends of the pipes unless a terminal is wanted.
pub(crate) struct Prepared {
    pub(crate) body: Vec<u8>,
    pub(crate) pipes: Option<(Streams, [OwnedFd; 3])>,
}

/// Checks the request and prepares everything that does not need PID 1.
pub(crate) fn prepare(sandbox: &Sandbox, disk: &Disk, request: &ProcessRequest) -> Result<Prepared> {
    check(request)?;
    let template = &sandbox.template.info;
    let user = request.user.as_deref().unwrap_or(&template.user);
    let identity = identify(disk, user)?;
    let environment = environment(sandbox, request, &identity);
    let directory = request.working_directory.as_deref().unwrap_or(&template.working_directory);
    let body = encode(request, &identity, directory, &environment)?;
    let pipes =
        if request.terminal.is_some() { None } else { Some(pipes(request.stdin, sandbox.host_ids(&identity))?) };
    Ok(Prepared { body, pipes })
}

fn check(request: &ProcessRequest) -> Result<()> {
    let invalid = |message: &str| Err(EngineError::new(ErrorKind::Invalid, message));
    let Some(command) = request.arguments.first() else {
        return invalid("no command given: name it after --");
    };
    if command.is_empty() {
        return invalid("the command is an empty text");
    }
    if let Some(name) = request.environment.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(EngineError::new(ErrorKind::Invalid, format!("{name:?} cannot be the name of a variable")));
    }
    let directory = request.working_directory.as_deref();
    if directory.is_some_and(|directory| !directory.starts_with('/')) {
        return invalid("the working directory must be absolute");
    }
    Ok(())
}

fn identify(disk: &Disk, user: &str) -> Result<Identity> {
    // The common case must not cost reading two files.
    if matches!(user, "root" | "0") {
        let root = |text: &str| text.to_owned();
        return Ok(Identity { uid: 0, gid: 0, groups: vec![0], home: root("/root"), name: root("root") });
    }
    users::look_up(&storage::root_of(disk)?, user)
}

fn environment(sandbox: &Sandbox, request: &ProcessRequest, identity: &Identity) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
    set("PATH", PATH_DEFAULT);
    set("HOME", &identity.home);
    set("USER", &identity.name);
    set("HOSTNAME", &sandbox.host_name);
    if request.terminal.is_some() {
        set("TERM", "xterm");
    }
    for layer in [&sandbox.template.info.environment, &sandbox.request.environment, &request.environment] {
        environment.extend(layer.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    environment
}

fn encode(
    request: &ProcessRequest,
    identity: &Identity,
    directory: &str,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let bytes = texts_bytes(request, directory, environment);
    if bytes > ARGUMENT_BYTES_MAX {
        let message = format!("arguments and environment are {bytes} bytes, {ARGUMENT_BYTES_MAX} is the most");
        return Err(EngineError::new(ErrorKind::Invalid, message));
    }
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut groups = [0; GROUPS_MAX];
    let group_count = identity.groups.len().min(GROUPS_MAX);
    groups[..group_count].copy_from_slice(&identity.groups[..group_count]);
    let spawn = Spawn {
        uid: identity.uid,
        gid: identity.gid,
        groups,
        group_count: count(group_count),
        umask: UMASK,
        terminal: request.terminal.map(|size| (size.columns, size.rows)),
        argument_count: count(request.arguments.len()),
        environment_count: count(environment.len()),
    };
    let command = &request.arguments[0];
    let path = environment.get("PATH").map_or(PATH_DEFAULT, String::as_str);
    let search = if command.contains('/') { "" } else { path };
    let mut body = vec![0; bytes + search.len() + 512];
    let mut writer = wire::Writer::new(&mut body);
    let written = (|| {
        spawn.encode(&mut writer)?;
        writer.text(directory.as_bytes())?;
        writer.text(search.as_bytes())?;
        for argument in &request.arguments {
            writer.text(argument.as_bytes())?;
        }
        for (name, value) in environment {
            writer.text(format!("{name}={value}").as_bytes())?;
        }
        Some(writer.written())
    })();
    // There is room enough, so only a zero byte can be in the way.
    let written = written.ok_or_else(|| {
        EngineError::new(ErrorKind::Invalid, "arguments, environment and paths cannot hold zero bytes")
    })?;
    body.truncate(written);
    Ok(body)
}

fn texts_bytes(request: &ProcessRequest, directory: &str, environment: &BTreeMap<String, String>) -> usize {
    let arguments: usize = request.arguments.iter().map(|argument| argument.len() + 1).sum();
    let variables: usize = environment.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    arguments + variables + directory.len() + 1
}

/// Our ends and the process's. Only ours never block; the process gets ordinary pipes, which belong
/// to its user, so that it can open `/dev/stdout` again.
pub(crate) fn pipes(stdin: bool, (uid, gid): (u32, u32)) -> Result<(Streams, [OwnedFd; 3])> {
    let failed = |error: Errno| EngineError::system("cannot make pipes", error);
    let make = || pipe_with(PipeFlags::CLOEXEC).map_err(failed);
    let (input_read, input_write) = make()?;
    let (output_read, output_write) = make()?;
    let (error_read, error_write) = make()?;
    for pipe in [&input_read, &output_read, &error_read] {
        rustix::fs::fchown(pipe, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(failed)?;
    }
    let output = nonblocking(output_read).map_err(failed)?;
    let error = nonblocking(error_read).map_err(failed)?;
    // Without input the process sees its end at once.
    let input = if stdin { Some(nonblocking(input_write).map_err(failed)?) } else { None };
    Ok((Streams::Pipes { input, output, error }, [input_read, output_write, error_write]))
}

pub(crate) fn nonblocking(descriptor: OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(descriptor.as_fd())?;
    rustix::fs::fcntl_setfl(descriptor.as_fd(), flags | OFlags::NONBLOCK)?;
    Ok(descriptor)
}

/// What PID 1's failure means to the caller.
pub(crate) fn failure(id: &SandboxId, request: &ProcessRequest, failed: Failed) -> EngineError {
    let command: String = request.arguments.first().map(|c| c.chars().take(200).collect()).unwrap_or_default();
    #[expect(clippy::cast_possible_wrap, reason = "error numbers are below 4096")]
    let error = std::io::Error::from_raw_os_error(failed.errno as i32);
    let errno = Errno::from_io_error(&error);
    let (kind, message) = match (failed.step, errno) {
        (Step::Execute, Some(Errno::NOENT | Errno::NOTDIR)) => {
            (ErrorKind::CommandNotFound, format!("sandbox {id}: command {command:?} does not exist"))
        }
        (Step::Execute, Some(Errno::TOOBIG)) => {
            (ErrorKind::Invalid, format!("sandbox {id}: the arguments of {command:?} are too long"))
        }
        (Step::Execute, _) => {
            (ErrorKind::NotExecutable, format!("sandbox {id}: command {command:?} cannot be executed"))
        }
        (Step::WorkingDirectory, _) => {
            let directory = match &request.working_directory {
                Some(directory) => format!("working directory {directory:?}"),
                None => "the template's working directory".to_owned(),
            };
            (ErrorKind::Invalid, format!("sandbox {id}: {directory} cannot be entered; make it, or give another one"))
        }
        (Step::Clone, Some(Errno::AGAIN)) => {
            (ErrorKind::Exhausted, format!("sandbox {id} has as many tasks as it may: create it with a higher --pids"))
        }
        (step, _) => (ErrorKind::Internal, format!("sandbox {id}: {command:?} cannot be started ({step:?})")),
    };
    EngineError::caused_by(kind, message, error)
}
