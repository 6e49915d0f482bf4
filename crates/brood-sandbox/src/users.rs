//! Users of a sandbox: names looked up in the sandbox's own `/etc/passwd` and `/etc/group`.
//!
//! Both files are written by whoever runs inside, so they are data with bounds, never trusted.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use brood_init_protocol::spawn::GROUPS_MAX;
use brood_kernel::beneath::Root;
use rustix::fs::{Mode, OFlags};

use crate::error::{EngineError, ErrorKind, Result};

/// Largest `/etc/passwd` or `/etc/group` that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Ids that the sub-uid range has room for.
const ID_END: u32 = 65536;

/// Who a tool call runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: String,
    /// Name, where the user has one.
    pub name: String,
}

/// Looks up `name`, `uid`, `name:group` or `uid:gid` in the root.
///
/// # Errors
/// `Invalid` when there is no such user or group, with the name in the message.
pub(crate) fn look_up(root: &Root, text: &str) -> Result<Identity> {
    let passwd = read(root, "etc/passwd");
    let group = read(root, "etc/group");
    resolve(text, &passwd, &group)
}

/// Names by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// The name of a user, or the number as text.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The name of a group, or the number as text.
    pub fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// All names in the root; the first of a number counts.
pub(crate) fn names(root: &Root) -> Names {
    let (passwd, group) = (read(root, "etc/passwd"), read(root, "etc/group"));
    let mut names = Names::default();
    for user in users(&passwd) {
        names.users.entry(user.uid).or_insert_with(|| user.name.to_owned());
    }
    for (name, gid, _) in groups(&group) {
        names.groups.entry(gid).or_insert_with(|| name.to_owned());
    }
    names
}

fn resolve(text: &str, passwd: &str, group: &str) -> Result<Identity> {
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let entry = users(passwd).find(|entry| entry.name == user);
    let entry = entry.or_else(|| {
        let uid: u32 = user.parse().ok()?;
        users(passwd).find(|entry| entry.uid == uid)
    });
    let mut identity = match (entry, user.parse::<u32>()) {
        (Some(entry), _) => Identity {
            uid: entry.uid,
            gid: entry.gid,
            groups: groups_of(group, entry.name, entry.gid),
            home: entry.home.to_owned(),
            name: entry.name.to_owned(),
        },
        // As in Docker: a number without an entry runs with that user id and group 0.
        (None, Ok(uid)) if uid < ID_END => {
            Identity { uid, gid: 0, groups: Vec::new(), home: "/".to_owned(), name: uid.to_string() }
        }
        _ => return Err(no_such("user", user, "/etc/passwd")),
    };
    if let Some(wanted) = wanted_group {
        identity.gid = group_id(group, wanted).ok_or_else(|| no_such("group", wanted, "/etc/group"))?;
        identity.groups = Vec::new();
    }
    Ok(identity)
}

fn no_such(kind: &str, name: &str, file: &str) -> EngineError {
    let shown: String = name.chars().take(64).collect();
    let message = format!("no {kind} {shown:?} in the sandbox's {file}: create it in the template, or give a number");
    EngineError::new(ErrorKind::Invalid, message)
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn users(passwd: &str) -> impl Iterator<Item = User<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = fields.nth(1)?.parse().ok().filter(|uid| *uid < ID_END)?;
        let gid = fields.next()?.parse().ok().filter(|gid| *gid < ID_END)?;
        let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/");
        Some(User { name, uid, gid, home })
    })
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok().filter(|gid| *gid < ID_END)?;
        Some((name, gid, fields.next().unwrap_or("")))
    })
}

fn group_id(group: &str, wanted: &str) -> Option<u32> {
    let by_name = groups(group).find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid);
    by_name.or_else(|| wanted.parse().ok().filter(|gid| *gid < ID_END))
}

fn groups_of(group: &str, user: &str, primary: u32) -> Vec<u32> {
    let mut found = vec![primary];
    for (_, gid, members) in groups(group) {
        let is_member = members.split(',').any(|member| member.trim() == user);
        if is_member && !found.contains(&gid) && found.len() < GROUPS_MAX {
            found.push(gid);
        }
    }
    found
}

/// The file as text; a file that is missing, too large or no text counts as empty.
fn read(root: &Root, path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = root.open_file(Path::new(path), flags, Mode::empty()) else { return String::new() };
    read_bounded(file).unwrap_or_default()
}

fn read_bounded(file: OwnedFd) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::from(file).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:1001:,,,:/home/user:/bin/sh\n\
                          far:x:4000000000:0::/:/bin/sh\nrel:x:7:7::etc:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nuser:x:1001:\ndocker:x:99:other,user\nsudo:x:27:user\n";

    #[test]
    fn names_and_numbers_are_found() {
        let user = resolve("user", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (1000, 1001, "/home/user"));
        assert_eq!(user.groups, [1001, 99, 27]);
        assert_eq!(resolve("1000", PASSWD, GROUP).unwrap(), user);
        let unknown = resolve("4242", PASSWD, GROUP).unwrap();
        assert_eq!((unknown.uid, unknown.gid, unknown.home.as_str()), (4242, 0, "/"));
        let chosen = resolve("user:docker", PASSWD, GROUP).unwrap();
        assert_eq!((chosen.gid, chosen.groups.len()), (99, 0));
        assert_eq!(resolve("0:5", PASSWD, GROUP).unwrap().gid, 5);
        assert_eq!(resolve("rel", PASSWD, GROUP).unwrap().home, "/");
    }

    #[test]
    fn what_does_not_exist_is_refused_by_name() {
        for text in ["nobody", "far", "4000000000", "user:none", "", "-1"] {
            let error = resolve(text, PASSWD, GROUP).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
