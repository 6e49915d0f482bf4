//! Where an image comes from, as a user writes it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest source text that is looked at, in bytes: a path of the kernel's maximum and its scheme.
const SOURCE_BYTES_MAX: usize = 4096 + 32;

/// A source of images. The text form is what [`FromStr`] takes and [`fmt::Display`] gives back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// `debian:SUITE[+package,package]`: a minimal system of that suite with these packages.
    Debian(PackageSet),
    /// `docker://REFERENCE`: an image in a registry.
    Docker(ImageReference),
    /// `oci-archive:FILE`: a tar of an OCI image layout.
    OciArchive(PathBuf),
    /// `docker-archive:FILE`: what `docker save` writes.
    DockerArchive(PathBuf),
    /// `tar:FILE`: one root file system, plain or compressed by gzip, zstd or xz.
    Tar(PathBuf),
    /// `dir:PATH`: a copy of a directory.
    Directory(PathBuf),
}

/// A Debian suite and the packages wanted on top of a minimal system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackageSet {
    pub(crate) suite: String,
    pub(crate) packages: Vec<String>,
}

impl PackageSet {
    /// Name of the suite, such as `bookworm`.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// Packages, sorted, each once.
    pub fn packages(&self) -> &[String] {
        &self.packages
    }
}

/// A name in a registry that has been checked for syntax, such as `debian:12` or `registry:5000/team/app@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageReference(pub(crate) String);

