//! Templates that clients built: names, tags and sizes, beside the engine's own record of them.
//!
//! Each build is a template of the engine, `<name>:<beginning of the build's id>`; tags say which build
//! a name means. A build that no tag means any more is removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use brood_sandbox::engine::Engine;
use brood_sandbox::ids::TemplateName;
use serde::{Deserialize, Serialize};

use super::store::{Store, StoreError};

/// The tag of a name that comes without one.
pub(super) const TAG: &str = "default";
const KIND: &str = "template";

/// A template with all its tags.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Template {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created_ms: u64,
    pub(super) updated_ms: u64,
    /// The build of each tag.
    pub(super) tags: BTreeMap<String, Build>,
}

/// A build that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Build {
    pub(super) id: String,
    /// The engine's name for it.
    pub(super) template: TemplateName,
    pub(super) cpu_count: u32,
    pub(super) memory_mb: u64,
    pub(super) tagged_ms: u64,
}

/// All of them, in memory and in the database.
#[derive(Debug)]
pub(super) struct Templates {
    store: Arc<Store>,
    known: RwLock<HashMap<String, Template>>,
}

/// Name and tag of a text.
pub(super) fn split_tag(text: &str) -> (&str, &str) {
    text.split_once(':').unwrap_or((text, TAG))
}

impl Templates {
    pub(super) fn load(store: Arc<Store>) -> Result<Self, StoreError> {
        let known = RwLock::new(store.all(KIND)?.into_iter().collect());
        Ok(Self { store, known })
    }

    pub(super) fn all(&self) -> Vec<Template> {
        let mut all: Vec<_> = self.known.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        all.sort_by_key(|template| template.created_ms);
        all
    }

    /// By id or name, whatever the tag.
    pub(super) fn find(&self, text: &str) -> Option<Template> {
        let (name, _) = split_tag(text);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(name).or_else(|| known.values().find(|template| template.name == name)).cloned()
    }

    /// The build that an id or name with its tag means.
    pub(super) fn build(&self, text: &str) -> Option<Build> {
        self.find(text)?.tags.remove(split_tag(text).1)
    }

    /// Keeps a template, and removes builds of it that no tag means any more.
    pub(super) fn put(&self, engine: &Engine, template: Template) -> Result<(), StoreError> {
        self.store.put(KIND, &template.id, &template)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let meant: Vec<TemplateName> = template.tags.values().map(|build| build.template.clone()).collect();
        let before = known.insert(template.id.clone(), template);
        drop(known);
        let builds = before.into_iter().flat_map(|before| before.tags.into_values());
        builds.filter(|build| !meant.contains(&build.template)).for_each(|build| forget(engine, &build));
        Ok(())
    }

    pub(super) fn remove(&self, engine: &Engine, id: &str) -> Result<(), StoreError> {
        self.store.remove(KIND, id)?;
        let removed = self.known.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        let builds = removed.into_iter().flat_map(|template| template.tags.into_values());
        builds.for_each(|build| forget(engine, &build));
        Ok(())
    }
}

fn forget(engine: &Engine, build: &Build) {
    match engine.remove_template(&build.template) {
        Ok(()) => {}
        // Several tags may have meant it.
        Err(error) if error.kind() == brood_sandbox::error::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(template = %build.template, error = error.chain(), "a build that no tag means stays")
        }
    }
}
