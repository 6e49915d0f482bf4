//! Requests that are sent twice with the same `Idempotency-Key` are carried out once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderMap;

use crate::e2b::failure::Failure;

/// Longest key that clients may send.
const KEY_BYTES_MAX: usize = 255;
/// Keys remembered; the oldest go first.
const KEYS_KEPT: usize = 10_000;

/// What came of the first request with a key: the hash of its body and the sandbox that it made.
/// Whoever holds the lock is the one that carries it out.
pub(super) type Slot = Arc<tokio::sync::Mutex<Option<(blake3::Hash, String)>>>;

#[derive(Debug, Default)]
struct Remembered {
    slots: HashMap<(String, String), Slot>,
    order: VecDeque<(String, String)>,
}

/// The keys that were seen.
#[derive(Debug, Default)]
pub(in crate::e2b) struct Idempotency {
    remembered: Mutex<Remembered>,
}

impl Idempotency {
    /// The slot for the key of a request, if it has one.
    pub(super) fn slot(&self, owner: &str, headers: &HeaderMap) -> Result<Option<Slot>, Failure> {
        let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
        let key = key.to_str().unwrap_or("");
        let fits = (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return Err(Failure::invalid("Idempotency-Key must be 1 to 255 printable characters"));
        }
        let name = (owner.to_owned(), key.to_owned());
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = remembered.slots.get(&name) {
            return Ok(Some(Arc::clone(slot)));
        }
        let slot = Slot::default();
        remembered.slots.insert(name.clone(), Arc::clone(&slot));
        remembered.order.push_back(name);
        if remembered.order.len() > KEYS_KEPT
            && let Some(oldest) = remembered.order.pop_front()
        {
            remembered.slots.remove(&oldest);
        }
        Ok(Some(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_belong_to_owner_and_key_and_are_bounded() {
        let idempotency = Idempotency::default();
        let headers = |key: &str| HeaderMap::from_iter([("idempotency-key".parse().unwrap(), key.parse().unwrap())]);
        assert!(idempotency.slot("a", &HeaderMap::new()).unwrap().is_none());
        let slot = |owner: &str, key: &str| idempotency.slot(owner, &headers(key)).unwrap().unwrap();
        let first = slot("a", "k");
        assert!(Arc::ptr_eq(&first, &slot("a", "k")));
        assert!(!Arc::ptr_eq(&first, &slot("b", "k")));
        for number in 0..KEYS_KEPT {
            slot("c", &number.to_string());
        }
        assert!(!Arc::ptr_eq(&first, &slot("a", "k")), "the oldest is forgotten");
        idempotency.slot("a", &headers("")).unwrap_err();
        idempotency.slot("a", &headers(&"k".repeat(256))).unwrap_err();
    }
}
