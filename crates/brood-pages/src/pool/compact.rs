//! Getting memory back: packing blocks, evacuating sparse ones, discarding what is empty.

use super::block::{BLOCK_BYTES, Frames, join, split};
use super::space::Space;
use super::store::place_offset;
use super::{CohortId, Pool, PoolError, Region};
use crate::codec::frame;
use crate::page::{EntryId, PAGE_SIZE};

/// A block that is fuller than this is not worth moving: its bytes would be copied to win back less than a fifth of them.
const EVACUATE_BELOW_BYTES: u32 = (BLOCK_BYTES - BLOCK_BYTES / 6) as u32;

/// What one round of compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Blocks that were emptied.
    pub blocks: usize,
    /// Frames that were moved out of them.
    pub moved_entries: usize,
    /// Bytes of those frames.
    pub moved_bytes: u64,
}

impl<R: Region> Pool<R> {
    /// Moves the frames of a cohort's sparsest blocks into the gaps of fuller ones, at most `max_blocks` of them, so that
    /// [`Pool::trim`] can discard them; to be repeated until it finds none. Names stay valid (a moved entry costs five bytes of metadata more while
    /// its old name is in use).
    ///
    /// # Errors
    /// [`PoolError::Region`]; what was moved before stays moved.
    pub fn compact(&mut self, cohort: CohortId, max_blocks: usize) -> Result<CompactionReport, PoolError> {
        let mut report = CompactionReport::default();
        for victim in self.victims(cohort, max_blocks) {
            // Earlier moves may have filled it.
            if self.block(victim).live_bytes < EVACUATE_BELOW_BYTES {
                self.evacuate(victim, &mut report)?;
            }
        }
        Ok(report)
    }

    /// The cohort's sparsest blocks, as many as the free bytes of the others can hold.
    fn victims(&self, cohort: CohortId, max_blocks: usize) -> Vec<usize> {
        let blocks = self.blocks.iter().enumerate().filter_map(|(index, block)| {
            let block = block.as_ref()?;
            let stored = matches!(block.frames, Frames::Stored { .. });
            (stored && self.cohorts[block.cohort as usize].id == cohort).then_some((index, block))
        });
        let mut sparse: Vec<(usize, u32)> = blocks.map(|(index, block)| (index, block.live_bytes)).collect();
        sparse.sort_unstable_by_key(|(_, live)| *live);
        let mut room: usize = sparse.iter().map(|(index, _)| self.block(*index).free_bytes()).sum();
        let mut victims = Vec::new();
        for (index, live) in sparse.into_iter().take(max_blocks) {
            let taken = self.block(index).free_bytes() + live as usize;
            if live >= EVACUATE_BELOW_BYTES || taken > room {
                break;
            }
            room -= taken;
            victims.push(index);
        }
        victims
    }

    fn evacuate(&mut self, victim: usize, report: &mut CompactionReport) -> Result<(), PoolError> {
        let before = self.block(victim).free_bytes();
        let block = self.block(victim);
        let (cohort, slots) = (block.cohort, block.used().collect::<Vec<_>>());
        // Out of its class first: no frame may be placed into the block that is being emptied.
        if let Some(class) = Space::class_of(before) {
            self.remove_from_class(cohort, class, block.class_position);
        }
        let mut targets = vec![EntryId::NONE; slots.last().map_or(0, |slot| slot + 1)];
        let mut buffer = Vec::new();
        for slot in &slots {
            let moved = self.copy_frame(join(victim, *slot), cohort, &mut buffer);
            match moved {
                Ok((target, bytes)) => {
                    targets[*slot] = target.0;
                    self.add_frame_bytes(cohort, -(bytes as i64));
                    report.moved_entries += 1;
                    report.moved_bytes += bytes as u64;
                }
                Err(error) => {
                    self.undo_evacuation(victim, &targets)?;
                    return Err(error);
                }
            }
        }
        report.blocks += 1;
        self.forward(victim, targets);
        Ok(())
    }

    /// Stores an entry's frame a second time; returns the copy's name and its bytes.
    fn copy_frame(&mut self, id: EntryId, cohort: u32, buffer: &mut Vec<u8>) -> Result<(EntryId, usize), PoolError> {
        self.read(id, buffer)?;
        let bytes = frame::frame_bytes(buffer)?;
        Ok((self.place(cohort, &buffer[..bytes])?, bytes))
    }

