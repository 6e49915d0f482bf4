//! Credentials for registries: given, or those that Docker and its relatives keep.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use super::error::RegistryError;

/// Largest file of credentials that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A name and a password or token for a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password or token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Credentials {{ username: {:?}, password: <hidden> }}", self.username)
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: HashMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
}

/// Looks `registry` up in `file`, or in the file that Docker would use. Nothing found means anonymous.
pub(super) fn find(registry: &str, file: Option<&Path>) -> Result<RegistryAuth, RegistryError> {
    let Some(path) = file.map(Path::to_owned).or_else(default_file) else { return Ok(RegistryAuth::Anonymous) };
    let failed = |reason: String| RegistryError::Credentials { path: path.clone(), reason };
    let size_bytes = match path.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.is_none() => {
            return Ok(RegistryAuth::Anonymous);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    if size_bytes > FILE_BYTES_MAX {
        return Err(failed(format!("it has {size_bytes} bytes")));
    }
    let text = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
    let config: DockerConfig = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let entry = config.auths.iter().find(|(key, _)| same_registry(key, registry)).map(|(_, entry)| entry);
    match entry {
        Some(entry) => decode(entry).map_err(|reason| failed(format!("the entry for {registry} {reason}"))),
        None => Ok(RegistryAuth::Anonymous),
    }
}

fn default_file() -> Option<PathBuf> {
    let dir = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let dir = dir.or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
    dir.map(|dir| dir.join("config.json"))
}

/// Keys are hosts, or addresses as old clients wrote them: `https://index.docker.io/v1/`.
fn same_registry(key: &str, registry: &str) -> bool {
    let host = |text: &str| {
        let text = text.trim_start_matches("https://").trim_start_matches("http://");
        let host = text.split('/').next().unwrap_or_default().to_owned();
        if host == "docker.io" || host == "registry-1.docker.io" { "index.docker.io".to_owned() } else { host }
    };
    host(key) == host(registry)
}

fn decode(entry: &Entry) -> Result<RegistryAuth, &'static str> {
    if entry.auth.is_empty() {
        // Credential helpers leave an empty entry behind.
        let is_empty = entry.username.is_empty();
        let given = || RegistryAuth::Basic(entry.username.clone(), entry.password.clone());
        return Ok(if is_empty { RegistryAuth::Anonymous } else { given() });
    }
    let bytes = STANDARD.decode(&entry.auth).map_err(|_| "is not base64")?;
    let text = String::from_utf8(bytes).map_err(|_| "is not text")?;
    let (username, password) = text.split_once(':').ok_or("has no colon between name and password")?;
    // Some writers pad with zero bytes.
    Ok(RegistryAuth::Basic(username.to_owned(), password.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(registry: &str, text: &str) -> Result<RegistryAuth, RegistryError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        find(registry, Some(file.path()))
    }

    #[test]
    fn entries_are_found_by_host() {
        let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpwOnE="},"r:5000":{"username":"a","password":"b"},"helped":{}}}"#;
        let basic = |name: &str, password: &str| RegistryAuth::Basic(name.to_owned(), password.to_owned());
        assert_eq!(lookup("index.docker.io", text).unwrap(), basic("u", "p:q"));
        assert_eq!(lookup("r:5000", text).unwrap(), basic("a", "b"));
        assert_eq!(lookup("r:5001", text).unwrap(), RegistryAuth::Anonymous);
        assert_eq!(lookup("helped", text).unwrap(), RegistryAuth::Anonymous);
        assert_eq!(lookup("any", "{}").unwrap(), RegistryAuth::Anonymous);
    }

    #[test]
    fn damaged_files_are_named_without_showing_secrets() {
        for text in ["", "{", r#"{"auths":{"r":{"auth":"c2VjcmV0"}}}"#, r#"{"auths":{"r":{"auth":"%%"}}}"#] {
            let error = lookup("r", text).unwrap_err().to_string();
            assert!(error.contains("cannot use the credentials in /") && !error.contains("secret"), "{error}");
        }
        let shown = format!("{:?}", Credentials { username: "u".to_owned(), password: "secret".to_owned() });
        assert!(!shown.contains("secret"));
    }
}
