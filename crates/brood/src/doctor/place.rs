//! Where Brood keeps its things, and the programs that it calls.

use std::fs;
use std::path::{Path, PathBuf};

use brood_deltafs::LimitMechanism;

use super::Check;
use crate::output::bytes;
use crate::settings::Settings;

/// Room below which no template can be built.
const DISK_BYTES_NEEDED: u64 = 1 << 30;
/// Room for a few templates with their packages.
const DISK_BYTES_WANTED: u64 = 10 << 30;
/// Ids of the range that sandboxes use.
const SUBUID_COUNT: u64 = 65_536;

pub(super) fn examine(settings: &Settings) -> Vec<Check> {
    let state = existing_parent(&settings.state_directory.value);
    vec![
        file_system(settings, &state),
        disk_space(&state),
        disk_limits(&state),
        user_ids(settings.subuid_base.value),
        tool("mmdebstrap", "mmdebstrap", "needed for templates from debian:SUITE"),
        daemon(settings),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The directory itself or the nearest one above it that is there.
fn existing_parent(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn file_system(settings: &Settings, state: &Path) -> Option<Check> {
    const NAME: &str = "state_directory";
    /// Magic numbers of statfs(2), from the kernel's `linux/magic.h`.
    const KNOWN: [(i64, &str); 9] = [
        (0xef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlay"),
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0x6573_5546, "fuse"),
        (0x2fc1_2fc1, "zfs"),
    ];
    let magic = rustix::fs::statfs(state).ok()?.f_type;
    let kind = KNOWN.iter().find(|(known, _)| *known == magic).map_or("another file system", |(_, name)| name);
    let found = format!("{} on {kind}", settings.state_directory.value.display());
    Some(match kind {
        "overlay" | "nfs" | "cifs" | "fuse" => Check::fail(
            NAME,
            found,
            "overlay mounts cannot write there: set state_directory to a place on ext4, xfs or btrfs",
        ),
        "tmpfs" => Check::warn(
            NAME,
            found,
            "templates take memory and are gone after a restart: set state_directory to a place on a disk",
        ),
        _ => Check::ok(NAME, found),
    })
}

fn disk_space(state: &Path) -> Option<Check> {
    const NAME: &str = "disk_space";
    let status = rustix::fs::statvfs(state).ok()?;
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    let found = format!("{} free", bytes(free));
    let remedy = "free some, or set state_directory to a larger disk";
    Some(if free < DISK_BYTES_NEEDED {
        Check::fail(NAME, found, remedy)
    } else if free < DISK_BYTES_WANTED {
        Check::warn(NAME, found, remedy)
    } else {
        Check::ok(NAME, found)
    })
}

fn disk_limits(state: &Path) -> Option<Check> {
    let support = brood_deltafs::limit_support(state);
    Some(match support.mechanism {
        Some(LimitMechanism::ProjectQuota | LimitMechanism::Image) => Check::ok("disk_limits", support.reason),
        None => Check::warn("disk_limits", "--disk is refused", support.reason),
    })
}

/// Whether somebody else was given the ids that sandboxes use.
fn user_ids(base: u32) -> Option<Check> {
    const NAME: &str = "user_ids";
    let (first, end) = (u64::from(base), u64::from(base) + SUBUID_COUNT);
    for file in ["/etc/subuid", "/etc/subgid"] {
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            let fields: Vec<_> = line.split(':').collect();
            let [owner, start, count] = fields[..] else { continue };
            let (Ok(start), Ok(count)) = (start.parse::<u64>(), count.parse::<u64>()) else { continue };
            if owner != "brood" && start < end && first < start.saturating_add(count) {
                return Some(Check::warn(
                    NAME,
                    format!("{first} to {} overlap with those of {owner} in {file}", end - 1),
                    "set subuid_base to a range of 65,536 ids that nobody else uses",
                ));
            }
        }
    }
    Some(Check::ok(NAME, format!("{first} to {}", end - 1)))
}

fn tool(name: &'static str, package: &str, purpose: &str) -> Option<Check> {
    let path = std::env::var_os("PATH")?;
    match std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file()) {
        Some(found) => Some(Check::ok(name, found.display().to_string())),
        None => Some(Check::warn(name, "not installed", format!("apt-get install {package}; {purpose}"))),
    }
}

fn daemon(settings: &Settings) -> Option<Check> {
    const NAME: &str = "daemon";
    let socket = settings.socket();
    match std::os::unix::net::UnixStream::connect(&socket) {
        Ok(_) => Some(Check::ok(NAME, format!("answers on {}", socket.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Some(Check::warn(
            NAME,
            format!("{} may not be opened", socket.display()),
            "run commands as root or as a member of the setting socket_group",
        )),
        Err(_) => Some(Check::ok(NAME, "none runs; the first command that needs one starts it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_not_there_yet_are_judged_by_their_parent() {
        assert_eq!(existing_parent(Path::new("/proc/self/nothing/here")), Path::new("/proc/self"));
    }
}