    /// The victim's frames are elsewhere: its place becomes stale, its name stays for as long as someone uses it.
    fn forward(&mut self, victim: usize, targets: Vec<u32>) {
        let block = self.block_mut(victim);
        let cohort = block.cohort;
        let resident = std::mem::take(&mut block.resident_bytes);
        let frames = std::mem::replace(&mut block.frames, Frames::Forwarded { targets });
        block.live_bytes = 0;
        block.tail_bytes = 0;
        if let Frames::Stored { place, .. } = frames {
            self.free_places.push((place, resident));
            self.cohorts[cohort as usize].usage.resident_bytes -= u64::from(resident);
        }
    }

    /// Drops the copies that were made before moving a block failed.
    fn undo_evacuation(&mut self, victim: usize, targets: &[u32]) -> Result<(), PoolError> {
        let cohort = self.block(victim).cohort;
        for target in targets.iter().filter(|target| **target != EntryId::NONE) {
            let (index, slot) = split(EntryId(*target));
            let mut buffer = Vec::new();
            self.read(EntryId(*target), &mut buffer)?;
            let bytes = frame::frame_bytes(&buffer)?;
            self.free_slot(index, slot, bytes);
        }
        let free = self.block(victim).free_bytes();
        if let Some(class) = Space::class_of(free) {
            let position = self.cohorts[cohort as usize].space.insert(class, victim as u32);
            self.block_mut(victim).class_position = position;
        }
        Ok(())
    }

    /// Closes the gaps inside a block, so that all its free bytes lie behind its last frame.
    pub(super) fn pack(&mut self, index: usize) -> Result<(), PoolError> {
        let before = self.block(index).free_bytes();
        let block = self.block(index);
        let Frames::Stored { place, offsets } = &block.frames else { return Ok(()) };
        let offset = place_offset(*place);
        let mut order: Vec<(u16, usize)> = block.used().map(|slot| (offsets[slot], slot)).collect();
        order.sort_unstable();
        let mut bytes = vec![0; block.tail_bytes as usize];
        self.read_region(offset, &mut bytes)?;
        let mut tail = 0;
        let mut moved = Vec::with_capacity(order.len());
        for (from, slot) in order {
            let from = usize::from(from);
            let length = frame::frame_bytes(&bytes[from..])?;
            bytes.copy_within(from..from + length, tail);
            moved.push((slot, tail as u16));
            tail += length;
        }
        self.region.write(offset, &bytes[..tail]).map_err(|source| PoolError::Region { offset, source })?;
        let block = self.block_mut(index);
        block.tail_bytes = tail as u32;
        if let Frames::Stored { offsets, .. } = &mut block.frames {
            moved.into_iter().for_each(|(slot, at)| offsets[slot] = at);
        }
        self.reclass(index, before);
        Ok(())
    }

    /// Gives memory without frames back to the host: stale blocks, and the pages behind the last frame of live ones. Returns
    /// the bytes given back.
    ///
    /// # Errors
    /// [`PoolError::Region`]; what was discarded before stays so.
    pub fn trim(&mut self) -> Result<u64, PoolError> {
        let before = self.usage.resident_bytes;
        for at in 0..self.free_places.len() {
            let (place, resident) = self.free_places[at];
            self.discard(place, 0, resident)?;
            self.free_places[at].1 = 0;
        }
        for index in 0..self.blocks.len() {
            let Some(block) = &mut self.blocks[index] else { continue };
            block.shrink();
            let Frames::Stored { place, .. } = block.frames else { continue };
            let keep = block.tail_bytes.next_multiple_of(PAGE_SIZE as u32);
            let (cohort, surplus) = (block.cohort, block.resident_bytes.saturating_sub(keep));
            self.discard(place, keep, keep + surplus)?;
            self.block_mut(index).resident_bytes -= surplus;
            self.cohorts[cohort as usize].usage.resident_bytes -= u64::from(surplus);
        }
        Ok(before - self.usage.resident_bytes)
    }

    fn discard(&mut self, place: u32, from: u32, to: u32) -> Result<(), PoolError> {
        if from < to {
            let offset = place_offset(place) + u64::from(from);
            let range = offset..place_offset(place) + u64::from(to);
            self.region.discard(range).map_err(|source| PoolError::Region { offset, source })?;
            self.usage.resident_bytes -= u64::from(to - from);
        }
        Ok(())
    }

    /// The entry's present name. The caller's reference moves with it: afterwards it holds one to the returned name and none
    /// to `id`. Tables that are kept long call this in idle time, so that old names go away.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`].
    pub fn renamed(&mut self, id: EntryId) -> Result<EntryId, PoolError> {
        let name = self.present_name(id)?;
        if name != id {
            self.retain(name)?;
            self.release(id)?;
        }
        Ok(name)
    }
}
