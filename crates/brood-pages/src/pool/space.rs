//! A cohort's live blocks, in classes by free bytes.

/// Steps between two powers of two: classes differ by a quarter at most.
const STEPS_LOG2: u32 = 2;

/// Blocks with fewer free bytes are not offered: hardly any frame is smaller.
const MIN_FREE_LOG2: u32 = 4;

/// The largest class holds empty blocks, whose free bytes are `1 << 16`.
const CLASSES: usize = ((16 - MIN_FREE_LOG2) << STEPS_LOG2) as usize + 1;

/// Lists of block numbers by free-space class.
#[derive(Debug)]
pub(super) struct Space {
    classes: Vec<Vec<u32>>,
}

impl Space {
    pub(super) fn new() -> Self {
        Self { classes: vec![Vec::new(); CLASSES] }
    }

    /// The class of a block with this many free bytes, `None` if it has too few to be offered.
    pub(super) fn class_of(free_bytes: usize) -> Option<usize> {
        let octave = free_bytes.checked_ilog2()?.checked_sub(MIN_FREE_LOG2)?;
        let step = (free_bytes >> (octave + MIN_FREE_LOG2 - STEPS_LOG2)) & ((1 << STEPS_LOG2) - 1);
        Some((octave << STEPS_LOG2) as usize + step)
    }

    /// A block that surely has room for `bytes`, from the fullest class that has one.
    pub(super) fn find(&self, bytes: usize) -> Option<u32> {
        // One more than the class of the largest size that might not fit.
        let first = Self::class_of(bytes.saturating_sub(1)).map_or(0, |class| class + 1);
        self.classes.get(first..)?.iter().find_map(|class| class.last().copied())
    }

    /// Adds a block and returns its position in the class's list.
    pub(super) fn insert(&mut self, class: usize, block: u32) -> u32 {
        self.classes[class].push(block);
        self.classes[class].len() as u32 - 1
    }

    /// Removes the block at `position`; returns the block that took its position, if any.
    pub(super) fn remove(&mut self, class: usize, position: u32) -> Option<u32> {
        let list = &mut self.classes[class];
        list.swap_remove(position as usize);
        list.get(position as usize).copied()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let lists = self.classes.iter().map(|list| list.capacity() * size_of::<u32>()).sum::<usize>();
        lists + self.classes.capacity() * size_of::<Vec<u32>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_found_block_always_has_room() {
        for free in 16..=1usize << 16 {
            let mut space = Space::new();
            let class = Space::class_of(free).expect("sixteen bytes are offered");
            space.insert(class, 1);
            let fits = (free * 3 / 4, free);
            assert_eq!(space.find(free + 1), None, "free {free}");
            assert_eq!(space.find(fits.0), Some(1), "free {free}");
        }
        assert_eq!(Space::class_of(15), None);
        assert_eq!(Space::class_of(1 << 16), Some(CLASSES - 1));
    }
}
