//! Paths as archives state them, taken apart before anything is done with them.

use std::fmt;

use super::error::{Refusal, UnpackError};
use super::whiteout::PREFIX;
use crate::options::Limits;

/// A path beneath the root of a layer: plain components only, no `.`, no `..`, no zero bytes. Empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct EntryPath {
    /// Components joined by single slashes, without one in front.
    joined: Vec<u8>,
}

impl EntryPath {
    /// Leading slashes are dropped, as every tar does; `..` is refused anywhere.
    pub(super) fn parse(raw: &[u8], limits: &Limits) -> Result<Self, UnpackError> {
        let refuse = |reason| Err(UnpackError::Refused { path: printable(raw), reason });
        if raw.len() > limits.path_bytes_max {
            return refuse(Refusal::PathTooLong { limit: limits.path_bytes_max });
        }
        if raw.is_empty() {
            return refuse(Refusal::NoName);
        }
        if raw.contains(&0) {
            return refuse(Refusal::ZeroByte);
        }
        let mut joined = Vec::with_capacity(raw.len());
        for component in raw.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return refuse(Refusal::ParentStep),
                _ => {}
            }
            if !joined.is_empty() {
                joined.push(b'/');
            }
            joined.extend_from_slice(component);
        }
        let path = Self { joined };
        if path.depth() > limits.depth_max {
            return refuse(Refusal::TooDeep { limit: limits.depth_max });
        }
        Ok(path)
    }

    /// The target of a hard link, which is a path of the archive and not relative to the link.
    pub(super) fn parse_target(raw: &[u8], link: &Self, limits: &Limits) -> Result<Self, UnpackError> {
        Self::parse(raw, limits).map_err(|_| link.refuse(Refusal::HardLinkTarget { target: printable(raw) }))
    }

    pub(super) fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.joined.split(|byte| *byte == b'/').filter(|component| !component.is_empty())
    }

    pub(super) fn depth(&self) -> usize {
        self.components().count()
    }

    /// The last component; `None` for the root.
    pub(super) fn name(&self) -> Option<&[u8]> {
        if self.joined.is_empty() { None } else { self.joined.rsplit(|byte| *byte == b'/').next() }
    }

    /// The path without its last component, as bytes; empty if that is the root.
    pub(super) fn parent_bytes(&self) -> &[u8] {
        match self.joined.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => &self.joined[..slash],
            None => b"",
        }
    }

    /// The same path with another last component.
    pub(super) fn sibling(&self, name: &[u8]) -> Self {
        let parent = self.parent_bytes();
        let joined = if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() };
        Self { joined }
    }

    /// Directories may not carry the names that mark whiteouts.
    pub(super) fn check_parents(&self) -> Result<(), UnpackError> {
        let mut parents = self.parent_bytes().split(|byte| *byte == b'/');
        if parents.any(|component| component.starts_with(PREFIX)) {
            return Err(self.refuse(Refusal::WhiteoutName));
        }
        Ok(())
    }

    pub(super) fn refuse(&self, reason: Refusal) -> UnpackError {
        UnpackError::Refused { path: self.to_string(), reason }
    }
}

impl fmt::Display for EntryPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&printable(if self.joined.is_empty() { b"." } else { &self.joined }))
    }
}

/// Text that is safe on a terminal, cut to a length that fits a line or two.
pub(super) fn printable(bytes: &[u8]) -> String {
    const SHOWN_CHARS_MAX: usize = 200;
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_CHARS_MAX {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &[u8]) -> Result<String, UnpackError> {
        EntryPath::parse(raw, &Limits::default()).map(|path| path.to_string())
    }

    #[test]
    fn leading_slashes_and_dots_vanish_and_climbing_is_refused() {
        assert_eq!(parse(b"/etc//./passwd/").unwrap(), "etc/passwd");
        assert_eq!(parse(b"./").unwrap(), ".");
        assert_eq!(parse(b"..data/...").unwrap(), "..data/...");
        for hostile in [&b".."[..], b"a/../b", b"a/..", b"/..", b"a\0b", b"", &[b'a'; 5000]] {
            let error = parse(hostile).unwrap_err();
            assert!(matches!(error, UnpackError::Refused { .. }), "{error:?}");
        }
    }

    #[test]
    fn messages_hold_no_control_characters() {
        let error = parse(b"\x1b[2J/../x").unwrap_err().to_string();
        assert!(error.chars().all(|character| !character.is_control()), "{error:?}");
    }
}
