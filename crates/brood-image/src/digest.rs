//! SHA-256 digests, and readers that compute them while bytes pass through.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest as OCI writes it: `sha256:` and 64 lower-case hexadecimal digits.
///
/// Holding the bytes instead of the text means that a digest can never carry a path separator into a file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// A text that is no SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a digest of the form sha256:<64 hexadecimal digits>", .0.escape_debug())]
pub struct DigestSyntaxError(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all that `reader` yields.
    pub(crate) fn of_reader(reader: &mut impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 128 << 10];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(Self(hasher.finalize().into())),
                count => hasher.update(&buffer[..count]),
            }
        }
    }

    /// The 64 hexadecimal digits without the algorithm: the name of a layer's directory.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{byte:02x}");
            text
        })
    }

    /// Parses the 64 digits that [`Digest::hex`] returns.
    pub fn from_hex(text: &str) -> Result<Self, DigestSyntaxError> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        let lower_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        if digits.len() != 64 || !digits.iter().all(lower_hex) {
            return Err(DigestSyntaxError(text.to_owned()));
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = DigestSyntaxError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").ok_or_else(|| DigestSyntaxError(text.to_owned()))?;
        Self::from_hex(digits).map_err(|_| DigestSyntaxError(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestSyntaxError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Passes bytes through, hashing them.
pub(crate) struct HashingReader<R> {
    inner: R,
    hasher: Option<Sha256>,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Some(Sha256::new()) }
    }

    /// Only passes bytes through from now on; there will be no digest.
    pub(crate) fn stop_hashing(&mut self) {
        self.hasher = None;
    }

    /// The digest of all bytes that have passed, and the reader below.
    pub(crate) fn finish(self) -> (Option<Digest>, R) {
        (self.hasher.map(|hasher| Digest(hasher.finalize().into())), self.inner)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_rejects_what_is_no_digest() {
        let digest = Digest::of(b"brood");
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert_eq!(Digest::from_hex(&digest.hex()).unwrap(), digest);
        let upper = digest.to_string().to_uppercase();
        for wrong in ["", "sha256:", "sha256:../../etc/passwd", "sha512:00", upper.as_str(), &digest.hex()] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong} was accepted");
        }
    }

    #[test]
    fn reader_hashes_what_passes() {
        let mut reader = HashingReader::new(&b"some bytes"[..]);
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        assert_eq!(reader.finish().0, Some(Digest::of(b"some bytes")));
    }
}
