//! How an image wants its programs to be run.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

/// What an image says about running it. All of it is data from outside: whoever uses a path or a user name of it resolves
/// that inside the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Environment, in order. Entries without `=` are left out.
    pub env: Vec<(String, String)>,
    /// Working directory, if set.
    pub workdir: Option<String>,
    /// `user[:group]` by name or number, if set.
    pub user: Option<String>,
    /// Program and leading arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or the command if there is no entry point.
    pub cmd: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports that the image listens on, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
}

impl From<&ImageConfiguration> for ImageConfig {
    fn from(configuration: &ImageConfiguration) -> Self {
        let Some(config) = configuration.config() else {
            return Self::default();
        };
        let not_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let env = config.env().iter().flatten().filter_map(|entry| entry.split_once('='));
        let mut exposed_ports = config.exposed_ports().clone().unwrap_or_default();
        exposed_ports.sort_unstable();
        Self {
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            workdir: not_empty(config.working_dir()),
            user: not_empty(config.user()),
            entrypoint: config.entrypoint().clone().unwrap_or_default(),
            cmd: config.cmd().clone().unwrap_or_default(),
            labels: config.labels().clone().unwrap_or_default().into_iter().collect(),
            exposed_ports,
        }
    }
}
