//! Which slots (outside addresses) and interface numbers are taken.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::address::Slot;
use crate::netlink::link::InterfaceIndex;

/// First and last slot: the lowest and the highest address of the outside range stay unused, as in any subnet.
const SLOT_FIRST: u16 = 1;
const SLOT_LAST: u16 = u16::MAX - 1;
/// Interface numbers of our own choice begin here, far above those that the kernel counts up from 1.
const INTERFACE_FIRST: u32 = 0x2000_0000;
/// How many numbers are used before they repeat.
const INTERFACES: u32 = 0x4000_0000;

/// Hands out slots and interface numbers. Both go round, so that one that was given back is not soon used again:
/// answers still under way to a sandbox that is gone then find nobody.
#[derive(Debug)]
pub(crate) struct Slots {
    taken: HashSet<u16>,
    next_slot: u16,
    next_interface: u32,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            taken: HashSet::new(),
            next_slot: SLOT_FIRST,
            next_interface: INTERFACE_FIRST + random_u32() % INTERFACES,
        }
    }

    /// A free slot, or `None` if all 65,534 are taken.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        let span = usize::from(SLOT_LAST - SLOT_FIRST) + 1;
        if self.taken.len() >= span {
            return None;
        }
        loop {
            let slot = self.next_slot;
            self.next_slot = if slot == SLOT_LAST { SLOT_FIRST } else { slot + 1 };
            if self.taken.insert(slot) {
                return Some(Slot(slot));
            }
        }
    }

    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.taken.remove(&slot.0);
    }

    /// The number for the next interface.
    pub(crate) fn next_interface(&mut self) -> InterfaceIndex {
        let index = self.next_interface;
        let following = (index - INTERFACE_FIRST + 1) % INTERFACES;
        self.next_interface = INTERFACE_FIRST + following;
        InterfaceIndex(index)
    }
}

/// An unpredictable number: the standard library keys its hashers from the kernel's random source.
pub(crate) fn random_u32() -> u32 {
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).expect("32 bits remain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_before_they_are_used_again() {
        let mut slots = Slots::new();
        let first = slots.take().unwrap();
        slots.give_back(first);
        for _ in 1..usize::from(SLOT_LAST - SLOT_FIRST) + 1 {
            let other = slots.take().unwrap();
            assert_ne!(other, first);
            slots.give_back(other);
        }
        assert_eq!(slots.take(), Some(first));
    }

    #[test]
    fn no_slot_is_given_twice() {
        let mut slots = Slots::new();
        let all: HashSet<u16> = std::iter::from_fn(|| slots.take()).map(|slot| slot.0).collect();
        assert_eq!(all.len(), 65_534);
        assert_eq!(slots.take(), None);
        slots.give_back(Slot(77));
        assert_eq!(slots.take(), Some(Slot(77)));
    }

    #[test]
    fn interface_numbers_stay_in_their_range() {
        let mut slots = Slots::new();
        slots.next_interface = INTERFACE_FIRST + INTERFACES - 1;
        assert_eq!(slots.next_interface().0, INTERFACE_FIRST + INTERFACES - 1);
        assert_eq!(slots.next_interface().0, INTERFACE_FIRST);
    }
}
