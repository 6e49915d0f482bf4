//! Whom a call acts for, and what its paths mean.

use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use brood_sandbox::files::{EntryKind, Files, Owner};
use brood_sandbox::users::Identity;

use super::Envd;
use crate::e2b::connect::{Code, RpcError};

/// The user that a call names in its `Authorization` header, if it does.
pub(super) fn named(headers: &HeaderMap) -> Option<String> {
    let encoded = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let name = text.split(':').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Somebody inside, with the files of the sandbox.
#[derive(Debug)]
pub(super) struct Acting {
    pub(super) identity: Identity,
    pub(super) files: Files,
    /// Where a path that is empty leads.
    working_directory: String,
}

impl Acting {
    /// The user of this name, or the template's.
    pub(super) fn of(envd: &Envd, name: Option<&str>) -> Result<Self, RpcError> {
        let files = envd.sandbox().files()?;
        let template = envd.sandbox().template();
        let name = name.filter(|name| !name.is_empty()).unwrap_or(&template.user);
        // What a group says is nobody's business here.
        let refused = |_| RpcError::new(Code::Unauthenticated, format!("no user {:?} in the sandbox", shown(name)));
        let identity = files.user(name).map_err(refused)?;
        let is_home = |path: &str| files.stat_followed(path).is_ok_and(|entry| entry.kind == EntryKind::Directory);
        let working_directory = match template.working_directory.as_str() {
            // No template of a program asks for the root; then a home is what people expect.
            "/" | "" if is_home(&identity.home) => identity.home.clone(),
            "" => "/".to_owned(),
            other => other.to_owned(),
        };
        Ok(Self { identity, files, working_directory })
    }

    pub(super) fn owner(&self) -> Owner {
        Owner { uid: self.identity.uid, gid: self.identity.gid }
    }

    /// The absolute path that a caller's path means.
    pub(super) fn path(&self, text: &str) -> Result<PathBuf, RpcError> {
        resolve(text, &self.identity.home, &self.working_directory)
    }
}

fn resolve(text: &str, home: &str, working_directory: &str) -> Result<PathBuf, RpcError> {
    if text.contains('\0') {
        return Err(RpcError::invalid("a path cannot hold a zero byte"));
    }
    match text.strip_prefix('~') {
        Some("") => return Ok(PathBuf::from(home)),
        Some(rest) => match rest.strip_prefix('/') {
            Some(inside) => return Ok(Path::new(home).join(inside.trim_start_matches('/'))),
            None => return Err(RpcError::invalid("homes of other users (~name) are not resolved")),
        },
        None => {}
    }
    Ok(match text {
        "" => PathBuf::from(working_directory),
        // An absolute path replaces what it is joined to.
        _ => Path::new(home).join(text),
    })
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_what_they_do_for_the_clients() {
        let path = |text: &str| resolve(text, "/home/user", "/app").unwrap();
        assert_eq!(path(""), Path::new("/app"));
        assert_eq!(path("~"), Path::new("/home/user"));
        assert_eq!(path("~/a"), Path::new("/home/user/a"));
        assert_eq!(path("~//etc"), Path::new("/home/user/etc"));
        assert_eq!(path("a/b"), Path::new("/home/user/a/b"));
        assert_eq!(path("/a"), Path::new("/a"));
        assert_eq!(resolve("~root/x", "/", "/").unwrap_err().code, Code::InvalidArgument);
        assert_eq!(resolve("a\0b", "/", "/").unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn users_come_from_the_header() {
        let headers = |value: &str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(named(&headers("Basic dXNlcjo=")), Some("user".to_owned()));
        for bad in ["Bearer x", "Basic !!!", "Basic Og==", "Basic /w=="] {
            assert_eq!(named(&headers(bad)), None, "{bad}");
        }
    }
}
