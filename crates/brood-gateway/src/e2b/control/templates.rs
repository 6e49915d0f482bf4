//! Templates: what a name stands for.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_sandbox::ids::TemplateName;
use brood_sandbox::model::ResourceLimits;

use crate::e2b::E2bState;
use crate::e2b::failure::{Failure, blocking};

/// The template that clients ask for when their user names none.
const BASE: &str = "base";
/// Tags that mean the same as none.
const PLAIN_TAGS: [&str; 2] = ["default", "latest"];

/// What a new sandbox starts from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A template.
    Template { name: TemplateName, shown: String, limits: ResourceLimits },
    /// A snapshot: a checkpoint that the engine keeps.
    Snapshot { checkpoint: String, template: TemplateName, shown: String, limits: ResourceLimits },
}

impl Origin {
    pub(super) fn shown(&self) -> String {
        let (Self::Template { shown, .. } | Self::Snapshot { shown, .. }) = self;
        shown.clone()
    }

    pub(super) fn template(&self) -> &TemplateName {
        match self {
            Self::Template { name, .. } => name,
            Self::Snapshot { template, .. } => template,
        }
    }

    pub(super) fn limits(&self) -> ResourceLimits {
        let (Self::Template { limits, .. } | Self::Snapshot { limits, .. }) = self;
        limits.clone()
    }
}

/// Finds the template or snapshot that a client names: an id or a name, with `namespace/` before it
/// and `:tag` behind it if it likes.
pub(super) fn resolve(state: &E2bState, asked: &str) -> Result<Origin, Failure> {
    let text = asked.trim();
    let plain = text.rsplit_once('/').map_or(text, |(_namespace, name)| name);
    if let Some(build) = state.templates().build(&plain.to_ascii_lowercase()) {
        let limits = ResourceLimits {
            memory_bytes: build.memory_mb << 20,
            cpus: Some(f64::from(build.cpu_count)),
            ..ResourceLimits::default()
        };
        return Ok(Origin::Template { name: build.template, shown: text.to_owned(), limits });
    }
    for candidate in candidates(plain) {
        let Ok(name) = candidate.parse::<TemplateName>() else { continue };
        if state.engine().template(&name).is_ok() {
            return Ok(Origin::Template { name, shown: text.to_owned(), limits: ResourceLimits::default() });
        }
    }
    if plain == BASE
        && let Ok(name) = state.settings().default_template.parse::<TemplateName>()
        && state.engine().template(&name).is_ok()
    {
        return Ok(Origin::Template { name, shown: text.to_owned(), limits: ResourceLimits::default() });
    }
    if let Some(snapshot) = state.snapshots().find(plain)
        && let Ok(info) = state.engine().checkpoint(&snapshot.checkpoint)
    {
        let limits = ResourceLimits::default();
        return Ok(Origin::Snapshot {
            checkpoint: snapshot.checkpoint,
            template: info.template,
            shown: text.to_owned(),
            limits,
        });
    }
    // Whole ids and names only: a beginning could mean another one tomorrow.
    match state.engine().checkpoint(plain) {
        Ok(info) if info.id.as_str() == plain || info.name.as_deref() == Some(plain) => Ok(Origin::Snapshot {
            checkpoint: info.id.to_string(),
            template: info.template,
            shown: text.to_owned(),
            limits: ResourceLimits::default(),
        }),
        _ => Err(no_template(plain)),
    }
}

/// `DELETE /templates/{id}`: a template or a snapshot.
pub(super) async fn remove(State(state): State<E2bState>, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let plain = id.rsplit_once('/').map_or(&*id, |(_namespace, name)| name);
    if let Some(template) = state.templates().find(plain) {
        let keeper = state.clone();
        blocking(move || keeper.templates().remove(keeper.engine(), &template.id)).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let origin = resolve(&state, &id)?;
    let (engine, snapshots) = (Arc::clone(state.engine()), state.clone());
    blocking(move || match origin {
        Origin::Template { name, .. } => engine.remove_template(&name).map_err(Failure::from),
        Origin::Snapshot { checkpoint, .. } => {
            engine.remove_checkpoint(&checkpoint, false)?;
            snapshots.snapshots().remove(&checkpoint);
            Ok(())
        }
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The names under which the engine may have it, the likeliest first.
fn candidates(text: &str) -> Vec<String> {
    let mut candidates = vec![text.to_owned()];
    let folded = text.to_ascii_lowercase();
    if folded != text {
        candidates.push(folded.clone());
    }
    match folded.split_once(':') {
        None => candidates.extend(PLAIN_TAGS.map(|tag| format!("{folded}:{tag}"))),
        Some((name, tag)) if PLAIN_TAGS.contains(&tag) => candidates.push(name.to_owned()),
        Some(_) => {}
    }
    candidates
}

fn no_template(name: &str) -> Failure {
    let shown: String = name.chars().take(80).collect();
    let remedy = format!("`brood template build {shown} --from debian:bookworm+python3` would build one");
    Failure::not_found(format!("template '{shown}' not found; `brood template ls` lists what is there, {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_few_spellings() {
        assert_eq!(candidates("py"), ["py", "py:default", "py:latest"]);
        assert_eq!(candidates("Py:default"), ["Py:default", "py:default", "py"]);
        assert_eq!(candidates("py:v1"), ["py:v1"]);
    }
}
