//! What a measurement was taken on.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine, its load and the versions, as printed with all results.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of Brood.
    pub brood: String,
    /// Whether this program was built with optimisation; figures of a debug build mean nothing.
    pub optimised: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// The processor's name.
    pub processor: String,
    /// Processors that this program may use.
    pub processors: usize,
    /// Physical memory in KiB.
    pub memory_kib: u64,
    /// Load average over a minute when the measurement began: what else ran.
    pub load_1m: f64,
    /// Which version of control groups limits are set by.
    pub cgroup: String,
    /// The file system of the state directory.
    pub file_system: String,
    /// When, in seconds since 1970.
    pub time_s: u64,
}

impl Environment {
    /// Looks at this machine.
    pub fn here(state_directory: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line_of = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split([':', '=']).nth(1)).unwrap_or("unknown").trim().trim_matches('"').to_owned()
        };
        let unified = read("/sys/fs/cgroup/cgroup.controllers");
        Self {
            brood: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: line_of(&read("/etc/os-release"), "PRETTY_NAME"),
            processor: line_of(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: crate::host::memory_field("MemTotal").unwrap_or(0),
            load_1m: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN),
            cgroup: if unified.contains("memory") { "v2" } else { "v1 for limits" }.to_owned(),
            file_system: file_system(state_directory),
            time_s: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |elapsed| elapsed.as_secs()),
        }
    }
}

/// The type of the mount that a path lies on: the longest mount point that the path begins with.
fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let best = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    best.map_or("unknown", |(_, kind)| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let here = Environment::here(Path::new("/proc/self"));
        assert_eq!(here.file_system, "proc");
        assert!(here.memory_kib > 0 && here.kernel.contains('.'));
        assert!(here.load_1m.is_finite());
    }
}
