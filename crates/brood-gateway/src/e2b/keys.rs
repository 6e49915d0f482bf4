//! API keys: `e2b_` and forty hexadecimal digits, of which only a hash is kept.

use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use brood_api::ErrorBody;
use brood_api::error::ErrorCode;
use brood_api::types::{KeyInfo, MakeKey, NewKey, PREFIX};

use super::E2bState;

use super::store::{Store, StoreError};
use super::time::now_ms;
use super::tokens::random_hex;

/// Digits of a key: 160 bits, so that a plain hash of it cannot be guessed back.
const KEY_DIGITS: usize = 40;
/// Digits that lists show.
const SHOWN_DIGITS: usize = 6;
/// Longest description of a key, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// All keys, in memory and in the database.
#[derive(Debug)]
pub struct Keys {
    store: Arc<Store>,
    known: RwLock<Vec<(blake3::Hash, KeyInfo)>>,
}

impl Keys {
    pub(super) fn load(store: Arc<Store>) -> Result<Self, StoreError> {
        let rows = store.keys()?;
        let known = rows.into_iter().map(|(_, hash, value)| Ok((hash.into(), serde_json::from_str(&value)?)));
        let known = RwLock::new(known.collect::<Result<_, StoreError>>()?);
        Ok(Self { store, known })
    }

    /// Makes a key.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn create(&self, name: &str) -> Result<NewKey, StoreError> {
        let key = format!("e2b_{}", random_hex(KEY_DIGITS));
        let mut end = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let info = KeyInfo {
            id: random_hex(12),
            name: name[..end].to_owned(),
            prefix: key[..4 + SHOWN_DIGITS].to_owned(),
            created_ms: now_ms(),
        };
        let hash = blake3::hash(key.as_bytes());
        self.store.put_key(&(info.id.clone(), *hash.as_bytes(), serde_json::to_string(&info)?))?;
        self.known.write().unwrap_or_else(PoisonError::into_inner).push((hash, info.clone()));
        Ok(NewKey { key, info })
    }

    /// All keys, oldest first.
    pub fn list(&self) -> Vec<KeyInfo> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<KeyInfo> = known.iter().map(|(_, info)| info.clone()).collect();
        list.sort_by_key(|info| info.created_ms);
        list
    }

    /// Revokes the key with this id, at once; whether there was one.
    ///
    /// # Errors
    /// When the database fails.
    pub fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let removed = self.store.remove_key(id)?;
        self.known.write().unwrap_or_else(PoisonError::into_inner).retain(|(_, info)| info.id != id);
        Ok(removed)
    }

    /// The id of this key, if it is one. Every key is compared, in a time that does not depend on
    /// where it differs.
    pub(super) fn find(&self, key: &str) -> Option<String> {
        let hash = blake3::hash(key.as_bytes());
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().fold(None, |found, (other, info)| if *other == hash { Some(info.id.clone()) } else { found })
    }
}

/// Keys in the native interface, where `brood key` finds them.
pub fn router(state: E2bState) -> Router {
    Router::new()
        .route(&format!("{PREFIX}/keys"), get(list).post(create))
        .route(&format!("{PREFIX}/keys/{{id}}"), delete(remove))
        .with_state(state)
}

async fn list(State(state): State<E2bState>) -> Json<Vec<KeyInfo>> {
    Json(state.keys().list())
}

async fn create(State(state): State<E2bState>, Json(MakeKey { name }): Json<MakeKey>) -> Response {
    match state.keys().create(&name) {
        Ok(key) => (StatusCode::CREATED, Json(key)).into_response(),
        Err(error) => failed(&error),
    }
}

async fn remove(State(state): State<E2bState>, Path(id): Path<String>) -> Response {
    match state.keys().remove(&id) {
        Ok(true) => StatusCode::NO_CONTENT.into_response(),
        Ok(false) => {
            let shown: String = id.chars().take(80).collect();
            let body = ErrorBody::new(ErrorCode::NotFound, format!("no API key {shown:?}: `brood key ls` lists them"));
            (StatusCode::NOT_FOUND, Json(body.about(shown))).into_response()
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) -> Response {
    tracing::error!(%error, "the gateway's database failed");
    let body = ErrorBody::new(ErrorCode::Internal, error.to_string());
    (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_found_and_revoked_and_never_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sqlite");
        let keys = Keys::load(Arc::new(Store::open(&path).unwrap())).unwrap();
        let (one, two) = (keys.create("one").unwrap(), keys.create(&"é".repeat(100)).unwrap());
        assert!(one.key.starts_with("e2b_") && one.key.len() == 44, "{}", one.key);
        assert_eq!(keys.find(&one.key), Some(one.info.id.clone()));
        assert_eq!(keys.find("e2b_"), None);
        assert_eq!(two.info.name.len(), 128);
        drop(keys);
        let keys = Keys::load(Arc::new(Store::open(&path).unwrap())).unwrap();
        assert_eq!(keys.find(&two.key), Some(two.info.id), "they outlive the daemon");
        assert!(keys.remove(&one.info.id).unwrap());
        assert!(!keys.remove(&one.info.id).unwrap());
        assert_eq!(keys.find(&one.key), None);
        drop(keys);
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(&two.key) && !text.contains(&one.key[10..]), "a key is kept in clear");
        }
    }
}
