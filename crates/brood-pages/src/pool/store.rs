//! Storing, sharing, reading and freeing entries.

use std::collections::HashMap;

use super::block::{BLOCK_BYTES, Block, Frames, SATURATED, SLOT_BITS, join, push_lean, split};
use super::space::Space;
use super::{CohortUsage, PoolError, PoolUsage, Region};
use crate::codec::frame::{self, Frame, HEAD_BYTES, MAX_FRAME_BYTES, REFERENCE_BYTES};
use crate::codec::{Codec, DecodeError, zstd_dictionary};
use crate::page::{EntryId, PAGE_SIZE};

/// Block names at most; the highest is left out because [`EntryId::NONE`] lies in it.
const MAX_BLOCKS: usize = (1 << (32 - SLOT_BITS)) - 1;

/// Bytes read at first: most frames are shorter, and the rest of a longer one costs one more copy.
const FIRST_READ_BYTES: usize = 256;

/// Sandboxes that share references and are accounted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CohortId(pub u64);

#[derive(Debug)]
pub(super) struct Cohort {
    pub(super) id: CohortId,
    pub(super) usage: CohortUsage,
    pub(super) space: Space,
    /// Entries by the dictionary version that they need.
    pub(super) dictionary_uses: HashMap<u16, u64>,
}

/// An entry at a moment, to tell later whether it is still the same one. See [`Pool::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    name: EntryId,
    version: u32,
}

impl Stamp {
    /// The name under which the entry is stored.
    #[must_use]
    pub fn name(self) -> EntryId {
        self.name
    }
}

/// The pool over a byte store. Changing it needs `&mut`, reading does not: put it behind a reader-writer lock, so
/// that pagers read side by side, or give each cohort a pool of its own.
#[derive(Debug)]
pub struct Pool<R> {
    pub(super) region: R,
    pub(super) blocks: Vec<Option<Block>>,
    /// Names of blocks that are gone.
    pub(super) free_names: Vec<u32>,
    /// Places in the region without a block, with the bytes that still have memory behind them.
    pub(super) free_places: Vec<(u32, u32)>,
    places: u32,
    pub(super) cohorts: Vec<Cohort>,
    pub(super) cohort_index: HashMap<CohortId, u32>,
    /// The reference counts that don't fit into a byte.
    pub(super) large_counts: HashMap<u32, u64>,
    pub(super) limit_bytes: u64,
    /// Counts up whenever a name stops meaning what it meant; wraps.
    versions: u32,
    pub(super) usage: PoolUsage,
}

impl<R: Region> Pool<R> {
    /// An empty pool that takes at most `limit_bytes` of the region's physical memory.
    pub fn new(region: R, limit_bytes: u64) -> Self {
        Self {
            region,
            blocks: Vec::new(),
            free_names: Vec::new(),
            free_places: Vec::new(),
            places: 0,
            cohorts: Vec::new(),
            cohort_index: HashMap::new(),
            large_counts: HashMap::new(),
            limit_bytes,
            versions: 0,
            usage: PoolUsage::default(),
        }
    }

    /// Stores a frame for a cohort, with one reference, which the caller holds. If the frame refers to an entry, that
    /// entry gets one reference more.
    ///
    /// # Errors
    /// [`PoolError::Full`]; [`PoolError::Frame`] if `bytes` isn't exactly one frame; [`PoolError::NoSuchEntry`] if the
    /// entry it refers to doesn't exist. Nothing is changed then.
    pub fn store(&mut self, cohort: CohortId, bytes: &[u8]) -> Result<EntryId, PoolError> {
        let frame = frame::parse(bytes)?;
        let need = frame::frame_bytes(bytes)?;
        if need != bytes.len() {
            return Err(DecodeError::Truncated { need, have: bytes.len() }.into());
        }
        let dictionary = dictionary_of(&frame)?;
        let index = self.cohort(cohort);
        if let Some(reference) = frame.reference {
            self.retain(reference)?;
        }
        let stored = self.place(index, bytes);
        match (&stored, frame.reference) {
            (Ok(_), _) => self.count_frame(index, frame.codec, bytes.len(), dictionary, true),
            (Err(_), Some(reference)) => self.release(reference)?,
            (Err(_), None) => {}
        }
        stored
    }

