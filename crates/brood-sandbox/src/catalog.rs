//! What outlives the daemon: templates, and layers that earlier builds made.
//!
//! An embedded SQLite database in WAL mode. A transaction is acknowledged before it is on the
//! disk, so a power failure may take the last moment, but never leaves half of a transaction.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use brood_deltafs::LayerId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{EngineError, ErrorKind, Result};
use crate::ids::TemplateName;
use crate::model::{HistoryEntry, TemplateInfo};

/// Raised with every change of the tables; `user_version` of the database.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE template (name TEXT PRIMARY KEY, info TEXT NOT NULL, history TEXT NOT NULL) STRICT;
    CREATE TABLE built_layer (key TEXT PRIMARY KEY, layer TEXT NOT NULL, entry TEXT NOT NULL) STRICT;
";

/// The database.
#[derive(Debug)]
pub(crate) struct Catalog {
    connection: Mutex<Connection>,
}

fn failed(error: rusqlite::Error) -> EngineError {
    let full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
    let kind = if full { ErrorKind::Exhausted } else { ErrorKind::Internal };
    EngineError::caused_by(kind, "the database of templates failed", error)
}

fn malformed(error: serde_json::Error) -> EngineError {
    EngineError::caused_by(ErrorKind::Internal, "the database of templates holds something malformed", error)
}

impl Catalog {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path).map_err(failed)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        connection.pragma_update(None, "synchronous", "normal").map_err(failed)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
        match version {
            0 => {
                let script = format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;");
                connection.execute_batch(&script).map_err(failed)?;
            }
            SCHEMA_VERSION => {}
            other => {
                let message = format!(
                    "{} has version {other}, this program knows {SCHEMA_VERSION}: use the version of brood that made it",
                    path.display()
                );
                return Err(EngineError::new(ErrorKind::Unsupported, message));
            }
        }
        Ok(Self { connection: Mutex::new(connection) })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a template, in place of an earlier one of that name.
    pub(crate) fn put_template(&self, info: &TemplateInfo, history: &[HistoryEntry]) -> Result<()> {
        let history = serde_json::to_string(history).map_err(malformed)?;
        let text = serde_json::to_string(info).map_err(malformed)?;
        let sql = "INSERT OR REPLACE INTO template (name, info, history) VALUES (?1, ?2, ?3)";
        self.connection().execute(sql, params![info.name.as_str(), text, history]).map_err(failed).map(|_rows| ())
    }

    /// All templates, by name.
    pub(crate) fn templates(&self) -> Result<Vec<TemplateInfo>> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT info FROM template ORDER BY name").map_err(failed)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
        rows.map(|text| serde_json::from_str(&text.map_err(failed)?).map_err(malformed)).collect()
    }

    /// How a template was made, bottom first.
    pub(crate) fn history(&self, name: &TemplateName) -> Result<Option<Vec<HistoryEntry>>> {
        let sql = "SELECT history FROM template WHERE name = ?1";
        let text: Option<String> =
            self.connection().query_row(sql, [name.as_str()], |row| row.get(0)).optional().map_err(failed)?;
        text.map(|text| serde_json::from_str(&text).map_err(malformed)).transpose()
    }

    /// Forgets a template; whether there was one.
    pub(crate) fn remove_template(&self, name: &TemplateName) -> Result<bool> {
        let removed = self.connection().execute("DELETE FROM template WHERE name = ?1", [name.as_str()]);
        removed.map(|rows| rows > 0).map_err(failed)
    }

    /// The layer that an earlier build made for `key`.
    pub(crate) fn built_layer(&self, key: &str) -> Result<Option<HistoryEntry>> {
        let sql = "SELECT entry FROM built_layer WHERE key = ?1";
        let text: Option<String> =
            self.connection().query_row(sql, [key], |row| row.get(0)).optional().map_err(failed)?;
        text.map(|text| serde_json::from_str(&text).map_err(malformed)).transpose()
    }

    /// Keeps the layer that a build step made.
    pub(crate) fn put_built_layer(&self, key: &str, entry: &HistoryEntry) -> Result<()> {
        let text = serde_json::to_string(entry).map_err(malformed)?;
        let sql = "INSERT OR REPLACE INTO built_layer (key, layer, entry) VALUES (?1, ?2, ?3)";
        self.connection().execute(sql, params![key, entry.layer, text]).map_err(failed).map(|_rows| ())
    }

    /// Forgets cached layers that no template uses; their ids.
    pub(crate) fn forget_unused_layers(&self, used: &HashSet<LayerId>) -> Result<Vec<String>> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT key, layer FROM built_layer").map_err(failed)?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
        let rows: std::result::Result<Vec<_>, _> = rows.map_err(failed)?.collect();
        let mut forgotten = Vec::new();
        for (key, layer) in rows.map_err(failed)? {
            if layer.parse::<LayerId>().is_ok_and(|id| used.contains(&id)) {
                continue;
            }
            connection.execute("DELETE FROM built_layer WHERE key = ?1", [key]).map_err(failed)?;
            forgotten.push(layer);
        }
        Ok(forgotten)
    }

    /// Ids of all layers that templates and the cache of builds use.
    pub(crate) fn wanted_layers(&self) -> Result<HashSet<LayerId>> {
        let mut wanted = HashSet::new();
        for template in self.templates()? {
            wanted.extend(template.layers.iter().filter_map(|layer| layer.parse::<LayerId>().ok()));
        }
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT layer FROM built_layer").map_err(failed)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
        for layer in rows {
            wanted.extend(layer.map_err(failed)?.parse::<LayerId>().ok());
        }
        Ok(wanted)
    }
}
