//! What each command does.

pub mod attach;
pub mod bench;
pub mod checkpoint;
pub mod copy;
pub mod create;
pub mod exec;
pub mod follow;
pub mod host;
pub mod key;
pub mod kill;
pub mod list;
pub mod network;
pub mod pause;
pub mod port_forward;
pub mod squeeze;
pub mod template;
pub mod tree;

use std::process::ExitCode;

use brood_api::{ApiError, ErrorBody};
use brood_sandbox::ids::TemplateName;

use crate::arguments::Global;
use crate::failure::{self, PartlyFailed};
use crate::settings::Settings;

/// What every command is given.
#[derive(Debug)]
pub struct Context {
    /// Options that every command has.
    pub global: Global,
    /// The settings in force.
    pub settings: Settings,
}

impl Context {
    /// A client whose daemon answers.
    ///
    /// # Errors
    /// When no daemon runs and none may or can be started.
    pub async fn client(&self) -> anyhow::Result<brood_api::Client> {
        crate::connect::connect(&self.settings, self.global.no_spawn).await
    }
}

/// A template's name, checked before anything is asked of the daemon.
fn template_name(text: &str) -> anyhow::Result<TemplateName> {
    Ok(text.parse::<TemplateName>()?)
}

/// Goes through several objects, reports each failure on its own and ends with one if there was any.
#[derive(Debug, Default)]
struct Each {
    total: usize,
    failed: Vec<serde_json::Value>,
}

impl Each {
    /// Takes one result; a failure is printed at once, unless JSON is wanted.
    fn take<T>(&mut self, object: &str, json: bool, result: Result<T, ApiError>) -> Option<T> {
        self.total += 1;
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let body = match &error {
                    ApiError::Remote(body) => body.clone(),
                    other => ErrorBody::new(brood_api::error::ErrorCode::Internal, other.to_string()),
                };
                self.failed.push(serde_json::json!({ "object": object, "error": body }));
                if !json {
                    eprint!("{}", failure::text(&error.into()));
                }
                None
            }
        }
    }

    fn end(self) -> failure::Outcome {
        if self.failed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(PartlyFailed { failed: self.failed.len(), total: self.total }.into())
    }
}