    /// Adds a reference to an entry.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`].
    pub fn retain(&mut self, id: EntryId) -> Result<(), PoolError> {
        let (block, slot) = split(id);
        let block = self.blocks.get_mut(block).and_then(Option::as_mut).ok_or(PoolError::NoSuchEntry(id))?;
        match block.count(slot) {
            0 => return Err(PoolError::NoSuchEntry(id)),
            SATURATED => *self.large_counts.entry(id.0).or_insert(u64::from(SATURATED)) += 1,
            _ => *block.count_mut(slot) += 1,
        }
        Ok(())
    }

    /// Takes a reference back. The last one frees the entry, and takes back its own reference to another.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`]; [`PoolError::Region`] if the frame's head can't be read.
    pub fn release(&mut self, id: EntryId) -> Result<(), PoolError> {
        let mut next = Some(id);
        while let Some(id) = next {
            next = self.release_one(id)?;
        }
        Ok(())
    }

    /// References to an entry; 0 if it doesn't exist.
    #[must_use]
    pub fn references(&self, id: EntryId) -> u64 {
        let (block, slot) = split(id);
        let count = self.blocks.get(block).and_then(Option::as_ref).map_or(0, |block| block.count(slot));
        if count == SATURATED {
            return self.large_counts.get(&id.0).copied().unwrap_or(u64::from(count));
        }
        u64::from(count)
    }

