//! Every bound that the engine keeps, with its unit and its reason.

use std::time::Duration;

/// Memory that a sandbox may use when nothing is asked for: 2 GiB, room for a build or a test-suite.
pub const MEMORY_BYTES_DEFAULT: u64 = 2 << 30;
/// Least memory that a limit may name: below it PID 1 and a shell do not start.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Tasks (threads count) a sandbox may have when nothing is asked for.
pub const PIDS_DEFAULT: u32 = 1024;
/// Least number of tasks: PID 1, a shell and what it starts.
pub const PIDS_MIN: u32 = 4;
/// Sandboxes made by one request, so that a typing error does not fill the host.
pub const CREATE_COUNT_MAX: u32 = 1024;
/// Bytes of arguments and environment of one tool call: the kernel's own limit with an 8 MiB stack.
pub const ARGUMENT_BYTES_MAX: usize = 2 << 20;
/// Output of one stream kept while nobody reads it; the oldest goes first and the loss is counted.
pub const OUTPUT_BYTES_KEPT: usize = 1 << 20;
/// Output that may wait for a slow reader before the process is made to wait.
pub const OUTPUT_BYTES_AHEAD: usize = 1 << 20;
/// Ended tool calls a sandbox remembers, so that a late `wait` still finds the exit code.
pub const ENDED_PROCESSES_KEPT: usize = 64;
/// Records of a sandbox's log kept in memory.
pub const LOG_RECORDS_KEPT: usize = 4096;
/// Bytes that the texts of those records may take together: a record can be as large as one read.
pub const LOG_BYTES_KEPT: usize = 2 << 20;
/// Events kept for readers that come late.
pub const EVENTS_KEPT: usize = 4096;
/// Pages of memory that are kept ready for the next checkpoint at least: 8 MiB, twice what a tool
/// call of a usual session changes.
pub const PREPARED_PAGES_MIN: usize = 2048;
/// At most: 64 MiB, since what is ready is memory that nobody else has.
pub const PREPARED_PAGES_MAX: usize = 16 * 1024;
/// Time PID 1 has to set a sandbox up before it counts as broken.
pub const ENTER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between the kill of a call and the moment its death is taken for stuck.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(10);
