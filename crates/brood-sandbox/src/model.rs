//! What callers hand in and get back: plain data without behaviour, the same for every interface.

mod network;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, SandboxId, TemplateName};
use crate::limits;
pub use network::{
    GroupInfo, GroupMember, GroupMembership, LookUp, LookUpVerdict, NetworkAccess, NetworkRequest, PublishedPort,
};

/// Bounds on what a sandbox may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResourceLimits {
    /// Memory of all tasks and of the page cache they fill, in bytes.
    pub memory_bytes: u64,
    /// Processors' worth of time, 1.0 being one processor; none is no limit.
    pub cpus: Option<f64>,
    /// Tasks (threads count).
    pub pids: u32,
    /// Bytes that files written by the sandbox may take on disk; none is no limit.
    pub disk_bytes: Option<u64>,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self { memory_bytes: limits::MEMORY_BYTES_DEFAULT, cpus: None, pids: limits::PIDS_DEFAULT, disk_bytes: None }
    }
}

/// What a new sandbox should be like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// The template it starts from.
    pub template: TemplateName,
    /// Environment of every tool call, on top of the template's.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Bounds on what it may use.
    #[serde(default)]
    pub limits: ResourceLimits,
    /// It is killed when this much time has passed; none is never. On the wire `timeout_ms`.
    #[serde(default, rename = "timeout_ms", with = "milliseconds")]
    pub timeout: Option<Duration>,
    /// Free text for the caller's own use.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    #[serde(default)]
    pub network: NetworkRequest,
    /// A checkpoint is taken in the background after each tool call, and so many of these are kept;
    /// none takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_every_call: Option<u32>,
    /// Ports of the host that lead inside, as long as it lives.
    #[serde(default)]
    pub publish: Vec<PublishedPort>,
    /// Private networks that it is on.
    #[serde(default)]
    pub groups: Vec<GroupMembership>,
}

impl CreateRequest {
    /// A sandbox of a template as it is made when nothing else is said.
    pub fn plain(template: TemplateName) -> Self {
        Self {
            template,
            environment: BTreeMap::new(),
            limits: ResourceLimits::default(),
            timeout: None,
            labels: BTreeMap::new(),
            network: NetworkRequest::default(),
            checkpoint_every_call: None,
            publish: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// Where a sandbox stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// PID 1 is being set up; no tool call is accepted.
    Creating,
    /// Tool calls are accepted.
    Running,
    /// It is frozen and has no processes; `resume` brings it back.
    Paused,
    /// It is being taken down.
    Killing,
    /// It is gone.
    Dead,
}

/// A sandbox as lists and `inspect` show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Its id.
    pub id: SandboxId,
    /// The template it came from.
    pub template: TemplateName,
    /// Where it stands.
    pub state: SandboxState,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it will be killed, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// Its bounds.
    pub limits: ResourceLimits,
    /// Its environment on top of the template's.
    pub environment: BTreeMap<String, String>,
    /// The caller's own text.
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    #[serde(default)]
    pub network: NetworkRequest,
    /// Its address as others see it; none while it has its loopback interface alone.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Ports of the host that lead inside.
    #[serde(default)]
    pub published: Vec<PublishedPort>,
    /// Private networks that it is on, with its name there.
    #[serde(default)]
    pub groups: Vec<GroupMembership>,
    /// PID 1 as the host sees it.
    pub init_pid: Option<i32>,
    /// The live tool calls and background processes.
    pub processes: Vec<ProcessInfo>,
    /// Layers that its root is made of, without the writable one.
    pub layers: usize,
    /// The checkpoint that it was forked from, put back to or frozen as last, which may be removed.
    #[serde(default)]
    pub checkpoint: Option<CheckpointId>,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxStats {
    /// Its id.
    pub id: SandboxId,
    /// Memory charged to its control group, page cache included, in bytes.
    pub memory_bytes: u64,
    /// Highest value of that so far.
    pub memory_peak_bytes: u64,
    /// The bound on it.
    pub memory_limit_bytes: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Tasks alive.
    pub pids: u32,
    /// Bytes its own files take on disk.
    pub disk_bytes: u64,
    /// Times that a process was killed because the memory was used up.
    pub out_of_memory_kills: u64,
}

/// How a tool call is started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRequest {
    /// The command and its arguments; the command is looked up in PATH unless it holds a slash.
    pub arguments: Vec<String>,
    /// Environment on top of the sandbox's and the template's.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; none is the template's user.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory inside; none is the template's.
    #[serde(default)]
    pub working_directory: Option<String>,
    /// A pseudo-terminal of this size instead of pipes.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Whether standard input is a pipe from the caller; else it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Everything that the call started is killed after this time. On the wire `timeout_ms`.
    #[serde(default, rename = "timeout_ms", with = "milliseconds")]
    pub timeout: Option<Duration>,
    /// A background process: it does not count as a tool call of the model.
    #[serde(default)]
    pub background: bool,
    /// The caller's own name for it.
    #[serde(default)]
    pub tag: Option<String>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// A tool call or background process as lists show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its process id inside the sandbox.
    pub pid: u32,
    /// The command line.
    pub arguments: Vec<String>,
    /// The caller's own name for it.
    pub tag: Option<String>,
    /// Whether it was started in the background.
    pub background: bool,
    /// Whether it has a pseudo-terminal.
    pub terminal: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How it ended, once it has.
    pub exit: Option<ExitReport>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// It returned this code.
    Exited(u8),
    /// This signal killed it.
    Signaled(u8),
    /// Its time was up and everything that it had started was killed.
    TimedOut,
    /// The sandbox's memory was used up and the kernel killed it.
    OutOfMemory,
    /// The sandbox was killed under it.
    SandboxKilled,
    /// The sandbox was rolled back to a checkpoint under it.
    RolledBack,
}

/// The end of a process, with what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// How it ended.
    pub reason: ExitReason,
    /// When, in milliseconds since 1970.
    pub ended_ms: u64,
    /// Wall time, in microseconds.
    pub duration_us: u64,
    /// Processor time of it and its reaped children, in microseconds.
    pub cpu_us: u64,
    /// Largest resident set of it or a reaped child, in KiB.
    pub resident_peak_kib: u64,
    /// Highest memory of the whole sandbox so far, in bytes.
    pub sandbox_memory_peak_bytes: u64,
}

