//! What of this interface outlives the daemon: API keys, the secret behind access tokens, names of
//! templates and snapshots. An embedded SQLite database beside the engine's.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, params};

/// Raised with every change of the tables; `user_version` of the database.
const SCHEMA_VERSION: i64 = 1;

/// `value` has one JSON document per object, so that fields can be added without a migration.
const SCHEMA: &str = "
    CREATE TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 1), bytes BLOB NOT NULL) STRICT;
    CREATE TABLE api_key (id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, value TEXT NOT NULL) STRICT;
    CREATE TABLE object (kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id)) STRICT;
";

/// A failure of the gateway's database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite failed.
    #[error("the gateway's database failed")]
    Database(#[from] rusqlite::Error),
    /// Something in it cannot be read.
    #[error("the gateway's database holds something malformed")]
    Malformed(#[from] serde_json::Error),
    /// It was made by another version.
    #[error(
        "the gateway's database has version {0}, this program knows {SCHEMA_VERSION}: use the version of brood that made it"
    )]
    Version(i64),
}

/// The database.
#[derive(Debug)]
pub(super) struct Store {
    connection: Mutex<Connection>,
}

/// A row of the table of keys: id, hash, description as JSON.
pub(super) type KeyRow = (String, [u8; 32], String);

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        match connection.pragma_query_value(None, "user_version", |row| row.get(0))? {
            0 => {
                connection.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"))?
            }
            SCHEMA_VERSION => {}
            other => return Err(StoreError::Version(other)),
        }
        Ok(Self { connection: Mutex::new(connection) })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secret that access tokens are derived from; made with the first call.
    pub(super) fn secret(&self) -> Result<[u8; 32], StoreError> {
        let connection = self.connection();
        connection
            .execute("INSERT OR IGNORE INTO secret (id, bytes) VALUES (1, ?1)", [super::tokens::random_bytes()])?;
        Ok(connection.query_row("SELECT bytes FROM secret", [], |row| row.get(0))?)
    }

    pub(super) fn keys(&self) -> Result<Vec<KeyRow>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT id, hash, value FROM api_key")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    pub(super) fn put_key(&self, (id, hash, value): &KeyRow) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO api_key (id, hash, value) VALUES (?1, ?2, ?3)";
        self.connection().execute(sql, params![id, hash, value])?;
        Ok(())
    }

    pub(super) fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.connection().execute("DELETE FROM api_key WHERE id = ?1", [id])? > 0)
    }

    /// All objects of this kind, by id.
    pub(super) fn all<T: serde::de::DeserializeOwned>(&self, kind: &str) -> Result<Vec<(String, T)>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT id, value FROM object WHERE kind = ?1 ORDER BY id")?;
        let rows = statement.query_map([kind], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        rows.map(|row| {
            let (id, text) = row?;
            Ok((id, serde_json::from_str(&text)?))
        })
        .collect()
    }

    /// Keeps an object in place of an earlier one of that id.
    pub(super) fn put<T: serde::Serialize>(&self, kind: &str, id: &str, value: &T) -> Result<(), StoreError> {
        let text = serde_json::to_string(value)?;
        let sql = "INSERT OR REPLACE INTO object (kind, id, value) VALUES (?1, ?2, ?3)";
        self.connection().execute(sql, [kind, id, &text])?;
        Ok(())
    }

    /// Forgets an object; whether there was one.
    pub(super) fn remove(&self, kind: &str, id: &str) -> Result<bool, StoreError> {
        Ok(self.connection().execute("DELETE FROM object WHERE kind = ?1 AND id = ?2", [kind, id])? > 0)
    }
}
