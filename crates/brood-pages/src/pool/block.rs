//! The bookkeeping of one block: which frame begins where, and how many references it has.

use crate::page::EntryId;

/// Bytes of a block. Large enough that the rest behind the last frame that fits is small even if no frame compresses, small
/// enough that offsets take two bytes.
pub const BLOCK_BYTES: usize = 1 << 16;

/// Bits of an entry's name that say which slot of its block it is.
pub(super) const SLOT_BITS: u32 = 12;

/// Slots of a block at most. Frames average more than 16 bytes, so it is space that runs out first.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// Dead bytes below this don't count as free: getting at them means to pack the block, which reads and writes all
/// of it, some ten microseconds.
const PACK_WORTH_BYTES: usize = BLOCK_BYTES / 32;

/// A count that has overflowed; the real one is kept aside.
pub(super) const SATURATED: u8 = u8::MAX;

const END_OF_LIST: u16 = u16::MAX;

/// Where a block's frames are.
#[derive(Debug)]
pub(super) enum Frames {
    /// In the region, at the block of this number; each slot has the offset of its frame, or, if it is free, the next free slot.
    Stored { place: u32, offsets: Vec<u16> },
    /// Moved elsewhere: each slot has the name that its frame has now.
    Forwarded { targets: Vec<u32> },
}

/// One block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) frames: Frames,
    /// The cohort's position in the pool's list.
    pub(super) cohort: u32,
    /// References to each slot; 0 is free, [`SATURATED`] is kept aside.
    counts: Vec<u8>,
    first_free: u16,
    /// Slots with references.
    pub(super) used_slots: u16,
    /// Bytes from the start that are taken, dead ones included.
    pub(super) tail_bytes: u32,
    /// Bytes of stored frames.
    pub(super) live_bytes: u32,
    /// Bytes from the start that have memory behind them; a multiple of the page size.
    pub(super) resident_bytes: u32,
    /// Changes whenever a slot is freed.
    pub(super) version: u32,
    /// Position in the list of its free-space class.
    pub(super) class_position: u32,
}

impl Block {
    pub(super) fn new(cohort: u32, place: u32, resident_bytes: u32) -> Self {
        Self {
            frames: Frames::Stored { place, offsets: Vec::new() },
            cohort,
            counts: Vec::new(),
            first_free: END_OF_LIST,
            used_slots: 0,
            tail_bytes: 0,
            live_bytes: 0,
            resident_bytes,
            version: 0,
            class_position: 0,
        }
    }

    /// Bytes that a new frame may take, in the best case after packing.
    pub(super) fn free_bytes(&self) -> usize {
        let full = self.counts.len() == MAX_SLOTS && self.first_free == END_OF_LIST;
        if full || matches!(self.frames, Frames::Forwarded { .. }) {
            return 0;
        }
        let dead = (self.tail_bytes - self.live_bytes) as usize;
        let behind = BLOCK_BYTES - self.tail_bytes as usize;
        behind + if dead >= PACK_WORTH_BYTES { dead } else { 0 }
    }

    /// The reference count byte of a slot; 0 for slots that don't exist.
    pub(super) fn count(&self, slot: usize) -> u8 {
        self.counts.get(slot).copied().unwrap_or(0)
    }

    pub(super) fn count_mut(&mut self, slot: usize) -> &mut u8 {
        &mut self.counts[slot]
    }

    /// Slots with references, in order.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> {
        (0..self.counts.len()).filter(|slot| self.counts[*slot] != 0)
    }

    /// Takes a slot for a frame that was written at the tail; one reference.
    pub(super) fn append(&mut self, frame_bytes: usize) -> usize {
        let offset = self.tail_bytes as u16;
        self.tail_bytes += frame_bytes as u32;
        self.live_bytes += frame_bytes as u32;
        self.used_slots += 1;
        let Frames::Stored { offsets, .. } = &mut self.frames else {
            unreachable!("forwarded blocks have no free bytes");
        };
        if self.first_free != END_OF_LIST {
            let slot = usize::from(self.first_free);
            self.first_free = std::mem::replace(&mut offsets[slot], offset);
            self.counts[slot] = 1;
            return slot;
        }
        push_lean(offsets, offset);
        push_lean(&mut self.counts, 1);
        offsets.len() - 1
    }

    /// Frees a slot whose count is 0 now. Its frame took `frame_bytes`.
    pub(super) fn free(&mut self, slot: usize, frame_bytes: usize) {
        self.used_slots -= 1;
        let Frames::Stored { offsets, .. } = &mut self.frames else { return };
        self.live_bytes -= frame_bytes as u32;
        if usize::from(self.used_slots) == 0 {
            self.tail_bytes = 0;
            offsets.clear();
            self.counts.clear();
            self.first_free = END_OF_LIST;
        } else {
            offsets[slot] = self.first_free;
            self.first_free = slot as u16;
        }
    }

    /// Gives spare capacity back.
    pub(super) fn shrink(&mut self) {
        self.counts.shrink_to_fit();
        if let Frames::Stored { offsets, .. } = &mut self.frames {
            offsets.shrink_to_fit();
        }
    }

    /// Heap bytes that the bookkeeping takes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.counts.capacity()
            + match &self.frames {
                Frames::Stored { offsets, .. } => offsets.capacity() * size_of::<u16>(),
                Frames::Forwarded { targets } => targets.capacity() * size_of::<u32>(),
            }
    }
}

/// `push` that grows by an eighth instead of doubling: metadata is counted, and these lists grow slowly.
pub(super) fn push_lean<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 8);
    }
    list.push(item);
}

/// Splits a name into block and slot.
pub(super) fn split(id: EntryId) -> (usize, usize) {
    ((id.0 >> SLOT_BITS) as usize, (id.0 as usize) & (MAX_SLOTS - 1))
}

/// The name of a block's slot.
pub(super) fn join(block: usize, slot: usize) -> EntryId {
    EntryId((block as u32) << SLOT_BITS | slot as u32)
}
