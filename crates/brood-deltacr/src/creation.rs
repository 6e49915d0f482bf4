//! The order in which a tree's processes are made so that ids, parents, sessions and groups come
//! out as they were. Pure planning; the plan is carried out by [`crate::restore`].
//!
//! A process gets its session from its creator at birth and can only leave it by founding its
//! own, so a child that is in its parent's former session must be born before the parent
//! founds its own. Where the creator has ended long since, a *ghost* stands in for it: a process
//! made with the old id that ends when everybody is in place.

use std::collections::BTreeMap;

use crate::error::NamespacePid;

/// What a plan needs to know of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relations {
    pub(crate) pid: NamespacePid,
    pub(crate) parent: NamespacePid,
    pub(crate) group: NamespacePid,
    pub(crate) session: NamespacePid,
}

/// Who makes a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// The stub, a process of the engine's that ends at the end; its children become PID 1's.
    Stub,
    /// A process of the plan, which becomes its parent.
    Process(NamespacePid),
    /// A process of the plan, as a sibling: it gets the maker's parent.
    Sibling(NamespacePid),
}

/// A process to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) pid: NamespacePid,
    pub(crate) maker: Maker,
    /// Made before its maker founds its own session.
    pub(crate) early: bool,
    /// Founds a session of its own.
    pub(crate) founds_session: bool,
    /// The group that it joins or founds; `None` if it has it by founding a session.
    pub(crate) group: Option<NamespacePid>,
    /// Ends when everybody is in place.
    pub(crate) ghost: bool,
}

/// Why no plan exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unplannable {
    pub(crate) pid: NamespacePid,
    pub(crate) reason: &'static str,
}

/// All births, makers before those they make.
pub(crate) fn plan(processes: &[Relations]) -> Result<Vec<Birth>, Unplannable> {
    Planner { by_pid: processes.iter().map(|process| (process.pid, *process)).collect(), births: BTreeMap::new() }
        .plan(processes)
}

struct Planner {
    by_pid: BTreeMap<NamespacePid, Relations>,
    births: BTreeMap<NamespacePid, Birth>,
}

impl Planner {
    fn plan(mut self, processes: &[Relations]) -> Result<Vec<Birth>, Unplannable> {
        for process in processes {
            let unplannable = |reason| Unplannable { pid: process.pid, reason };
            if process.session == NamespacePid::INIT || process.group == NamespacePid::INIT {
                return Err(unplannable("it is in the session or group of PID 1"));
            }
            let (maker, early) = self.maker(process)?;
            let founds_session = process.session == process.pid;
            let group = (!founds_session).then_some(process.group);
            let birth = Birth { pid: process.pid, maker, early, founds_session, group, ghost: false };
            self.births.insert(process.pid, birth);
        }
        for process in processes {
            self.add_ghost_of_group(process)?;
        }
        Ok(self.in_order())
    }

    fn maker(&mut self, process: &Relations) -> Result<(Maker, bool), Unplannable> {
        if let Some(parent) = self.by_pid.get(&process.parent).copied() {
            let maker = Maker::Process(parent.pid);
            if process.session == process.pid || process.session == parent.session {
                return Ok((maker, false));
            }
            if parent.session == parent.pid && self.session_at_birth(&parent) == Some(process.session) {
                return Ok((maker, true));
            }
            return Err(Unplannable { pid: process.pid, reason: "its session is not one that its parent was in" });
        }
        if process.session == process.pid {
            return Ok((Maker::Stub, false));
        }
        match self.by_pid.get(&process.session).copied() {
            Some(leader) if self.by_pid.contains_key(&leader.parent) => {
                // The leader is deeper in the tree: a ghost child of it makes the orphan.
                Ok((Maker::Process(self.ghost_below(leader.pid)?), false))
            }
            Some(leader) => Ok((Maker::Sibling(leader.pid), false)),
            None => {
                self.births.entry(process.session).or_insert(Birth {
                    pid: process.session,
                    maker: Maker::Stub,
                    early: false,
                    founds_session: true,
                    group: None,
                    ghost: true,
                });
                Ok((Maker::Process(process.session), false))
            }
        }
    }

    /// The session that a process was born into.
    fn session_at_birth(&self, process: &Relations) -> Option<NamespacePid> {
        let parent = self.by_pid.get(&process.parent)?;
        let birth = self.births.get(&process.pid)?;
        if birth.early { self.session_at_birth(parent) } else { Some(parent.session) }
    }

    /// A ghost child of a process, with an id that nobody else has.
    fn ghost_below(&mut self, maker: NamespacePid) -> Result<NamespacePid, Unplannable> {
        let existing = self.births.values().find(|birth| birth.ghost && birth.maker == Maker::Process(maker));
        if let Some(existing) = existing {
            return Ok(existing.pid);
        }
        let pid = self.free_id();
        self.add_ghost(pid, Maker::Process(maker), None);
        Ok(pid)
    }

