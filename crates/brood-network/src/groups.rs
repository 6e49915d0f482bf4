//! Private networks: sandboxes of one group reach each other, by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::address::Slot;
use crate::firewall::GroupId;
use crate::network::lock;
use crate::policy::is_domain_name;

/// Most members of one group: each look-up goes through them, and nobody runs more services for one task.
const MEMBERS_MAX: usize = 256;

/// Why a sandbox could not join a group.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GroupError {
    /// Not usable as a host name.
    #[error("{name:?} is not a host name of letters, digits and dashes")]
    Name {
        /// The name given.
        name: String,
    },
    /// Another member has the name.
    #[error("the group {group:?} has a member called {name:?} already")]
    NameTaken {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// The group is full.
    #[error("the group {group:?} has {MEMBERS_MAX} members already")]
    Full {
        /// The group.
        group: String,
    },
}

/// Whether `name` can be a group's or a member's.
///
/// # Errors
/// [`GroupError::Name`] when it cannot.
pub fn check_group_name(name: &str) -> Result<(), GroupError> {
    if name.contains('.') || !is_domain_name(name) {
        return Err(GroupError::Name { name: name.to_owned() });
    }
    Ok(())
}

/// All groups, by name.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_name: HashMap<String, Arc<Group>>,
    next: u64,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    name: String,
    members: Mutex<HashMap<String, Slot>>,
}

impl Groups {
    /// Makes `slot` a member of `group` under `name`. Tells whether the group is new.
    pub(crate) fn join(&mut self, group: &str, name: &str, slot: Slot) -> Result<(Arc<Group>, bool), GroupError> {
        for text in [group, name] {
            check_group_name(text)?;
        }
        let (group, name) = (group.to_ascii_lowercase(), name.to_ascii_lowercase());
        let is_new = !self.by_name.contains_key(&group);
        let next = &mut self.next;
        let joined = self.by_name.entry(group.clone()).or_insert_with(|| {
            *next += 1;
            Arc::new(Group { id: GroupId(*next), name: group.clone(), members: Mutex::default() })
        });
        let mut members = lock(&joined.members);
        if members.contains_key(&name) {
            return Err(GroupError::NameTaken { group, name });
        }
        if members.len() >= MEMBERS_MAX {
            return Err(GroupError::Full { group });
        }
        members.insert(name, slot);
        drop(members);
        Ok((Arc::clone(joined), is_new))
    }

    /// Ends the membership of `slot`. Tells whether the group went with its last member.
    pub(crate) fn leave(&mut self, group: &Group, slot: Slot) -> bool {
        let mut members = lock(&group.members);
        members.retain(|_, member| *member != slot);
        let is_empty = members.is_empty();
        if is_empty {
            self.by_name.remove(&group.name);
        }
        is_empty
    }
}

impl Group {
    /// The member called `name` or `name.group`.
    pub(crate) fn find(&self, name: &str) -> Option<Slot> {
        let name = match name.split_once('.') {
            Some((member, group)) if group == self.name => member,
            Some(_) => return None,
            None => name,
        };
        lock(&self.members).get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_name() {
        let mut groups = Groups::default();
        let (group, is_new) = groups.join("Task1", "DB", Slot(3)).unwrap();
        assert!(is_new);
        assert_eq!(group.find("db"), Some(Slot(3)));
        assert_eq!(group.find("db.task1"), Some(Slot(3)));
        assert_eq!(group.find("db.task2"), None);
        assert_eq!(
            groups.join("task1", "db", Slot(4)).unwrap_err(),
            GroupError::NameTaken { group: "task1".to_owned(), name: "db".to_owned() }
        );
        assert!(!groups.join("task1", "web", Slot(4)).unwrap().1);
        assert!(!groups.leave(&group, Slot(4)));
        assert!(groups.leave(&group, Slot(3)));
        assert!(groups.join("task1", "db", Slot(5)).unwrap().1);
    }

    #[test]
    fn names_are_checked() {
        let mut groups = Groups::default();
        for wrong in ["", "a.b", "a b", "-a", "\u{e4}"] {
            assert!(groups.join("task", wrong, Slot(1)).is_err(), "{wrong}");
            assert!(groups.join(wrong, "name", Slot(1)).is_err(), "{wrong}");
        }
    }
}
