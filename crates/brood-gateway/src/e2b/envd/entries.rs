//! Files and directories as the clients see them.

use std::collections::HashMap;
use std::path::Path;

use brood_sandbox::files::{Entry, EntryKind, Files};
use brood_sandbox::users::Names;

use super::messages::{EntryInfo, Timestamp};

/// Beginning of the names of attributes that clients set.
pub(super) const METADATA_PREFIX: &str = "user.e2b.";
const TYPE_UNSPECIFIED: i32 = 0;
const TYPE_FILE: i32 = 1;
const TYPE_DIRECTORY: i32 = 2;

/// Describes an entry, which [`Files::stat`] or [`Files::list`] gave.
pub(super) fn describe(files: &Files, names: &Names, entry: Entry) -> EntryInfo {
    let is_symlink = entry.kind == EntryKind::Symlink;
    // A link counts as what it leads to.
    let target = is_symlink.then(|| files.stat_followed(&entry.path).ok());
    let (kind, mode) = match &target {
        None => (kind(entry.kind), entry.mode),
        Some(Some(target)) => (kind(target.kind), target.mode),
        Some(None) => (TYPE_UNSPECIFIED, entry.mode),
    };
    let metadata = match entry.kind {
        EntryKind::File | EntryKind::Directory => files.attributes(&entry.path, METADATA_PREFIX).into_iter().collect(),
        EntryKind::Symlink | EntryKind::Other => HashMap::new(),
    };
    EntryInfo {
        name: entry.name,
        kind,
        size: i64::try_from(entry.size).unwrap_or(i64::MAX),
        mode: mode & 0o777,
        permissions: permissions(entry.kind, entry.mode),
        owner: names.user(entry.uid),
        group: names.group(entry.gid),
        modified_time: Some(Timestamp::of(entry.modified_ms)),
        symlink_target: entry.symlink_target.as_deref().map(|target| absolute_target(&entry.path, target)),
        path: entry.path,
        metadata,
        is_symlink,
    }
}

fn kind(kind: EntryKind) -> i32 {
    match kind {
        EntryKind::File => TYPE_FILE,
        EntryKind::Directory => TYPE_DIRECTORY,
        EntryKind::Symlink | EntryKind::Other => TYPE_UNSPECIFIED,
    }
}

fn absolute_target(link: &str, target: &str) -> String {
    let parent = Path::new(link).parent().unwrap_or(Path::new("/"));
    parent.join(target).to_string_lossy().into_owned()
}

/// As Go writes them: `-rw-r--r--`, `drwxr-xr-x`, a link with `L`.
fn permissions(kind: EntryKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'L',
        EntryKind::File | EntryKind::Other => '-',
    });
    for shift in [6, 3, 0] {
        let bits = mode >> shift & 7;
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if bits & bit != 0 { letter } else { '-' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_go() {
        assert_eq!(permissions(EntryKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(EntryKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(EntryKind::Symlink, 0o777), "Lrwxrwxrwx");
        assert_eq!(absolute_target("/a/b", "../c"), "/a/../c");
        assert_eq!(absolute_target("/a/b", "/c"), "/c");
    }
}
