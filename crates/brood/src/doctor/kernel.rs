//! The kernel: its version, and the features that sandboxes stand on.

use std::fs;
use std::path::Path;

use brood_kernel::userfaultfd::{Features, Userfaultfd};

use super::{Check, value};

/// Oldest kernel that has all that is used.
const KERNEL_MIN: (u32, u32) = (6, 8);
/// Mappings that one process may have: sandboxes of large programs, and later the pager, need more
/// than the kernel's default of 65,530.
const MAP_COUNT_WANTED: u64 = 262_144;
/// Inotify instances for one user: all sandboxes share one range of users, so they add up.
const INOTIFY_INSTANCES_WANTED: u64 = 1024;
/// User namespaces: one for each sandbox, and room for what programs inside make.
const USER_NAMESPACES_WANTED: u64 = 4096;

pub(super) fn examine() -> Vec<Check> {
    vec![
        version(),
        architecture(),
        privilege(),
        overlay(),
        user_namespaces(),
        userfaultfd(),
        seccomp(),
        map_count(),
        inotify(),
        swap(),
    ]
}

fn version() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match parse_version(release) {
        Some(version) if version >= KERNEL_MIN => Check::ok("kernel", format!("Linux {release}")),
        _ => Check::fail(
            "kernel",
            format!("Linux {release}"),
            "Linux 6.8 or later is needed; Debian 13, Ubuntu 24.04 and Debian 12's backports have it",
        ),
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn architecture() -> Check {
    match std::env::consts::ARCH {
        "x86_64" => Check::ok("architecture", "x86-64"),
        other => Check::fail("architecture", other, "only x86-64 is supported"),
    }
}

fn privilege() -> Check {
    /// CAP_SYS_ADMIN's place in the set.
    const ADMIN: u64 = 1 << 21;
    let capabilities = fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    let root = rustix::process::geteuid().is_root();
    match capabilities {
        Some(set) if root && set & ADMIN != 0 => Check::ok("privilege", "root with CAP_SYS_ADMIN"),
        _ if root => {
            Check::fail("privilege", "root without CAP_SYS_ADMIN", "run the daemon outside of a restricted container")
        }
        _ => Check::warn(
            "privilege",
            "not root, so this looks at the host but could not serve",
            "run the daemon as root; others may use its socket by the setting socket_group",
        ),
    }
}

fn file_system_known(name: &str) -> bool {
    fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.split_whitespace().any(|known| known == name))
}

fn overlay() -> Check {
    if file_system_known("overlay") {
        return Check::ok("overlay", "the kernel has it");
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let module = format!("/lib/modules/{}/kernel/fs/overlayfs", release.trim());
    if Path::new(&module).exists() {
        return Check::warn("overlay", "a module that is not loaded", "modprobe overlay");
    }
    Check::fail("overlay", "the kernel lacks it", "use a kernel with CONFIG_OVERLAY_FS")
}

fn user_namespaces() -> Check {
    const NAME: &str = "user_namespaces";
    match value::<u64>("/proc/sys/user/max_user_namespaces") {
        None => Check::fail(NAME, "the kernel lacks them", "use a kernel with CONFIG_USER_NS"),
        Some(0) => Check::fail(NAME, "forbidden", "sysctl user.max_user_namespaces=65536"),
        Some(max) if max < USER_NAMESPACES_WANTED => {
            Check::warn(NAME, format!("at most {max}, one for each sandbox"), "sysctl user.max_user_namespaces=65536")
        }
        Some(max) => Check::ok(NAME, format!("at most {max}")),
    }
}

fn userfaultfd() -> Check {
    const NAME: &str = "userfaultfd";
    let wanted = Features::WRITE_PROTECT_ASYNC | Features::WRITE_PROTECT_UNPOPULATED;
    match Userfaultfd::for_this_process(wanted) {
        Ok(_) => Check::ok(NAME, "with asynchronous write protection"),
        Err(error) => Check::warn(
            NAME,
            format!("not usable here ({error})"),
            "checkpoints and page compression need it: a kernel with CONFIG_USERFAULTFD, 6.7 or later",
        ),
    }
}

fn seccomp() -> Check {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "errno") {
        Check::ok("seccomp", "filters are available")
    } else {
        Check::fail("seccomp", "the kernel lacks filters", "use a kernel with CONFIG_SECCOMP_FILTER")
    }
}

fn map_count() -> Check {
    match value::<u64>("/proc/sys/vm/max_map_count") {
        Some(count) if count >= MAP_COUNT_WANTED => Check::ok("max_map_count", count.to_string()),
        found => Check::warn(
            "max_map_count",
            found.map_or("unknown".to_owned(), |count| count.to_string()),
            format!("sysctl vm.max_map_count={MAP_COUNT_WANTED}; large programs need it once pages are compressed"),
        ),
    }
}

fn inotify() -> Check {
    match value::<u64>("/proc/sys/fs/inotify/max_user_instances") {
        Some(count) if count >= INOTIFY_INSTANCES_WANTED => Check::ok("inotify", format!("{count} instances a user")),
        found => Check::warn(
            "inotify",
            format!("{} instances a user, shared by all sandboxes", found.unwrap_or(0)),
            format!("sysctl fs.inotify.max_user_instances={INOTIFY_INSTANCES_WANTED}"),
        ),
    }
}

fn swap() -> Check {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    match swaps.lines().skip(1).count() {
        0 => Check::ok("swap", "none, so memory limits are exact"),
        count => Check::ok("swap", format!("{count} area(s); memory limits leave swap out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(parse_version("6.18.44-custom"), Some((6, 18)));
        assert_eq!(parse_version("6.8.0-31-generic"), Some((6, 8)));
        assert_eq!(parse_version("7.0"), Some((7, 0)));
        assert_eq!(parse_version("garbage"), None);
    }
}