    /// An id that no process, group or session of the plan has.
    fn free_id(&self) -> NamespacePid {
        let processes = self.by_pid.values().flat_map(|process| [process.pid, process.group, process.session]);
        let highest = processes.chain(self.births.keys().copied()).max().unwrap_or(NamespacePid::INIT);
        NamespacePid(highest.0 + 1)
    }

    fn add_ghost(&mut self, pid: NamespacePid, maker: Maker, group: Option<NamespacePid>) {
        let birth = Birth { pid, maker, early: false, founds_session: false, group, ghost: true };
        self.births.insert(pid, birth);
    }

    /// A group whose first member has ended needs it for a moment.
    fn add_ghost_of_group(&mut self, process: &Relations) -> Result<(), Unplannable> {
        let group = process.group;
        if self.births.contains_key(&group) {
            return Ok(());
        }
        let leader = process.session;
        if !self.births.contains_key(&leader) {
            return Err(Unplannable { pid: process.pid, reason: "its group is of a session that has no process left" });
        }
        self.add_ghost(group, Maker::Process(leader), Some(group));
        Ok(())
    }

    /// Sorts births so that makers come first.
    fn in_order(self) -> Vec<Birth> {
        let mut ordered: Vec<Birth> = Vec::with_capacity(self.births.len());
        let mut waiting: Vec<Birth> = self.births.into_values().collect();
        while !waiting.is_empty() {
            let before = ordered.len();
            waiting.retain(|birth| {
                let ready = match birth.maker {
                    Maker::Stub => true,
                    Maker::Process(maker) | Maker::Sibling(maker) => ordered.iter().any(|made| made.pid == maker),
                };
                if ready {
                    ordered.push(*birth);
                }
                !ready
            });
            debug_assert!(ordered.len() > before, "every maker is in the plan");
            if ordered.len() == before {
                break;
            }
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relations(pid: i32, parent: i32, group: i32, session: i32) -> Relations {
        let id = NamespacePid;
        Relations { pid: id(pid), parent: id(parent), group: id(group), session: id(session) }
    }

    fn birth(births: &[Birth], pid: i32) -> Birth {
        *births.iter().find(|birth| birth.pid.0 == pid).unwrap()
    }

    #[test]
    fn a_shell_and_its_jobs() {
        let births = plan(&[relations(5, 1, 5, 5), relations(6, 5, 6, 5), relations(7, 5, 6, 5)]).unwrap();
        assert_eq!(births.len(), 3);
        assert!(birth(&births, 5).founds_session && birth(&births, 5).maker == Maker::Stub);
        assert_eq!(birth(&births, 7).maker, Maker::Process(NamespacePid(5)));
        assert_eq!(birth(&births, 7).group, Some(NamespacePid(6)));
    }

    #[test]
    fn a_background_process_whose_session_leader_has_ended_gets_a_ghost() {
        let births = plan(&[relations(9, 1, 7, 7)]).unwrap();
        let ghost = birth(&births, 7);
        assert!(ghost.ghost && ghost.founds_session && ghost.maker == Maker::Stub);
        assert_eq!(birth(&births, 9).maker, Maker::Process(NamespacePid(7)));
    }

    #[test]
    fn an_orphan_of_a_living_session_is_made_by_the_leader() {
        let births = plan(&[relations(5, 1, 5, 5), relations(8, 1, 8, 5)]).unwrap();
        assert_eq!(birth(&births, 8).maker, Maker::Sibling(NamespacePid(5)));
        let deep = plan(&[relations(5, 1, 5, 5), relations(6, 5, 6, 6), relations(8, 1, 6, 6)]).unwrap();
        let Maker::Process(ghost) = birth(&deep, 8).maker else { panic!() };
        assert!(birth(&deep, ghost.0).ghost);
        assert_eq!(birth(&deep, ghost.0).maker, Maker::Process(NamespacePid(6)));
    }

    #[test]
    fn a_child_of_the_parents_former_session_is_born_early() {
        let births = plan(&[relations(5, 1, 5, 5), relations(6, 5, 6, 6), relations(7, 6, 5, 5)]).unwrap();
        assert!(birth(&births, 7).early);
        assert!(!birth(&births, 6).early);
    }

    #[test]
    fn a_group_without_its_founder_gets_a_ghost() {
        let births = plan(&[relations(5, 1, 5, 5), relations(8, 5, 6, 5)]).unwrap();
        let ghost = birth(&births, 6);
        assert_eq!(
            (ghost.ghost, ghost.group, ghost.maker),
            (true, Some(NamespacePid(6)), Maker::Process(NamespacePid(5)))
        );
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert_eq!(plan(&[relations(5, 1, 1, 1)]).unwrap_err().pid.0, 5);
        assert_eq!(plan(&[relations(5, 1, 5, 5), relations(6, 5, 9, 9)]).unwrap_err().pid.0, 6);
    }
}