impl fmt::Display for ImageReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A text that names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The part in front of the colon is unknown.
    #[error(
        "'{}' is no source of images; write one of debian:SUITE[+package,...], docker://REFERENCE, \
         oci-archive:FILE, docker-archive:FILE, tar:FILE, dir:PATH",
        .0.escape_debug()
    )]
    UnknownScheme(String),
    /// Nothing follows the colon.
    #[error("'{0}' names no file; write it behind the colon")]
    Empty(String),
    /// The text is longer than any path.
    #[error("a source of {0} bytes is too long; at most {SOURCE_BYTES_MAX} are looked at")]
    TooLong(usize),
    /// A path with a zero byte or line break.
    #[error("'{}' holds a control character; rename the file", .0.escape_debug())]
    ControlCharacter(String),
    /// Not the name of a Debian suite.
    #[error("'{}' is no name of a Debian suite; it would be like bookworm or trixie", .0.escape_debug())]
    Suite(String),
    /// Not the name of a Debian package.
    #[error(
        "'{}' is no name of a Debian package; names have lower-case letters, digits, '+', '-' and '.', \
         and are separated by commas",
        .0.escape_debug()
    )]
    Package(String),
    /// Not an image reference.
    #[error("'{}' is no image reference ({reason}); write it like debian:12 or registry.example/team/app:tag", .text.escape_debug())]
    Reference {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Source {
    /// The same source with a relative path taken as seen from `base`: for texts that come from another process.
    pub fn resolved_from(self, base: &Path) -> Self {
        match self {
            Self::OciArchive(path) => Self::OciArchive(base.join(path)),
            Self::DockerArchive(path) => Self::DockerArchive(base.join(path)),
            Self::Tar(path) => Self::Tar(base.join(path)),
            Self::Directory(path) => Self::Directory(base.join(path)),
            other @ (Self::Debian(_) | Self::Docker(_)) => other,
        }
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > SOURCE_BYTES_MAX {
            return Err(SourceError::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(SourceError::ControlCharacter(text.to_owned()));
        }
        if let Some(reference) = text.strip_prefix("docker://") {
            return parse_reference(reference).map(Self::Docker);
        }
        let unknown = || SourceError::UnknownScheme(text.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(unknown)?;
        let path = || {
            if rest.is_empty() { Err(SourceError::Empty(text.to_owned())) } else { Ok(PathBuf::from(rest)) }
        };
        match scheme {
            "debian" => parse_packages(rest).map(Self::Debian),
            "oci-archive" => path().map(Self::OciArchive),
            "docker-archive" => path().map(Self::DockerArchive),
            "tar" => path().map(Self::Tar),
            "dir" => path().map(Self::Directory),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(set) if set.packages.is_empty() => {
                write!(formatter, "debian:{}", set.suite)
            }
            Self::Debian(set) => {
                write!(formatter, "debian:{}+{}", set.suite, set.packages.join(","))
            }
            Self::Docker(reference) => write!(formatter, "docker://{reference}"),
            Self::OciArchive(path) => write!(formatter, "oci-archive:{}", path.display()),
            Self::DockerArchive(path) => write!(formatter, "docker-archive:{}", path.display()),
            Self::Tar(path) => write!(formatter, "tar:{}", path.display()),
            Self::Directory(path) => write!(formatter, "dir:{}", path.display()),
        }
    }
}

fn parse_reference(text: &str) -> Result<ImageReference, SourceError> {
    match text.parse::<oci_client::Reference>() {
        Ok(_) => Ok(ImageReference(text.to_owned())),
        Err(error) => Err(SourceError::Reference { text: text.to_owned(), reason: error.to_string() }),
    }
}

fn parse_packages(text: &str) -> Result<PackageSet, SourceError> {
    // The first plus separates; later ones belong to names such as g++.
    let (suite, packages) = text.split_once('+').unwrap_or((text, ""));
    if !is_name(suite, "-.") {
        return Err(SourceError::Suite(suite.to_owned()));
    }
    let mut names = Vec::new();
    for package in packages.split(',').filter(|_| !packages.is_empty()) {
        if !is_name(package, "+-.") {
            return Err(SourceError::Package(package.to_owned()));
        }
        names.push(package.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    Ok(PackageSet { suite: suite.to_owned(), packages: names })
}

/// Letters, digits and `marks`, not beginning with a mark: what can never be taken for an option or a path.
fn is_name(text: &str, marks: &str) -> bool {
    let plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    text.starts_with(plain) && text.chars().all(|character| plain(character) || marks.contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_round_trips() {
        for text in [
            "debian:bookworm",
            "debian:trixie+g++,git,python3-pip",
            "docker://debian:12",
            "docker://localhost:5000/team/app:v1",
            "oci-archive:/images/a b.tar",
            "docker-archive:relative/x.tar",
            "tar:root:fs.tar.zst",
            "dir:.",
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn package_sets_are_normalised() {
        let source: Source = "debian:bookworm+git,g++,git".parse().unwrap();
        assert_eq!(source.to_string(), "debian:bookworm+g++,git");
    }

    #[test]
    fn what_is_no_source_is_refused_with_a_remedy() {
        for text in [
            "",
            "debian",
            "ftp:x",
            "tar:",
            "dir:",
            "debian:",
            "debian:-x",
            "debian:../x",
            "debian:bookworm+",
            "debian:bookworm+a,,b",
            "debian:bookworm+--purge",
            "debian:bookworm+a b",
            "docker://",
            "docker://UPPER",
            "docker://a b",
            "tar:a\nb",
            "debian:bookworm+a;b",
        ] {
            let parsed = text.parse::<Source>();
            if text == "debian:bookworm+" {
                assert_eq!(parsed.unwrap().to_string(), "debian:bookworm");
                continue;
            }
            let message = parsed.unwrap_err().to_string();
            assert!(message.len() > 20, "{message}");
        }
        let long = "tar:".repeat(2000).parse::<Source>();
        assert_eq!(long, Err(SourceError::TooLong(8000)));
    }

    #[test]
    fn relative_paths_are_seen_from_the_callers_directory() {
        let source: Source = "tar:x.tar".parse().unwrap();
        assert_eq!(source.resolved_from(Path::new("/home/user")).to_string(), "tar:/home/user/x.tar");
        let source: Source = "tar:/x.tar".parse().unwrap();
        assert_eq!(source.resolved_from(Path::new("/home/user")).to_string(), "tar:/x.tar");
    }
}
