//! What travels over the native interface besides the engine's own data types.

use brood_sandbox::model::{CreateRequest, ExitReport, ProcessRequest, TemplateInfo};
use serde::{Deserialize, Serialize};

use crate::error::ErrorBody;

/// Where all paths of the native interface begin.
pub const PREFIX: &str = "/brood/v1";

/// What a connection is upgraded to that becomes one to a port inside.
pub const PORT_PROTOCOL: &str = "brood-port/1";

/// Answer of `GET /version`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VersionInfo {
    /// Version of the daemon.
    pub version: String,
    /// The interface's own version; it changes when an older client would no longer understand.
    pub api: u32,
    /// The daemon's process id.
    pub pid: u32,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
}

/// Body of `POST /sandboxes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateSandboxes {
    /// What each of them should be like.
    #[serde(flatten)]
    pub request: CreateRequest,
    /// How many; all are made or none.
    #[serde(default = "one")]
    pub count: u32,
}

fn one() -> u32 {
    1
}

/// Payload of a `Run` frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The sandbox: its id or a unique beginning of it.
    pub sandbox: String,
    /// What to run there.
    pub process: ProcessRequest,
}

/// Body of `PUT /sandboxes/{id}/timeout`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetTimeout {
    /// Milliseconds from now until the sandbox is killed; none is never.
    pub timeout_ms: Option<u64>,
}

/// Body of `POST /sandboxes/{id}/processes/{pid}/signal`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendSignal {
    /// The signal's number.
    pub signal: u8,
}

/// Body of `POST /sandboxes/{id}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeCheckpoint {
    /// A name, unique among the checkpoints of one template.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether the processes belong to it, or the files alone.
    #[serde(default = "yes")]
    pub with_processes: bool,
}

fn yes() -> bool {
    true
}

/// Body of `POST /sandboxes/{id}/rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The checkpoint: its id, a beginning of it, or its name.
    pub checkpoint: String,
}

/// Body of `POST /groups`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// Its name: a host name without dots.
    pub name: String,
}

/// Body of `POST /forks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// A live sandbox, of which a checkpoint without a name is taken; a checkpoint; or a template.
    pub from: String,
    /// How many; all are made or none.
    #[serde(default = "one")]
    pub count: u32,
}

/// One line of the answer to `GET /diff`: a path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path inside, absolute, with bytes that are not UTF-8 replaced.
    pub path: String,
    /// How it differs.
    pub kind: FileChangeKind,
    /// Whether it is a directory.
    pub directory: bool,
}

/// How a path differs. Times alone are no difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChangeKind {
    /// Only the new state has it.
    Added,
    /// Its content, kind, owner, mode or extended attributes differ.
    Changed,
    /// Only the old state has it.
    Deleted,
}

/// One line of the answer to `POST /templates`: the build as it goes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BuildMessage {
    /// A step begins.
    Step {
        /// Counted from one.
        index: usize,
        /// How many there are.
        total: usize,
        /// What it does.
        text: String,
        /// Whether its layer was there already.
        cached: bool,
    },
    /// Output of a step.
    Output {
        /// The bytes as text.
        text: String,
    },
    /// Part of a transfer is done.
    Transfer {
        /// What is transferred.
        item: String,
        /// Bytes so far.
        done_bytes: u64,
        /// All bytes, when known.
        total_bytes: Option<u64>,
    },
    /// The build is complete; the last line.
    Done {
        /// The template as it is now.
        template: Box<TemplateInfo>,
    },
    /// The build failed and left nothing behind; the last line.
    Failed {
        /// Why.
        error: ErrorBody,
    },
}

/// A file, directory or link inside a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The last part of its path.
    pub name: String,
    /// Its path inside.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Bytes of its content.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// When its content changed, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where it points to, for a symbolic link.
    pub target: Option<String>,
}

/// What kind of file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// A process that ran to its end with its output, as `POST /sandboxes/{id}/processes?wait=true` gives it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompletedProcess {
    /// Its process id inside the sandbox.
    pub pid: u32,
    /// Its standard output, with bytes that are not UTF-8 replaced.
    pub stdout: String,
    /// Its standard error likewise.
    pub stderr: String,
    /// Bytes of output beyond the bound, which were dropped.
    pub lost_bytes: u64,
    /// How it ended.
    pub exit: ExitReport,
    /// The code a shell would show.
    pub exit_code: u8,
}

/// Body of `POST /keys`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeKey {
    /// What its owner calls it.
    #[serde(default)]
    pub name: String,
}

/// An API key for E2B clients, as lists show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyInfo {
    /// What `brood key rm` takes.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// How it begins.
    pub prefix: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// An API key that was just made. It is told this once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewKey {
    /// The key itself.
    pub key: String,
    /// What is kept of it.
    #[serde(flatten)]
    pub info: KeyInfo,
}
