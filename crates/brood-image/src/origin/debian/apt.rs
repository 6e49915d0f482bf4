//! What of the host's apt configuration a new system gets: the sources of its suite, and the way to the network.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::DebianError;

/// The part of the host's apt configuration that counts for one suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AptConfiguration {
    /// Sources in one-line form.
    pub(super) lines: String,
    /// Sources in stanzas.
    pub(super) stanzas: String,
    /// Options such as `Acquire::http::Proxy "…"`.
    pub(super) options: Vec<String>,
}

impl AptConfiguration {
    /// Reads the host's. Both lists are empty if the host has no source for the suite.
    pub(super) fn of_host(suite: &str) -> Result<Self, DebianError> {
        let mut configuration = Self::default();
        let dir = Path::new("/etc/apt");
        configuration.add_lines(&read(&dir.join("sources.list"))?, suite);
        let mut files: Vec<_> = match fs::read_dir(dir.join("sources.list.d")) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        files.sort();
        for file in files {
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("list") => configuration.add_lines(&read(&file)?, suite),
                Some("sources") => configuration.add_stanzas(&read(&file)?, suite),
                _ => {}
            }
        }
        configuration.options = network_options()?;
        Ok(configuration)
    }

    /// Keeps the lines `deb [options] URI SUITE components` of this suite.
    fn add_lines(&mut self, text: &str, suite: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let Some(rest) = line.strip_prefix("deb ") else { continue };
            let rest = match rest.trim_start().strip_prefix('[') {
                Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
                None => rest,
            };
            if rest.split_whitespace().nth(1).is_some_and(|named| belongs(named, suite)) {
                self.lines.push_str(line);
                self.lines.push('\n');
            }
        }
    }

    /// Keeps the stanzas that name this suite, without other suites and without source packages.
    fn add_stanzas(&mut self, text: &str, suite: &str) {
        let plain: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for stanza in plain.split(|line| line.trim().is_empty()) {
            if let Some(kept) = keep_suite(stanza, suite) {
                self.stanzas.push_str(&kept);
                self.stanzas.push('\n');
            }
        }
    }
}

/// The stanza for one suite alone; `None` if it has nothing for it or is switched off.
fn keep_suite(stanza: &[&str], suite: &str) -> Option<String> {
    let mut kept = String::new();
    let mut has_suite = false;
    let mut has_binaries = false;
    for line in stanza {
        let field = line.split_once(':').filter(|_| !line.starts_with([' ', '\t']));
        let (name, value) = field.map_or((String::new(), ""), |(name, value)| (name.to_ascii_lowercase(), value));
        let line = match &*name {
            "enabled" if value.trim().eq_ignore_ascii_case("no") => return None,
            "types" => {
                has_binaries = value.split_whitespace().any(|kind| kind == "deb");
                "Types: deb".to_owned()
            }
            "suites" => {
                let suites: Vec<_> = value.split_whitespace().filter(|named| belongs(named, suite)).collect();
                has_suite = !suites.is_empty();
                format!("Suites: {}", suites.join(" "))
            }
            _ => (*line).to_owned(),
        };
        kept.push_str(&line);
        kept.push('\n');
    }
    (has_suite && has_binaries).then_some(kept)
}

/// `bookworm` itself, and `bookworm-updates`, `bookworm-security`, `bookworm/updates`.
fn belongs(named: &str, suite: &str) -> bool {
    named.strip_prefix(suite).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
}

/// Proxies, certificates and patience, from `apt-config`: where a host needs them, nothing is downloaded without.
fn network_options() -> Result<Vec<String>, DebianError> {
    let output = Command::new("apt-config").arg("dump").output();
    let output = output.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => DebianError::NotInstalled { tool: "apt-config", package: "apt" },
        _ => DebianError::io("run", "apt-config", source),
    })?;
    Ok(filter_options(&String::from_utf8_lossy(&output.stdout)))
}

fn filter_options(dump: &str) -> Vec<String> {
    let wanted = |line: &&str| {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let key = key.to_ascii_lowercase();
        let is_network = key.contains("proxy") || key.contains("::ca") || key.contains("::verify-");
        let is_patience = key.ends_with("::retries") || key.ends_with("::timeout");
        key.starts_with("acquire::") && (is_network || is_patience) && value != "\"\";"
    };
    dump.lines().filter(wanted).map(|line| line.trim_end_matches(';').to_owned()).collect()
}

fn read(path: &Path) -> Result<String, DebianError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(DebianError::io("read", path.display().to_string(), source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_the_suite_are_kept() {
        let mut configuration = AptConfiguration::default();
        configuration.add_lines(
            "# deb http://a bookworm main\ndeb [signed-by=/k] http://b bookworm main # x\n\
             deb-src http://b bookworm main\ndeb http://b bookworm-updates main\ndeb http://c trixie main\n\
             deb http://d bookwormish main\n",
            "bookworm",
        );
        assert_eq!(
            configuration.lines,
            "deb [signed-by=/k] http://b bookworm main\ndeb http://b bookworm-updates main\n"
        );
        configuration.add_stanzas(
            "Types: deb deb-src\nURIs: http://a\n# remark\nSuites: bookworm trixie bookworm-updates\nComponents: main\n\
             Signed-By:\n -----BEGIN\n .\n x: y\n\n\nTypes: deb\nURIs: http://b\nSuites: trixie\n\n\
             Types: deb-src\nSuites: bookworm\n\nEnabled: no\nTypes: deb\nSuites: bookworm\n",
            "bookworm",
        );
        assert_eq!(
            configuration.stanzas,
            "Types: deb\nURIs: http://a\nSuites: bookworm bookworm-updates\nComponents: main\n\
             Signed-By:\n -----BEGIN\n .\n x: y\n\n"
        );
    }

    #[test]
    fn the_way_to_the_network_is_kept_and_nothing_else() {
        let dump = "Acquire \"\";\nAcquire::http::Proxy \"http://p:3128\";\nAcquire::https::CaInfo \"/ca\";\n\
                    Acquire::ftp::Proxy \"\";\nAPT::Install-Recommends \"0\";\nAcquire::Retries \"3\";\n\
                    Acquire::Languages \"none\";\n";
        assert_eq!(
            filter_options(dump),
            ["Acquire::http::Proxy \"http://p:3128\"", "Acquire::https::CaInfo \"/ca\"", "Acquire::Retries \"3\""]
        );
    }
}
