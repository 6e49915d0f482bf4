//! Control groups: which hierarchy holds the controllers that limits need.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::Check;

/// Without these no limit holds.
const NEEDED: [&str; 2] = ["memory", "pids"];
/// Without this one `--cpus` is refused.
const WANTED: &str = "cpu";

pub(super) fn examine() -> Vec<Check> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchies = hierarchies(&mounts);
    vec![version_two(&hierarchies), limits(&hierarchies)]
}

/// Where control groups are mounted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hierarchies {
    version_two: Option<PathBuf>,
    /// Controllers of version 1, with their mount points.
    version_one: BTreeMap<String, PathBuf>,
}

fn hierarchies(mounts: &str) -> Hierarchies {
    let mut found = Hierarchies::default();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4) else { continue };
        let mut after = after.split(' ');
        match after.next() {
            Some("cgroup2") => {
                found.version_two.get_or_insert_with(|| point.into());
            }
            Some("cgroup") => {
                for option in after.next_back().unwrap_or_default().split(',') {
                    found.version_one.entry(option.to_owned()).or_insert_with(|| point.into());
                }
            }
            _ => {}
        }
    }
    found
}

fn version_two(found: &Hierarchies) -> Check {
    const NAME: &str = "cgroup_v2";
    match &found.version_two {
        Some(point) => Check::ok(NAME, format!("mounted at {}", point.display())),
        None => Check::fail(
            NAME,
            "not mounted",
            "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1",
        ),
    }
}

fn limits(found: &Hierarchies) -> Check {
    const NAME: &str = "cgroup_limits";
    let unified = found
        .version_two
        .as_ref()
        .and_then(|point| fs::read_to_string(point.join("cgroup.controllers")).ok())
        .unwrap_or_default();
    let place = |controller: &str| {
        if unified.split_whitespace().any(|known| known == controller) {
            Some("v2")
        } else {
            found.version_one.contains_key(controller).then_some("v1")
        }
    };
    let missing: Vec<_> = NEEDED.into_iter().filter(|controller| place(controller).is_none()).collect();
    if !missing.is_empty() {
        return Check::fail(
            NAME,
            format!("no controller for {}", missing.join(", ")),
            "boot with cgroup_enable=memory, and mount the controllers in one of the two versions",
        );
    }
    let places: Vec<_> = NEEDED
        .into_iter()
        .chain([WANTED])
        .filter_map(|controller| Some(format!("{controller} on {}", place(controller)?)))
        .collect();
    if place(WANTED).is_none() {
        return Check::warn(NAME, places.join(", "), "without the cpu controller --cpus is refused");
    }
    Check::ok(NAME, places.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let mounts = "\
            31 23 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            32 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n\
            33 23 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
            broken line\n";
        let found = hierarchies(mounts);
        assert_eq!(found.version_two, Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(found.version_one["memory"], PathBuf::from("/sys/fs/cgroup/memory"));
        assert_eq!(found.version_one["cpuacct"], PathBuf::from("/sys/fs/cgroup/cpu"));
    }

    #[test]
    fn missing_controllers_are_named() {
        let check = limits(&Hierarchies::default());
        assert!(check.found.contains("memory, pids"), "{check}");
    }
}
