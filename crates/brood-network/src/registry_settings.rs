//! What programs inside need to know to reach package registries the way the host does.

use std::path::PathBuf;

/// Variables that say how to reach registries: proxies, mirrors, certificates. Compared without regard to case.
const PASSED: [&str; 18] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_PROXY",
    "PIP_DEFAULT_TIMEOUT",
    "NPM_CONFIG_REGISTRY",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "CARGO_HTTP_PROXY",
    "CARGO_REGISTRIES_CRATES_IO_PROTOCOL",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "GOPROXY",
    "GOSUMDB",
];

/// Variables that name a file of certificates, which must be there inside as well.
const CERTIFICATES: [&str; 8] = [
    "PIP_CERT",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
];

/// The host's settings, as far as they may be passed on. Nothing is passed on by itself: a template asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Variables for the sandbox, by name.
    pub variables: Vec<(String, String)>,
    /// Files that the variables name.
    pub files: Vec<PathBuf>,
    /// Names of variables that were left out because their values hold a user name or password.
    pub withheld: Vec<String>,
}

impl RegistrySettings {
    /// The settings among `variables`, usually [`std::env::vars`].
    #[must_use]
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut settings = Self::default();
        for (name, value) in variables {
            let is_one_of = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(&name));
            let names_file = is_one_of(&CERTIFICATES);
            if value.is_empty() || !(names_file || is_one_of(&PASSED)) {
                continue;
            }
            if holds_credentials(&value) {
                settings.withheld.push(name);
                continue;
            }
            if names_file {
                settings.files.push(PathBuf::from(&value));
            }
            settings.variables.push((name, value));
        }
        settings.variables.sort();
        settings.files.sort();
        settings.files.dedup();
        settings.withheld.sort();
        settings
    }
}

/// Whether any address in `value` (there may be several) has something before an `@` in its host part.
fn holds_credentials(value: &str) -> bool {
    value.split([' ', ',', '|']).any(|address| {
        let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
        rest.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_passed_and_no_secret() {
        let all = [
            ("https_proxy", "http://proxy.example:3128"),
            ("HTTP_PROXY", "http://user:secret@proxy.example:3128/"),
            ("PIP_EXTRA_INDEX_URL", "https://a.example/simple https://token@b.example/simple"),
            ("PIP_CERT", "/etc/ssl/ca.pem"),
            ("SSL_CERT_FILE", "/etc/ssl/ca.pem"),
            ("NO_PROXY", ""),
            ("NPM_TOKEN", "secret"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("PIP_INDEX_URL", "https://mirror.example/simple/?user=a@b"),
        ];
        let settings = RegistrySettings::from_variables(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let names: Vec<&str> = settings.variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["PIP_CERT", "PIP_INDEX_URL", "SSL_CERT_FILE", "https_proxy"]);
        assert_eq!(settings.withheld, ["HTTP_PROXY", "PIP_EXTRA_INDEX_URL"]);
        assert_eq!(settings.files, [PathBuf::from("/etc/ssl/ca.pem")]);
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
