//! When to squeeze what: the scheduler's logic, without threads and without a clock.
//!
//! - [`GapEstimator`]: how long a think gap will last.
//! - [`PressureGate`]: whether memory is short, with hysteresis.
//! - [`Scheduler`]: which sandbox's work is next, and what is called off when a tool call begins.
//! - [`YieldEstimator`]: what squeezing a page brings and costs.
//! - [`RestlessPages`]: pages that are written again and again and are not worth squeezing.
//!
//! Time is a [`Duration`](std::time::Duration) since any fixed moment, handed in by the caller: a real clock in the engine, a
//! virtual one in tests.

mod gap;
mod pressure;
mod queue;
mod restless;
mod yields;

pub use gap::{GapEstimator, Hint};
pub use pressure::{Level, MemoryReading, PressureGate};
pub use queue::{Counters, Job, Lease, Policy, SandboxId, Scheduler, Settings};
pub use restless::RestlessPages;
pub use yields::YieldEstimator;
