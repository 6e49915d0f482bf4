//! Access tokens of sandboxes and signatures of file addresses.
//!
//! A token is derived from the sandbox's id with a secret of this host, so that it stays the same
//! through pause and resume and needs no table. All comparisons take the same time wherever two
//! texts differ.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};

/// What the tokens of this host are derived from.
pub(super) struct Tokens {
    secret: [u8; 32],
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// What a token opens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// Files and processes.
    Envd,
    /// The ports of servers inside.
    Traffic,
    /// The upload of files for a template's build.
    Upload,
}

impl Tokens {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self { secret: *secret }
    }

    /// The token of the object `id`, as lower-case hexadecimal digits.
    pub(super) fn of(&self, purpose: Purpose, id: &str) -> String {
        let purpose = match purpose {
            Purpose::Envd => "envd",
            Purpose::Traffic => "traffic",
            Purpose::Upload => "upload",
        };
        blake3::keyed_hash(&self.secret, format!("{purpose}:{id}").as_bytes()).to_hex().to_string()
    }

    /// Whether `given` is the token of the object `id`.
    pub(super) fn fits(&self, purpose: Purpose, id: &str, given: &str) -> bool {
        same(&self.of(purpose, id), given)
    }
}

/// Whether two texts are the same, in a time that tells nothing of where they differ: what is
/// compared are keyed hashes, by a comparison that always looks at all of them.
pub(super) fn same(one: &str, other: &str) -> bool {
    let key = random_bytes();
    blake3::keyed_hash(&key, one.as_bytes()) == blake3::keyed_hash(&key, other.as_bytes())
}

/// From the kernel's random source.
pub(super) fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        // Once the host has booted this neither fails nor gives less, up to 256 bytes.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// `count` random hexadecimal digits, at most 64.
pub(super) fn random_hex(count: usize) -> String {
    let bytes = random_bytes();
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.take(count).filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}

/// A random identifier in the form of a version 4 UUID.
pub(super) fn random_uuid() -> String {
    let hex = random_hex(30);
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[12..15], &hex[15..18], &hex[18..30])
}

/// What a signed file address allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileOperation {
    Read,
    Write,
}

/// The signature that a client makes for a file address with the sandbox's token.
pub(super) fn file_signature(
    path: &str,
    operation: FileOperation,
    user: &str,
    token: &str,
    expiration: Option<u64>,
) -> String {
    let operation = match operation {
        FileOperation::Read => "read",
        FileOperation::Write => "write",
    };
    let mut raw = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        raw.push_str(&format!(":{expiration}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(raw.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_stable_and_differ_by_sandbox_and_purpose() {
        let tokens = Tokens::new(&[7; 32]);
        let token = tokens.of(Purpose::Envd, "a");
        assert_eq!(token.len(), 64);
        assert!(tokens.fits(Purpose::Envd, "a", &token));
        assert!(!tokens.fits(Purpose::Envd, "b", &token));
        assert!(!tokens.fits(Purpose::Traffic, "a", &token));
        assert!(!tokens.fits(Purpose::Envd, "a", ""));
        assert!(!Tokens::new(&[8; 32]).fits(Purpose::Envd, "a", &token));
    }

    #[test]
    fn signatures_are_those_of_the_clients() {
        // Computed with Python: base64.b64encode(hashlib.sha256(b"a b:read::t").digest())
        assert_eq!(file_signature("a b", FileOperation::Read, "", "t", None), SIGNATURE_READ);
        assert_eq!(file_signature("/x", FileOperation::Write, "user", "t", Some(1_700_000_000)), SIGNATURE_WRITE);
    }

    const SIGNATURE_READ: &str = "v1_8NSAc+8NEumDUnEk5TOKMkXjXXAB7mKwKOxznCdXHk8";
    const SIGNATURE_WRITE: &str = "v1_hFXu28zXLKSxGZefgBwqUBQv58Bmi0ic461YIf/+cKY";

    #[test]
    fn identifiers_have_their_form() {
        let uuid = random_uuid();
        assert_eq!(uuid.len(), 36, "{uuid}");
        assert_eq!(random_hex(40).len(), 40);
        assert_ne!(random_hex(40), random_hex(40));
    }
}