impl ExitReport {
    /// The code a shell would show: the exit code, 128 + signal, 124 after a timeout (as `timeout`
    /// gives), 137 for an end by SIGKILL of whatever cause.
    pub fn shell_code(&self) -> u8 {
        match self.reason {
            ExitReason::Exited(code) => code,
            ExitReason::Signaled(signal) => 128u8.saturating_add(signal),
            ExitReason::TimedOut => 124,
            ExitReason::OutOfMemory | ExitReason::SandboxKilled | ExitReason::RolledBack => 137,
        }
    }
}

/// A step of a template build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildStep {
    /// Runs with `/bin/sh -c` in a sandbox on the layers so far.
    Run {
        /// The command line.
        command: String,
    },
    /// Copies a file or directory of the host into the template.
    Copy {
        /// A path of the host that the daemon may read.
        source: PathBuf,
        /// Where it goes; a trailing slash means into that directory.
        destination: String,
    },
}

/// How a template is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildRequest {
    /// The name it gets.
    pub name: TemplateName,
    /// Where it starts from: `debian:SUITE[+pkg,..]`, `docker://REF`, `oci-archive:FILE`,
    /// `docker-archive:FILE`, `tar:FILE`, `dir:PATH` or `template:NAME`.
    pub source: String,
    /// What is done on top, in order.
    #[serde(default)]
    pub steps: Vec<BuildStep>,
    /// Environment of the steps and of every sandbox.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Working directory of tool calls.
    #[serde(default)]
    pub working_directory: Option<String>,
    /// User of tool calls.
    #[serde(default)]
    pub user: Option<String>,
    /// Command that a warm template keeps running.
    #[serde(default)]
    pub start_command: Option<String>,
    /// Command that succeeds once the start command is ready.
    #[serde(default)]
    pub ready_command: Option<String>,
    /// Ignore layers cached from earlier builds.
    #[serde(default)]
    pub no_cache: bool,
}

/// A template as lists and `inspect` show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TemplateInfo {
    /// Its name.
    pub name: TemplateName,
    /// When this version was built, in milliseconds since 1970.
    pub created_ms: u64,
    /// Where it came from.
    pub source: String,
    /// Ids of its layers, bottom first.
    pub layers: Vec<String>,
    /// Bytes that its layers take on disk; layers shared with other templates count here too.
    pub disk_bytes: u64,
    /// Environment of every sandbox.
    pub environment: BTreeMap<String, String>,
    /// Working directory of tool calls.
    pub working_directory: String,
    /// User of tool calls.
    pub user: String,
    /// Command that a warm template keeps running.
    pub start_command: Option<String>,
    /// Command that succeeds once the start command is ready.
    pub ready_command: Option<String>,
    /// Whether its sandboxes start with processes.
    #[serde(default)]
    pub warmth: Warmth,
    /// Sandboxes alive that came from it.
    pub sandboxes: usize,
}

/// Whether sandboxes of a template start with processes that are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warmth {
    /// They start with files alone.
    #[default]
    Cold,
    /// The start command has to be run, once, before the next one is made: the daemon was
    /// started after the template was built.
    Pending,
    /// They start with the processes of the start command, ready.
    Warm,
}

/// One layer of a template's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The layer's id.
    pub layer: String,
    /// What made it.
    pub created_by: String,
    /// Bytes it takes on disk.
    pub disk_bytes: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// Something that happened, for `brood events`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with each event; gaps tell a slow reader what it missed.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// What kind of thing it happened to.
    pub object: EventObject,
    /// Which one.
    pub id: String,
    /// What happened: `create`, `pause`, `resume`, `die`, `exec_start`, `exec_die`, `build`, `remove`.
    pub action: String,
    /// More, by name.
    pub attributes: BTreeMap<String, String>,
}

/// What an event happened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventObject {
    /// A sandbox.
    Sandbox,
    /// A template.
    Template,
    /// A tool call or background process.
    Process,
}

/// A line of a sandbox's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogRecord {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The process inside that it came from; none for the engine itself.
    pub pid: Option<u32>,
    /// `stdout`, `stderr` or `engine`.
    pub stream: String,
    /// The text, with bytes that are not UTF-8 replaced.
    pub text: String,
}

/// Durations on the wire: whole milliseconds, so that every language reads them as a plain number.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_travel_as_milliseconds() {
        let text = r#"{"arguments":["true"],"timeout_ms":1500}"#;
        let request: ProcessRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(serde_json::to_value(&request).unwrap()["timeout_ms"], 1500);
    }
}
