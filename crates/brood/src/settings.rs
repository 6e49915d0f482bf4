//! The settings and where each of them comes from: default, file, environment, flag, in rising order.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

/// The file that is read unless another one is named. It need not exist.
pub const FILE_DEFAULT: &str = "/etc/brood/brood.toml";

/// Where layers and templates are kept unless another place is named.
pub const DEFAULT_STATE_DIRECTORY: &str = "/var/lib/brood";

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// This file.
    File(PathBuf),
    /// This variable of the environment.
    Environment(&'static str),
    /// This flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value in force.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        })
    }
}

/// Flags that every command has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Settings")]
pub struct SettingFlags {
    /// File with settings [default: /etc/brood/brood.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where layers, templates and sandboxes are kept
    #[arg(long, global = true, value_name = "DIR")]
    pub state_directory: Option<PathBuf>,
    /// Where the daemon's socket is
    #[arg(long, global = true, value_name = "DIR")]
    pub run_directory: Option<PathBuf>,
    /// First host user id of the range that sandboxes use (65,536 ids)
    #[arg(long, global = true, value_name = "UID", hide_short_help = true)]
    pub subuid_base: Option<u32>,
    /// Group that may use the daemon's socket
    #[arg(long, global = true, value_name = "GROUP", hide_short_help = true)]
    pub socket_group: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or a tracing filter
    #[arg(long, global = true, value_name = "FILTER", hide_short_help = true)]
    pub log: Option<String>,
    /// How log lines look
    #[arg(long, global = true, value_name = "FORMAT", hide_short_help = true)]
    pub log_format: Option<LogFormat>,
    /// Address and port on which E2B clients are served, such as 127.0.0.1:3000
    #[arg(long, alias = "listen", global = true, value_name = "ADDRESS", hide_short_help = true)]
    pub gateway_listen: Option<String>,
    /// What follows `<port>-<sandbox>.` in the host names of servers inside
    #[arg(long, global = true, value_name = "DOMAIN", hide_short_help = true)]
    pub gateway_domain: Option<String>,
    /// Serve E2B clients without an API key; only on a loopback address
    #[arg(long, global = true, value_name = "BOOL", hide_short_help = true)]
    pub gateway_anonymous: Option<bool>,
    /// PEM file with the certificate (and those above it) for E2B clients; plain HTTP without one
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub gateway_tls_certificate: Option<PathBuf>,
    /// PEM file with the certificate's key
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub gateway_tls_key: Option<PathBuf>,
    /// The template that E2B clients get for `base`, when there is none of that name
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub gateway_default_template: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GatewayFile {
    listen: Option<String>,
    domain: Option<String>,
    anonymous: Option<bool>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    default_template: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsFile {
    state_directory: Option<PathBuf>,
    run_directory: Option<PathBuf>,
    subuid_base: Option<u32>,
    socket_group: Option<String>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    #[serde(default)]
    gateway: GatewayFile,
}

/// All settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where layers, templates and sandboxes are kept.
    pub state_directory: Sourced<PathBuf>,
    /// Where the socket is.
    pub run_directory: Sourced<PathBuf>,
    /// First host user id of the range that sandboxes use.
    pub subuid_base: Sourced<u32>,
    /// Group that may use the socket; empty is root alone.
    pub socket_group: Sourced<String>,
    /// What is logged.
    pub log: Sourced<String>,
    /// How log lines look.
    pub log_format: Sourced<LogFormat>,
    /// Address and port on which E2B clients are served; empty is nowhere.
    pub gateway_listen: Sourced<String>,
    /// What follows `<port>-<sandbox>.` in host names; empty is `localhost` with the port.
    pub gateway_domain: Sourced<String>,
    /// Whether E2B clients need no API key.
    pub gateway_anonymous: Sourced<bool>,
    /// File with the certificate; empty is plain HTTP.
    pub gateway_tls_certificate: Sourced<PathBuf>,
    /// File with its key.
    pub gateway_tls_key: Sourced<PathBuf>,
    /// The template for `base`.
    pub gateway_default_template: Sourced<String>,
}

/// A setting as `brood config` shows it.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Its key in the file.
    pub key: &'static str,
    /// Its value as text.
    pub value: String,
    /// Where the value comes from.
    pub origin: String,
}

