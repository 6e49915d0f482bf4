//! `brood doctor`: what this host offers, what is missing, and how to mend it.
//!
//! Every probe looks only; none changes anything, needs a daemon or needs root, though some can say
//! more as root.

mod control_groups;
mod kernel;
mod place;

use std::fmt;
use std::fs;
use std::str::FromStr;

use serde::Serialize;

use crate::settings::Settings;

/// How a check turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Sandboxes run, but something is slower, smaller or not to be had.
    Warn,
    /// No sandbox runs before this is mended.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What it is, as one stable word for programs.
    pub name: &'static str,
    /// How it turned out.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: Status::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: Status::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        write!(f, "{mark}  {:<18} {}", self.name, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:24} -> {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// Looks at everything.
pub fn examine(settings: &Settings) -> Vec<Check> {
    let mut checks = kernel::examine();
    checks.extend(control_groups::examine());
    checks.extend(place::examine(settings));
    checks
}

/// A number or word from a file of `/proc` or `/sys`.
fn value<T: FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingFlags;

    #[test]
    fn every_shortcoming_has_a_remedy_and_every_name_is_used_once() {
        let flags = SettingFlags { config: Some("/dev/null".into()), ..SettingFlags::default() };
        let checks = examine(&Settings::load(&flags).unwrap());
        let mut names = std::collections::BTreeSet::new();
        for check in &checks {
            assert_eq!(check.remedy.is_some(), check.status != Status::Ok, "{check}");
            assert!(names.insert(check.name), "{} twice", check.name);
        }
        assert!(names.len() > 12);
    }
}
