//! From failures to messages and exit codes.

use std::process::ExitCode;

use brood_api::error::ErrorCode;
use brood_api::{ApiError, ErrorBody};

/// What a command ends with when it did not fail.
pub type Outcome = anyhow::Result<ExitCode>;

/// Brood failed before or beside the command that it was to run.
pub const CODE_ENGINE: u8 = 125;
const CODE_NOT_EXECUTABLE: u8 = 126;
const CODE_NOT_FOUND: u8 = 127;

/// Several objects were asked for and some failed; each was reported already.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {total} failed")]
pub struct PartlyFailed {
    pub failed: usize,
    pub total: usize,
}

/// Prints a failure and gives its exit code. `runs_a_command` tells whether the exit code is shared
/// with a command inside, so that our own failures must keep to 125 and above.
pub fn report(error: &anyhow::Error, json: bool, runs_a_command: bool) -> ExitCode {
    let body = remote(error);
    if error.downcast_ref::<PartlyFailed>().is_none() {
        if json {
            let body = body.cloned().unwrap_or_else(|| ErrorBody::new(ErrorCode::Internal, format!("{error:#}")));
            eprintln!("{}", serde_json::json!({ "error": body }));
        } else {
            eprint!("{}", text(error));
        }
    }
    if !runs_a_command {
        return ExitCode::FAILURE;
    }
    ExitCode::from(match body.map(|body| body.code) {
        Some(ErrorCode::NotExecutable) => CODE_NOT_EXECUTABLE,
        Some(ErrorCode::CommandNotFound) => CODE_NOT_FOUND,
        _ => CODE_ENGINE,
    })
}

/// A failure as people read it: what, why, and what to do.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = format!("brood: {error:#}\n");
    if let Some(remedy) = remote(error).and_then(|body| body.remedy.as_deref()) {
        text.push_str("       ");
        text.push_str(remedy);
        text.push('\n');
    }
    text
}

fn remote(error: &anyhow::Error) -> Option<&ErrorBody> {
    error.chain().find_map(|cause| {
        cause.downcast_ref::<ErrorBody>().or_else(|| match cause.downcast_ref::<ApiError>() {
            Some(ApiError::Remote(body)) => Some(body),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_see_their_usual_codes() {
        let code = |code| {
            let error = anyhow::Error::from(ApiError::Remote(ErrorBody::new(code, "x")));
            format!("{:?}", report(&error, true, true))
        };
        assert_eq!(code(ErrorCode::CommandNotFound), format!("{:?}", ExitCode::from(127)));
        assert_eq!(code(ErrorCode::NotExecutable), format!("{:?}", ExitCode::from(126)));
        assert_eq!(code(ErrorCode::NotFound), format!("{:?}", ExitCode::from(125)));
    }

    #[test]
    fn the_remedy_is_told() {
        let error = anyhow::Error::from(ErrorBody::new(ErrorCode::NotFound, "no x").remedied_by("make x"));
        assert_eq!(text(&error), "brood: no x\n       make x\n");
    }
}
