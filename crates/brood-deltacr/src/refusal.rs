//! Making refusals: every one names the process, what it is about and why.

use crate::error::{Error, Refusal, RefusalKind};
use crate::tree::StoppedProcess;

pub(crate) fn refuse(
    process: &StoppedProcess,
    descriptor: Option<i32>,
    kind: RefusalKind,
    reason: impl Into<String>,
) -> Error {
    let name = process.status.name.clone();
    Error::Refused(Box::new(Refusal { pid: process.inside, name, descriptor, kind, reason: reason.into() }))
}
