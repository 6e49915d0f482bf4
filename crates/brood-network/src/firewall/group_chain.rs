//! Who may talk to whom: a set of members for each group, and a chain for each member that is in any.

use super::expression::Rule;
use super::skeleton::GROUPS;
use super::transaction::{SetKind, Transaction};
use crate::netlink::link::InterfaceIndex;

/// The number of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(pub(crate) u64);

impl GroupId {
    fn members(self) -> String {
        format!("members_{}", self.0)
    }
}

fn chain_of(port: InterfaceIndex) -> String {
    format!("neighbours_{}", port.0)
}

/// Puts `port` into `group`, which is created if it `is_new`.
pub(super) fn join(
    change: &mut Transaction<'_>,
    port: InterfaceIndex,
    group: GroupId,
    is_new: bool,
    is_first_of_port: bool,
) {
    let members = group.members();
    if is_new {
        change.add_set(&members, SetKind::Interfaces);
    }
    change.add_interface(&members, port);
    let chain = chain_of(port);
    if is_first_of_port {
        change.add_chain(&chain);
    }
    change.add_rule(&chain, &Rule::new().outgoing_in(&members).accept());
    if is_first_of_port {
        change.map_to_chain(GROUPS, port, &chain);
    }
}

/// Takes `port` out of its groups, which are deleted where it was the last member.
pub(super) fn leave_all(change: &mut Transaction<'_>, port: InterfaceIndex, groups: &[(GroupId, bool)]) {
    if groups.is_empty() {
        return;
    }
    change.delete_interface(GROUPS, port);
    change.delete_chain(&chain_of(port));
    for (group, is_empty) in groups {
        change.delete_interface(&group.members(), port);
        if *is_empty {
            change.delete_set(&group.members());
        }
    }
}