impl Settings {
    /// Reads file and environment beneath the flags.
    ///
    /// # Errors
    /// When the file was asked for and cannot be read, or a value does not fit, naming where it is.
    pub fn load(flags: &SettingFlags) -> anyhow::Result<Self> {
        Self::resolve(flags, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn resolve(flags: &SettingFlags, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let named = flags.config.clone().or_else(|| variable("BROOD_CONFIG").map(PathBuf::from));
        let (path, file) = read_file(named.as_deref())?;
        let layers = Layers { path: &path, variable: &variable };
        let settings = Self {
            state_directory: layers.value(
                (flags.state_directory.clone(), "--state-directory"),
                "BROOD_STATE_DIRECTORY",
                file.state_directory,
                || PathBuf::from(DEFAULT_STATE_DIRECTORY),
            )?,
            run_directory: layers.value(
                (flags.run_directory.clone(), "--run-directory"),
                "BROOD_RUN_DIRECTORY",
                file.run_directory,
                || PathBuf::from("/run/brood"),
            )?,
            subuid_base: layers.value(
                (flags.subuid_base, "--subuid-base"),
                "BROOD_SUBUID_BASE",
                file.subuid_base,
                || 100_000_000,
            )?,
            socket_group: layers.value(
                (flags.socket_group.clone(), "--socket-group"),
                "BROOD_SOCKET_GROUP",
                file.socket_group,
                String::new,
            )?,
            log: layers.value((flags.log.clone(), "--log"), "BROOD_LOG", file.log, || "info".to_owned())?,
            log_format: layers.value(
                (flags.log_format, "--log-format"),
                "BROOD_LOG_FORMAT",
                file.log_format,
                || LogFormat::Auto,
            )?,
            gateway_listen: layers.value(
                (flags.gateway_listen.clone(), "--gateway-listen"),
                "BROOD_GATEWAY_LISTEN",
                file.gateway.listen,
                String::new,
            )?,
            gateway_domain: layers.value(
                (flags.gateway_domain.clone(), "--gateway-domain"),
                "BROOD_GATEWAY_DOMAIN",
                file.gateway.domain,
                String::new,
            )?,
            gateway_anonymous: layers.value(
                (flags.gateway_anonymous, "--gateway-anonymous"),
                "BROOD_GATEWAY_ANONYMOUS",
                file.gateway.anonymous,
                || false,
            )?,
            gateway_tls_certificate: layers.value(
                (flags.gateway_tls_certificate.clone(), "--gateway-tls-certificate"),
                "BROOD_GATEWAY_TLS_CERTIFICATE",
                file.gateway.tls_certificate,
                PathBuf::new,
            )?,
            gateway_tls_key: layers.value(
                (flags.gateway_tls_key.clone(), "--gateway-tls-key"),
                "BROOD_GATEWAY_TLS_KEY",
                file.gateway.tls_key,
                PathBuf::new,
            )?,
            gateway_default_template: layers.value(
                (flags.gateway_default_template.clone(), "--gateway-default-template"),
                "BROOD_GATEWAY_DEFAULT_TEMPLATE",
                file.gateway.default_template,
                || "base".to_owned(),
            )?,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> anyhow::Result<()> {
        for (key, directory) in [("state_directory", &self.state_directory), ("run_directory", &self.run_directory)] {
            if !directory.value.is_absolute() {
                bail!("{key} {:?} ({}) must be an absolute path", directory.value, directory.origin);
            }
        }
        /// Highest first id that leaves room for 65,536 ids below the reserved top of the range.
        const SUBUID_BASE_MAX: u32 = u32::MAX - 2 * 65_536;
        if !(65_536..=SUBUID_BASE_MAX).contains(&self.subuid_base.value) {
            let Sourced { value, origin } = &self.subuid_base;
            bail!("subuid_base {value} ({origin}) must lie between 65536 and {SUBUID_BASE_MAX}");
        }
        let (certificate, key) = (&self.gateway_tls_certificate, &self.gateway_tls_key);
        if certificate.value.as_os_str().is_empty() != key.value.as_os_str().is_empty() {
            bail!("gateway.tls_certificate ({}) and gateway.tls_key ({}) go together", certificate.origin, key.origin);
        }
        if let Some(address) = self.listen_address()?
            && self.gateway_anonymous.value
            && !address.ip().is_loopback()
        {
            let origin = &self.gateway_anonymous.origin;
            bail!("gateway.anonymous ({origin}) is for loopback addresses alone, and {address} is none");
        }
        Ok(())
    }

    /// Where E2B clients are served, if anywhere.
    ///
    /// # Errors
    /// When the setting is no address with a port.
    pub fn listen_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        let Sourced { value, origin } = &self.gateway_listen;
        if value.is_empty() {
            return Ok(None);
        }
        let text = value.replace("localhost:", "127.0.0.1:");
        let address = text.parse::<SocketAddr>();
        let address = address.with_context(|| {
            format!("gateway.listen {value:?} ({origin}) must be an address and port like 127.0.0.1:3000")
        })?;
        Ok(Some(address))
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.run_directory.value.join("brood.sock")
    }

    /// All settings as rows.
    pub fn rows(&self) -> Vec<Row> {
        fn row<T>(key: &'static str, setting: &Sourced<T>, value: String) -> Row {
            Row { key, value, origin: setting.origin.to_string() }
        }
        vec![
            row("state_directory", &self.state_directory, self.state_directory.value.display().to_string()),
            row("run_directory", &self.run_directory, self.run_directory.value.display().to_string()),
            row("subuid_base", &self.subuid_base, self.subuid_base.value.to_string()),
            row("socket_group", &self.socket_group, self.socket_group.value.clone()),
            row("log", &self.log, self.log.value.clone()),
            row("log_format", &self.log_format, self.log_format.value.to_string()),
            row("gateway.listen", &self.gateway_listen, self.gateway_listen.value.clone()),
            row("gateway.domain", &self.gateway_domain, self.gateway_domain.value.clone()),
            row("gateway.anonymous", &self.gateway_anonymous, self.gateway_anonymous.value.to_string()),
            row(
                "gateway.tls_certificate",
                &self.gateway_tls_certificate,
                self.gateway_tls_certificate.value.display().to_string(),
            ),
            row("gateway.tls_key", &self.gateway_tls_key, self.gateway_tls_key.value.display().to_string()),
            row(
                "gateway.default_template",
                &self.gateway_default_template,
                self.gateway_default_template.value.clone(),
            ),
        ]
    }

    /// The flags that give another process the same settings, whatever its environment and files say.
    pub fn as_flags(&self) -> Vec<String> {
        let mut flags = vec!["--config".to_owned(), "/dev/null".to_owned()];
        for row in self.rows() {
            if !row.value.is_empty() {
                flags.push(format!("--{}={}", row.key.replace(['_', '.'], "-"), row.value));
            }
        }
        flags
    }
}

fn read_file(named: Option<&Path>) -> anyhow::Result<(PathBuf, SettingsFile)> {
    let path = named.unwrap_or(Path::new(FILE_DEFAULT));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read the settings in {}", path.display())),
    };
    let file = toml::from_str(&text).with_context(|| format!("{} does not fit", path.display()))?;
    Ok((path.to_owned(), file))
}

struct Layers<'a> {
    path: &'a Path,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Layers<'_> {
    fn value<T: FromText>(
        &self,
        (flag, flag_name): (Option<T>, &'static str),
        variable: &'static str,
        file: Option<T>,
        default: impl FnOnce() -> T,
    ) -> anyhow::Result<Sourced<T>> {
        if let Some(value) = flag {
            return Ok(Sourced { value, origin: Origin::Flag(flag_name) });
        }
        if let Some(text) = (self.variable)(variable) {
            let value = T::from_text(&text).with_context(|| format!("{variable} is {text:?}"))?;
            return Ok(Sourced { value, origin: Origin::Environment(variable) });
        }
        Ok(match file {
            Some(value) => Sourced { value, origin: Origin::File(self.path.to_owned()) },
            None => Sourced { value: default(), origin: Origin::Default },
        })
    }
}

/// How a value of the environment is read.
trait FromText: Sized {
    fn from_text(text: &str) -> anyhow::Result<Self>;
}

impl FromText for String {
    fn from_text(text: &str) -> anyhow::Result<Self> {
        Ok(text.to_owned())
    }
}

impl FromText for PathBuf {
    fn from_text(text: &str) -> anyhow::Result<Self> {
        Ok(Self::from(text))
    }
}

impl FromText for u32 {
    fn from_text(text: &str) -> anyhow::Result<Self> {
        text.parse().context("a whole number is needed")
    }
}

impl FromText for bool {
    fn from_text(text: &str) -> anyhow::Result<Self> {
        text.parse().context("it must be true or false")
    }
}

impl FromText for LogFormat {
    fn from_text(text: &str) -> anyhow::Result<Self> {
        <Self as clap::ValueEnum>::from_str(text, true).map_err(|_| anyhow::anyhow!("it must be auto, human or json"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn later_layers_win_and_are_named() {
        let file = file("state_directory = \"/a\"\nrun_directory = \"/b\"\nlog = \"warn\"\n");
        let flags = SettingFlags {
            config: Some(file.path().to_owned()),
            run_directory: Some("/flag".into()),
            ..SettingFlags::default()
        };
        let settings = Settings::resolve(&flags, |name| match name {
            "BROOD_RUN_DIRECTORY" | "BROOD_LOG" => Some("/environment".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!(settings.state_directory.origin, Origin::File(file.path().to_owned()));
        assert_eq!(settings.state_directory.value, Path::new("/a"));
        assert_eq!(settings.run_directory.origin, Origin::Flag("--run-directory"));
        assert_eq!(settings.log.origin, Origin::Environment("BROOD_LOG"));
        assert_eq!(settings.subuid_base.origin, Origin::Default);
    }

    #[test]
    fn mistakes_are_named() {
        let load = |text: &str, variable: Option<(&'static str, &'static str)>| {
            let file = file(text);
            let flags = SettingFlags { config: Some(file.path().to_owned()), ..SettingFlags::default() };
            let error = Settings::resolve(&flags, |name| {
                variable.filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
            })
            .unwrap_err();
            format!("{error:#}")
        };
        assert!(load("state_dir = \"/a\"", None).contains("state_dir"));
        assert!(load("state_directory = \"a\"", None).contains("absolute"));
        assert!(load("", Some(("BROOD_SUBUID_BASE", "many"))).contains("BROOD_SUBUID_BASE"));
        assert!(load("subuid_base = 5", None).contains("65536"));
        assert!(load("[gateway]\nlisten = \"everywhere\"", None).contains("127.0.0.1:3000"));
        let open = "[gateway]\nlisten = \"0.0.0.0:1\"\nanonymous = true";
        assert!(load(open, None).contains("loopback"));
        assert!(load("[gateway]\ntls_key = \"/k\"", None).contains("go together"));
        let missing = SettingFlags { config: Some("/nonexistent/x.toml".into()), ..SettingFlags::default() };
        assert!(format!("{:#}", Settings::resolve(&missing, |_| None).unwrap_err()).contains("/nonexistent/x.toml"));
    }

    #[test]
    fn flags_reproduce_the_settings() {
        let flags = SettingFlags { config: Some("/dev/null".into()), ..SettingFlags::default() };
        let settings = Settings::resolve(&flags, |_| None).unwrap();
        assert!(settings.as_flags().contains(&"--state-directory=/var/lib/brood".to_owned()));
    }
}
