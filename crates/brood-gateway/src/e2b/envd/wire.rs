//! How single values are written in the JSON form of protocol buffers.

use serde::{Deserialize, Deserializer, Serializer};

/// Whether a value is the one that is left out.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Bytes as base64.
pub(super) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in crate::e2b::envd) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(in crate::e2b::envd) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Bytes>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let plain = text.trim_end_matches('=');
        let decoded = STANDARD_NO_PAD.decode(plain).or_else(|_| URL_SAFE_NO_PAD.decode(plain));
        decoded.map(|bytes| Some(bytes.into())).map_err(serde::de::Error::custom)
    }
}

/// 64-bit numbers as text.
pub(super) fn number_as_text<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// A signal by name or number.
pub(super) fn signal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i32),
        Name(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Name(name) => match name.as_str() {
            "SIGNAL_SIGTERM" => Ok(15),
            "SIGNAL_SIGKILL" => Ok(9),
            "SIGNAL_UNSPECIFIED" => Ok(0),
            _ => Err(serde::de::Error::custom("no such signal")),
        },
    }
}

/// Kinds of files by name.
pub(super) fn file_type<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match number {
        1 => "FILE_TYPE_FILE",
        2 => "FILE_TYPE_DIRECTORY",
        3 => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    })
}

/// Kinds of changes by name.
pub(super) fn event_type<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match number {
        1 => "EVENT_TYPE_CREATE",
        2 => "EVENT_TYPE_WRITE",
        3 => "EVENT_TYPE_REMOVE",
        4 => "EVENT_TYPE_RENAME",
        5 => "EVENT_TYPE_CHMOD",
        _ => "EVENT_TYPE_UNSPECIFIED",
    })
}