    /// Copies an entry's frame into `buffer` and takes it apart.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`], [`PoolError::Region`]; [`PoolError::Frame`] if the region's bytes were damaged.
    pub fn read<'b>(&self, id: EntryId, buffer: &'b mut Vec<u8>) -> Result<Frame<'b>, PoolError> {
        let (offset, room) = self.locate(id)?;
        buffer.resize(MAX_FRAME_BYTES, 0);
        let first = room.min(FIRST_READ_BYTES);
        self.read_region(offset, &mut buffer[..first])?;
        let bytes = frame::frame_bytes(&buffer[..first])?.min(room);
        if bytes > first {
            self.read_region(offset + first as u64, &mut buffer[first..bytes])?;
        }
        Ok(frame::parse(&buffer[..bytes])?)
    }

    /// How an entry is encoded.
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn codec(&self, id: EntryId) -> Result<Codec, PoolError> {
        let (offset, _) = self.locate(id)?;
        let mut head = [0; HEAD_BYTES];
        self.read_region(offset, &mut head)?;
        Ok(frame::codec_of(&head)?)
    }

    /// Notes what an entry is, without holding a reference to it.
    ///
    /// # Errors
    /// [`PoolError::NoSuchEntry`].
    pub fn stamp(&self, id: EntryId) -> Result<Stamp, PoolError> {
        let name = self.present_name(id)?;
        Ok(Stamp { name, version: self.block(split(name).0).version })
    }

    /// Whether nothing was freed near the stamped entry since: then its name still means the same content. (It may be that
    /// only a neighbour was freed, so "no" means "look again".)
    #[must_use]
    pub fn is_current(&self, stamp: Stamp) -> bool {
        self.stamp(stamp.name).is_ok_and(|now| now == stamp)
    }

    /// The cohort that an entry belongs to.
    #[must_use]
    pub fn cohort_of(&self, id: EntryId) -> Option<CohortId> {
        let name = self.present_name(id).ok()?;
        Some(self.cohorts[self.block(split(name).0).cohort as usize].id)
    }

    /// Bytes of an entry's frame.
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn frame_bytes(&self, id: EntryId) -> Result<usize, PoolError> {
        let (offset, _) = self.locate(id)?;
        let mut head = [0; HEAD_BYTES];
        self.read_region(offset, &mut head)?;
        Ok(frame::frame_bytes(&head)?)
    }

    /// Where an entry's frame begins in the region, and how many bytes of its block are written from there on.
    fn locate(&self, id: EntryId) -> Result<(u64, usize), PoolError> {
        let (block, slot) = split(self.present_name(id)?);
        let block = self.block(block);
        let Frames::Stored { place, offsets } = &block.frames else {
            unreachable!("present names are stored");
        };
        let offset = usize::from(offsets[slot]);
        Ok((place_offset(*place) + offset as u64, block.tail_bytes as usize - offset))
    }

    /// The name under which an entry is stored, after all that compaction did to it.
    pub(super) fn present_name(&self, id: EntryId) -> Result<EntryId, PoolError> {
        let mut name = id;
        loop {
            let (block, slot) = split(name);
            let block = self.blocks.get(block).and_then(Option::as_ref).filter(|block| block.count(slot) != 0);
            match &block.ok_or(PoolError::NoSuchEntry(id))?.frames {
                Frames::Forwarded { targets } => name = EntryId(targets[slot]),
                Frames::Stored { .. } => return Ok(name),
            }
        }
    }

    pub(super) fn read_region(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        self.region.read(offset, bytes).map_err(|source| PoolError::Region { offset, source })
    }

    /// The cohort's position, made on first use.
    fn cohort(&mut self, id: CohortId) -> u32 {
        *self.cohort_index.entry(id).or_insert_with(|| {
            self.cohorts.push(Cohort {
                id,
                usage: CohortUsage::default(),
                space: Space::new(),
                dictionary_uses: HashMap::new(),
            });
            self.cohorts.len() as u32 - 1
        })
    }

    /// Writes a frame into a block of the cohort and gives it a name with one reference.
    pub(super) fn place(&mut self, cohort: u32, bytes: &[u8]) -> Result<EntryId, PoolError> {
        let name = match self.cohorts[cohort as usize].space.find(bytes.len()) {
            Some(name) => name,
            None => self.new_block(cohort)?,
        };
        let index = name as usize;
        if self.block(index).tail_bytes as usize + bytes.len() > BLOCK_BYTES {
            self.pack(index)?;
        }
        let block = self.block(index);
        let tail = block.tail_bytes as usize;
        let resident = block.resident_bytes as usize;
        let needed = (tail + bytes.len()).next_multiple_of(PAGE_SIZE).saturating_sub(resident) as u64;
        if self.usage.resident_bytes + needed > self.limit_bytes {
            self.drop_if_empty(index);
            return Err(PoolError::Full {
                used_bytes: self.usage.resident_bytes,
                limit_bytes: self.limit_bytes,
                needed_bytes: needed,
            });
        }
        let Frames::Stored { place, .. } = block.frames else { unreachable!("only stored blocks have room") };
        let offset = place_offset(place) + tail as u64;
        if let Err(source) = self.region.write(offset, bytes) {
            self.drop_if_empty(index);
            return Err(PoolError::Region { offset, source });
        }
        let before = self.block(index).free_bytes();
        let block = self.block_mut(index);
        block.resident_bytes += needed as u32;
        let slot = block.append(bytes.len());
        self.reclass(index, before);
        self.add_resident(cohort, needed as i64);
        self.add_frame_bytes(cohort, bytes.len() as i64);
        Ok(join(index, slot))
    }

    fn new_block(&mut self, cohort: u32) -> Result<u32, PoolError> {
        if self.free_names.is_empty() && self.blocks.len() >= MAX_BLOCKS {
            return Err(PoolError::OutOfNames);
        }
        let (place, resident) = self.free_places.pop().unwrap_or_else(|| {
            self.places += 1;
            (self.places - 1, 0)
        });
        let name = self.free_names.pop().unwrap_or_else(|| {
            push_lean(&mut self.blocks, None);
            self.blocks.len() as u32 - 1
        });
        let mut block = Block::new(cohort, place, resident);
        block.version = self.next_version();
        let class = Space::class_of(block.free_bytes()).expect("an empty block has room");
        block.class_position = self.cohorts[cohort as usize].space.insert(class, name);
        self.blocks[name as usize] = Some(block);
        // The memory of a stale place was the pool's; now it is the cohort's.
        self.cohorts[cohort as usize].usage.resident_bytes += u64::from(resident);
        Ok(name)
    }

    fn release_one(&mut self, id: EntryId) -> Result<Option<EntryId>, PoolError> {
        let (index, slot) = split(id);
        let block = self.blocks.get_mut(index).and_then(Option::as_mut).ok_or(PoolError::NoSuchEntry(id))?;
        match block.count(slot) {
            0 => Err(PoolError::NoSuchEntry(id)),
            1 => self.free(id),
            SATURATED => {
                if let Some(count) = self.large_counts.get_mut(&id.0) {
                    *count -= 1;
                    if *count == u64::from(SATURATED) {
                        self.large_counts.remove(&id.0);
                    }
                } else {
                    *block.count_mut(slot) -= 1;
                }
                Ok(None)
            }
            _ => {
                *block.count_mut(slot) -= 1;
                Ok(None)
            }
        }
    }

    /// Frees an entry with one reference; returns the entry whose reference goes with it.
    fn free(&mut self, id: EntryId) -> Result<Option<EntryId>, PoolError> {
        let (index, slot) = split(id);
        if let Frames::Forwarded { targets } = &self.block(index).frames {
            let target = EntryId(targets[slot]);
            let block = self.block_mut(index);
            *block.count_mut(slot) = 0;
            block.free(slot, 0);
            self.drop_if_empty(index);
            return Ok(Some(target));
        }
        let (offset, room) = self.locate(id)?;
        let mut head = [0; HEAD_BYTES + REFERENCE_BYTES];
        let head = &mut head[..room.min(HEAD_BYTES + REFERENCE_BYTES)];
        self.read_region(offset, head)?;
        let bytes = frame::frame_bytes(head)?;
        let codec = frame::codec_of(head)?;
        let reference = frame::reference_of(head)?;
        let dictionary = (codec == Codec::ZstdDictionary).then(|| zstd_dictionary::version_of(&head[HEAD_BYTES..]));
        let cohort = self.block(index).cohort;
        self.count_frame(cohort, codec, bytes, dictionary.transpose()?, false);
        self.add_frame_bytes(cohort, -(bytes as i64));
        self.free_slot(index, slot, bytes);
        Ok(reference)
    }

    /// Frees a stored slot, whatever references it has.
    pub(super) fn free_slot(&mut self, index: usize, slot: usize, frame_bytes: usize) {
        let before = self.block(index).free_bytes();
        let version = self.next_version();
        let block = self.block_mut(index);
        block.version = version;
        *block.count_mut(slot) = 0;
        block.free(slot, frame_bytes);
        self.reclass(index, before);
        self.drop_if_empty(index);
    }

    pub(super) fn next_version(&mut self) -> u32 {
        self.versions = self.versions.wrapping_add(1);
        self.versions
    }

    /// If nothing refers to the block any more, its name and its place become free.
    pub(super) fn drop_if_empty(&mut self, index: usize) {
        if self.block(index).used_slots != 0 {
            return;
        }
        let block = self.blocks[index].take().expect("checked above");
        self.free_names.push(index as u32);
        if let Frames::Stored { place, .. } = block.frames {
            if let Some(class) = Space::class_of(block.free_bytes()) {
                self.remove_from_class(block.cohort, class, block.class_position);
            }
            // Places with memory are used again first.
            self.free_places.push((place, block.resident_bytes));
            self.cohorts[block.cohort as usize].usage.resident_bytes -= u64::from(block.resident_bytes);
        }
    }

    /// Moves a block to the class that its free bytes ask for; `before` is what it had when it was classed last.
    pub(super) fn reclass(&mut self, index: usize, before: usize) {
        let block = self.block(index);
        let (old, new) = (Space::class_of(before), Space::class_of(block.free_bytes()));
        if old == new {
            return;
        }
        let (cohort, position) = (block.cohort, block.class_position);
        if let Some(class) = old {
            self.remove_from_class(cohort, class, position);
        }
        if let Some(class) = new {
            let position = self.cohorts[cohort as usize].space.insert(class, index as u32);
            self.block_mut(index).class_position = position;
        }
    }

    pub(super) fn remove_from_class(&mut self, cohort: u32, class: usize, position: u32) {
        if let Some(moved) = self.cohorts[cohort as usize].space.remove(class, position) {
            self.block_mut(moved as usize).class_position = position;
        }
    }

    pub(super) fn block(&self, index: usize) -> &Block {
        self.blocks[index].as_ref().expect("callers pass live blocks")
    }

    pub(super) fn block_mut(&mut self, index: usize) -> &mut Block {
        self.blocks[index].as_mut().expect("callers pass live blocks")
    }
}

fn dictionary_of(frame: &Frame<'_>) -> Result<Option<u16>, PoolError> {
    let needs_one = frame.codec == Codec::ZstdDictionary;
    Ok(needs_one.then(|| zstd_dictionary::version_of(frame.content)).transpose()?)
}

/// The offset in the region of the block at `place`.
pub(super) fn place_offset(place: u32) -> u64 {
    u64::from(place) * BLOCK_BYTES as u64
}
