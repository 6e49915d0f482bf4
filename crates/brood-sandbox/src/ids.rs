//! Names of things: typed, so that a template's name cannot be passed for a sandbox's id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a template, in bytes; a tag may follow it after a colon.
pub const TEMPLATE_NAME_BYTES_MAX: usize = 128;
/// Letters of a sandbox id. At 36^20 ids a collision is not a practical concern.
pub const SANDBOX_ID_LENGTH: usize = 20;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Why a text is no valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?} is not valid: {reason}")]
pub struct InvalidName {
    kind: &'static str,
    text: String,
    reason: &'static str,
}

impl InvalidName {
    pub(crate) fn new(kind: &'static str, text: &str, reason: &'static str) -> Self {
        let shown: String = text.chars().take(80).collect();
        Self { kind, text: shown, reason }
    }
}

/// The id of a sandbox: twenty lower-case letters and digits, the first a letter, globally unique.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// A new id from the kernel's random source.
    pub fn random() -> Self {
        Self(random_text(SANDBOX_ID_LENGTH))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `length` letters and digits from the kernel's random source, the first one a letter.
pub(crate) fn random_text(length: usize) -> String {
    let mut text = String::with_capacity(length);
    let mut bytes = [0u8; 64];
    while text.len() < length {
        // The kernel's source cannot fail once booted; a short read leaves zeros, which are re-drawn.
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
        for byte in &bytes[..filled] {
            // Rejecting the top of the range keeps all letters equally likely.
            if *byte >= 252 || text.len() == length {
                continue;
            }
            let letter = ALPHABET[usize::from(*byte) % ALPHABET.len()];
            if text.is_empty() && letter.is_ascii_digit() {
                continue;
            }
            text.push(char::from(letter));
        }
    }
    text
}

fn is_id(text: &str) -> bool {
    text.len() == SANDBOX_ID_LENGTH && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

impl FromStr for CheckpointId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if !is_id(text) {
            let reason = "it must be 20 lower-case letters and digits (see `brood checkpoint ls`)";
            return Err(InvalidName::new("checkpoint id", text, reason));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for SandboxId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let fits =
            text.len() == SANDBOX_ID_LENGTH && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !fits {
            return Err(InvalidName::new(
                "sandbox id",
                text,
                "it must be 20 lower-case letters and digits (see `brood ps`)",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The id of a checkpoint: twenty lower-case letters and digits, the first a letter, globally unique.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointId(String);

impl CheckpointId {
    /// A new id from the kernel's random source.
    pub fn random() -> Self {
        Self(random_text(SANDBOX_ID_LENGTH))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a template, as in Docker: path components of lower-case letters, digits and single
/// separators, optionally followed by `:tag`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

impl TemplateName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TemplateName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let refuse = |reason| Err(InvalidName::new("template name", text, reason));
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > TEMPLATE_NAME_BYTES_MAX {
            return refuse("it is longer than 128 bytes");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b)) {
            return refuse("only letters, digits and - _ . are allowed, and one : before a tag");
        }
        let mut parts = text.split(':');
        let well_formed = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && !part.contains("..");
        if !parts.clone().all(well_formed) || parts.by_ref().count() > 2 {
            return refuse("each part must begin with a letter or digit and hold no double dot");
        }
        Ok(Self(text.to_owned()))
    }
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}
text_newtype!(CheckpointId);
text_newtype!(SandboxId);
text_newtype!(TemplateName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_valid_and_differ() {
        let first = SandboxId::random();
        let second = SandboxId::random();
        assert_ne!(first, second);
        assert_eq!(first.as_str().parse::<SandboxId>().unwrap(), first);
    }

    #[test]
    fn hostile_ids_are_refused() {
        for text in
            ["", "../../etc", "a/b", "ABCDEFGHIJKLMNOPQRST", "abc\0defghijklmnopqrs", "é", "aaaaaaaaaaaaaaaaaaa."]
        {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn template_names_follow_dockers_habits() {
        for text in ["python", "py-3.11", "my_app:v1.2", "A1"] {
            assert!(text.parse::<TemplateName>().is_ok(), "{text:?}");
        }
        for text in ["", ".", "..", "a..b", "-x", "a/b", "a:b:c", "a:", ":a", "a b", "a\n", "a\u{7f}", &"x".repeat(129)]
        {
            assert!(text.parse::<TemplateName>().is_err(), "{text:?}");
        }
    }
}
