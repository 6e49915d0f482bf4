//! From the clients' definition of a template to the engine's steps.
//!
//! The engine runs steps as one user; here they run as root, and commands of another user through
//! `su`. Uploaded archives are unpacked inside the sandbox of the build, where a hostile one harms
//! only itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use brood_sandbox::model::BuildStep;
use serde::Deserialize;

use crate::e2b::failure::Failure;

/// Most steps of a template.
const STEPS_MAX: usize = 1000;
/// Where an archive lies inside while it is unpacked.
const ARCHIVE: &str = "/var/tmp/.upload.tar.gz";

/// A template as a client defines it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Definition {
    pub(super) from_image: Option<String>,
    pub(super) from_template: Option<String>,
    pub(super) from_image_registry: Option<serde_json::Value>,
    pub(super) force: bool,
    pub(super) start_cmd: Option<String>,
    pub(super) ready_cmd: Option<String>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Step {
    #[serde(rename = "type")]
    kind: String,
    args: Vec<String>,
    files_hash: Option<String>,
    force: bool,
}

/// What the engine is asked for.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<BuildStep>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) user: Option<String>,
    pub(super) working_directory: Option<String>,
    pub(super) no_cache: bool,
}

/// Puts a text into single quotes for a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Plan {
    /// Reads the steps; `upload` gives the file of a hash, if it has been uploaded.
    pub(super) fn of(definition: &Definition, upload: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, Failure> {
        if definition.steps.len() > STEPS_MAX {
            return Err(Failure::invalid(format!("a template takes at most {STEPS_MAX} steps")));
        }
        let mut plan = Self { no_cache: definition.force, ..Self::default() };
        for step in &definition.steps {
            plan.no_cache |= step.force;
            plan.add(step, &upload)?;
        }
        Ok(plan)
    }

    fn add(&mut self, step: &Step, upload: &impl Fn(&str) -> Option<PathBuf>) -> Result<(), Failure> {
        let argument = |index: usize| step.args.get(index).map(String::as_str).filter(|text| !text.is_empty());
        let missing = || Failure::invalid(format!("a {} step lacks an argument", step.kind));
        match step.kind.as_str() {
            "RUN" => {
                let command = argument(0).ok_or_else(missing)?;
                let user = argument(1).map(str::to_owned).or_else(|| self.user.clone());
                self.run(command, user.as_deref());
            }
            "ENV" => {
                for pair in step.args.chunks(2) {
                    let [name, value] = pair else { return Err(missing()) };
                    self.environment.insert(name.clone(), value.clone());
                }
            }
            "USER" => self.user = Some(argument(0).ok_or_else(missing)?.to_owned()),
            "WORKDIR" => {
                let directory = self.absolute(argument(0).ok_or_else(missing)?);
                let owner = self.user.as_deref().unwrap_or("root");
                let made = format!("mkdir -p {0} && chown {1} {0}", quote(&directory), quote(owner));
                self.steps.push(BuildStep::Run { command: made });
                self.working_directory = Some(directory);
            }
            "COPY" => {
                let hash = step.files_hash.as_deref().ok_or_else(missing)?;
                let file =
                    upload(hash).ok_or_else(|| Failure::invalid(format!("the files {hash} were not uploaded")))?;
                let (source, destination) = (argument(0).ok_or_else(missing)?, argument(1).ok_or_else(missing)?);
                self.copy(file, source, destination, argument(2), argument(3))?;
            }
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(Failure::invalid(format!("steps of type {shown:?} are not known")));
            }
        }
        Ok(())
    }

    /// With the login shell that the clients' users expect, in the directory of the last WORKDIR.
    fn run(&mut self, command: &str, user: Option<&str>) {
        let directory = self.working_directory.as_deref().unwrap_or("");
        let enter = if directory.is_empty() { String::new() } else { format!("cd {} && ", quote(directory)) };
        let command = quote(&format!("{enter}{command}"));
        let shell = "$(command -v bash || echo /bin/sh)";
        let command = match user {
            None | Some("root" | "0") => format!("exec {shell} -l -c {command}"),
            Some(user) => format!("exec su -s {shell} {} -c {command}", quote(user)),
        };
        self.steps.push(BuildStep::Run { command });
    }

    fn copy(
        &mut self,
        file: PathBuf,
        source: &str,
        destination: &str,
        user: Option<&str>,
        mode: Option<&str>,
    ) -> Result<(), Failure> {
        if mode.is_some_and(|mode| !mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) || mode.len() > 5) {
            return Err(Failure::invalid("the mode of a COPY step must be octal"));
        }
        let owner = user.map(str::to_owned).or_else(|| self.user.clone()).unwrap_or_else(|| "root".to_owned());
        let source = source.trim_start_matches("./").trim_end_matches('/');
        let directory = destination.ends_with('/');
        let target = quote(&self.absolute(destination));
        let is_pattern = source.is_empty() || source == "." || source.contains(['*', '?', '[']);
        let parent = source.rsplit_once('/').map_or(".", |(parent, _)| parent);
        let parent = if is_pattern && parent.contains(['*', '?', '[']) { "." } else { parent };
        let name = source.rsplit_once('/').map_or(source, |(_, name)| name);
        // Directories keep their modes: without the right to enter them no file could be reached.
        let chmod = mode.map_or_else(String::new, |mode| format!("find \"$d\" -type f -exec chmod {mode} {{}} +; "));
        let into = format!("mkdir -p {target} && cp -a");
        let place = if is_pattern {
            format!("{into} . {target}")
        } else {
            let name = quote(name);
            let single = if directory {
                format!("{into} {name} {target}")
            } else {
                format!(
                    "if [ -d {target} ]; then cp -a {name} {target}/; else mkdir -p \"$(dirname {target})\" && cp -a {name} {target}; fi"
                )
            };
            format!("if [ -d {name} ]; then {into} {name}/. {target}; else {single}; fi")
        };
        let unpack = format!(
            "set -e; d=$(mktemp -d); tar -xzf {ARCHIVE} -C \"$d\" --no-same-owner; rm {ARCHIVE}; \
             chown -R {owner}: \"$d\"; {chmod}cd \"$d\"/{}; {place}; rm -rf \"$d\"",
            quote(parent),
            owner = quote(&owner),
        );
        self.steps.push(BuildStep::Copy { source: file, destination: ARCHIVE.to_owned() });
        self.steps.push(BuildStep::Run { command: unpack });
        Ok(())
    }

    fn absolute(&self, path: &str) -> String {
        let base = self.working_directory.as_deref().unwrap_or("/");
        std::path::Path::new(base).join(path).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps: serde_json::Value) -> Result<Plan, Failure> {
        let definition: Definition = serde_json::from_value(serde_json::json!({ "steps": steps })).unwrap();
        Plan::of(&definition, |hash| (hash == "known").then(|| PathBuf::from("/uploads/known")))
    }

    #[test]
    fn steps_keep_user_directory_and_quotes() {
        let plan = plan(serde_json::json!([
            { "type": "ENV", "args": ["A", "1", "B", "2"] },
            { "type": "WORKDIR", "args": ["/app"] },
            { "type": "USER", "args": ["user"] },
            { "type": "RUN", "args": ["echo 'hi'"] },
            { "type": "RUN", "args": ["id", "root"] },
        ]))
        .unwrap();
        assert_eq!(plan.environment.len(), 2);
        assert_eq!((plan.user.as_deref(), plan.working_directory.as_deref()), (Some("user"), Some("/app")));
        let BuildStep::Run { command } = &plan.steps[1] else { panic!("no RUN") };
        assert!(command.starts_with("exec su -s") && command.contains("'user'"), "{command}");
        assert!(command.contains(r"echo '\''"), "{command}");
        let BuildStep::Run { command } = &plan.steps[2] else { panic!("no RUN") };
        assert!(!command.contains("su -s"), "{command}");
    }

    #[test]
    fn what_is_missing_or_unknown_is_refused() {
        for steps in [
            serde_json::json!([{ "type": "RUN", "args": [] }]),
            serde_json::json!([{ "type": "ENV", "args": ["A"] }]),
            serde_json::json!([{ "type": "COPY", "args": ["a", "b"], "filesHash": "unknown" }]),
            serde_json::json!([{ "type": "COPY", "args": ["a", "b", "", "0;rm"], "filesHash": "known" }]),
            serde_json::json!([{ "type": "FETCH", "args": ["x"] }]),
        ] {
            plan(steps.clone()).expect_err(&steps.to_string());
        }
    }
}
