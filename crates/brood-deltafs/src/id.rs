//! Names of layers, uppers and spaces: globally unique, safe as file names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest id, in bytes: a digest algorithm and 512 bits in hexadecimal, and
/// still a short file name.
const ID_BYTES_MAX: usize = 160;

/// A text that is no id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is no {kind} id: 1 to 160 lower-case letters, digits and '-' are")]
pub struct InvalidId {
    /// What kind of id was wanted.
    pub kind: &'static str,
    /// The text.
    pub text: String,
}

fn checked(kind: &'static str, text: &str) -> Result<Box<str>, InvalidId> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || text.len() > ID_BYTES_MAX || !text.bytes().all(good) {
        return Err(InvalidId { kind, text: text.to_owned() });
    }
    Ok(text.into())
}

/// 128 random bits in hexadecimal, from the kernel's generator.
pub(crate) fn random_name() -> std::io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(text.trim_end().replace('-', ""))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// A new id, 128 random bits.
            ///
            /// # Errors
            /// `/proc` is not mounted.
            pub fn random() -> std::io::Result<Self> {
                Ok(Self(random_name()?.into()))
            }

            /// The id as text, which is also its file name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                checked($kind, text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.into()
            }
        }

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
    };
}

id! {
    /// Name of a layer. A frozen layer has a random one; a layer unpacked
    /// from an image may have one made from its digest, so that it is found
    /// again.
    LayerId, "layer"
}

id! {
    /// Name of an upper.
    UpperId, "upper"
}

id! {
    /// Name of a space: what a sandbox with a disk limit writes in.
    SpaceId, "space"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_file_names() {
        for bad in ["", ".", "..", "a/b", "A", "a.b", "ä", "a\0", "a\n", &"a".repeat(161)] {
            assert!(bad.parse::<LayerId>().is_err(), "{bad:?}");
        }
        let id: LayerId = "sha256-00ff".parse().expect("a good id");
        assert_eq!(id.to_string(), "sha256-00ff");
    }

    #[test]
    fn random_ids_differ_and_parse() {
        let ids: Vec<_> = (0..100).map(|_| UpperId::random().expect("random")).collect();
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(ids.iter().all(|id| id.as_str().parse() == Ok(id.clone())));
    }
}
