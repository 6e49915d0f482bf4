//! Input for processes.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use brood_sandbox::process::Process;

use super::Envd;
use super::messages::{Empty, ProcessInput, SelectRequest, SendInputRequest, StreamInputRequest};
use super::process::{find, find_live};
use crate::e2b::connect::{Code, Incoming, RpcError};

pub(super) async fn send(envd: Envd, message: SendInputRequest) -> Result<Empty, RpcError> {
    let process = find_live(&envd, message.process.as_ref())?;
    write(&process, message.input.unwrap_or_default()).await?;
    Ok(Empty {})
}

pub(super) fn close(envd: &Envd, message: &SelectRequest) -> Result<Empty, RpcError> {
    let process = find(envd, message.process.as_ref())?;
    if process.info().terminal {
        return Err(RpcError::new(Code::Unknown, "a terminal has no standard input that could be closed: send 0x04"));
    }
    process.close_stdin();
    Ok(Empty {})
}

/// One process is named first; then comes its input.
pub(super) async fn stream(envd: Envd, mut incoming: Incoming) -> Result<Empty, RpcError> {
    let mut process: Option<Arc<Process>> = None;
    while let Some(message) = incoming.next::<StreamInputRequest>().await? {
        if let Some(start) = message.start {
            process = Some(find_live(&envd, start.process.as_ref())?);
        } else if let Some(data) = message.data {
            let process =
                process.as_ref().ok_or_else(|| RpcError::invalid("input comes before its process is named"))?;
            write(process, data.input.unwrap_or_default()).await?;
        } else if message.keepalive.is_none() {
            return Err(RpcError::new(Code::Unimplemented, "the message holds nothing"));
        }
    }
    Ok(Empty {})
}

async fn write(process: &Process, input: ProcessInput) -> Result<(), RpcError> {
    let internal = |message: &str| RpcError::new(Code::Internal, message);
    let bytes = match (input.stdin, input.pty, process.info().terminal) {
        (Some(bytes), _, false) | (None, Some(bytes), true) => bytes,
        (Some(_), _, true) => return Err(internal("the process has a terminal: send the input to that")),
        (None, Some(_), false) => return Err(internal("the process has no terminal")),
        (None, None, _) => return Err(RpcError::new(Code::Unimplemented, "the message holds no input")),
    };
    let mut left = &bytes[..];
    while !left.is_empty() {
        match process.write_stdin(left) {
            Ok(taken) => left = &left[taken..],
            // A process that does not read keeps its client waiting, and nobody else.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|context| process.poll_stdin(context)).await;
            }
            Err(_) if process.info().exit.is_some() => {
                return Err(RpcError::new(Code::NotFound, "the process has ended"));
            }
            Err(_) => return Err(internal("the process has no standard input, or has closed it")),
        }
    }
    Ok(())
}
