//! Rebuilding an address space in an empty process.
//!
//! Anonymous memory is made anonymous again and filled with copies from the page store: a
//! private mapping of the stored pages would be cheaper and behave differently (`madvise`,
//! growing `mremap`, fresh pages counted twice).

use std::sync::Arc;

use brood_kernel::injection::Batch;
use brood_kernel::maps::{MappingFlags, Protection};
use brood_kernel::process_memory;
use brood_kernel::shared_pages::PAGE_BYTES;
use brood_kernel::userfaultfd::Userfaultfd;

use crate::address_space::{AddressSpaceImage, CHUNK_BYTES, MappedFile, MappingImage, MappingKind, MemoryLayout, bits};
use crate::error::{Error, Result, kernel, store as store_failed};
use crate::memory;
use crate::owed_pages;
use crate::page_store::{PageStore, Slot, SlotRun, runs_of_pairs};
use crate::process::ProcessImage;
use crate::puppet::Puppet;
use crate::seed::SpecialMapping;
use crate::watcher::Watcher;
use crate::words::{bytes_of_u64, signed};

/// Where the kernel's own mappings are put on their way, so that source and target ranges may
/// overlap. Nothing else is mapped while it is used.
const SPARE_ADDRESS: u64 = 0x7100_0000_0000;
/// Room that one mapping's calls take in a batch at most.
const MAPPING_ROOM: usize = 900;
/// `MAP_DROPPABLE`.
const MAP_DROPPABLE: u64 = 0x08;

/// Finds the descriptor of a mapped file in the process; `true` asks for one that can be
/// written through.
pub(crate) type FileNumbers<'a> = dyn Fn(&MappedFile, bool) -> Result<i32> + 'a;

/// Whether a mapping's file must be open for writing.
pub(crate) fn needs_writing(mapping: &MappingImage) -> bool {
    matches!(mapping.kind, MappingKind::Shared(_)) && mapping.protection.contains(Protection::WRITE)
}

/// Makes all mappings, without content, in a process that has none but the engine's and the
/// kernel's own.
pub(crate) fn make_mappings(
    puppet: &Puppet,
    space: &AddressSpaceImage,
    specials: &[SpecialMapping],
    numbers: &FileNumbers<'_>,
) -> Result<()> {
    let overlap = |mapping: &&MappingImage| mapping.start < puppet.area.end() && puppet.area.start < mapping.end;
    if let Some(mapping) = space.mappings.iter().find(overlap) {
        let reason = format!("a mapping at {:#x} lies where the engine works", mapping.start);
        return Err(Error::DoesNotFit { reason });
    }
    let mut batch = puppet.batch();
    move_specials(&mut batch, space, specials)?;
    for mapping in space.mappings.iter() {
        puppet.run_if_full(&mut batch, MAPPING_ROOM)?;
        add_mapping(&mut batch, mapping, numbers)?;
    }
    puppet.run(&batch)?;
    Ok(())
}

fn move_specials(batch: &mut Batch, space: &AddressSpaceImage, specials: &[SpecialMapping]) -> Result<()> {
    let wanted: Vec<(&str, u64, u64)> = space
        .mappings
        .iter()
        .filter_map(|mapping| match &mapping.kind {
            MappingKind::Special(name) => Some((&**name, mapping.start, mapping.end)),
            _ => None,
        })
        .collect();
    let same = wanted.len() == specials.len()
        && wanted
            .iter()
            .zip(specials)
            .all(|((name, start, end), special)| *name == &*special.name && end - start == special.end - special.start);
    if !same {
        return Err(Error::DoesNotFit { reason: "the kernel's own mappings differ".into() });
    }
    if wanted.iter().zip(specials).all(|((_, start, _), special)| *start == special.start) {
        return Ok(());
    }
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let mut spare = SPARE_ADDRESS;
    let mut moves = Vec::new();
    for special in specials {
        let length = special.end - special.start;
        batch.call(libc::SYS_mremap, &[special.start, length, length, flags, spare]);
        moves.push((spare, length));
        spare += length;
    }
    for ((_, start, _), (spare, length)) in wanted.iter().zip(moves) {
        batch.call(libc::SYS_mremap, &[spare, length, length, flags, *start]);
    }
    Ok(())
}

/// Adds the calls that make one mapping.
pub(crate) fn add_mapping(batch: &mut Batch, mapping: &MappingImage, numbers: &FileNumbers<'_>) -> Result<()> {
    let length = mapping.end - mapping.start;
    let mut flags = libc::MAP_FIXED as u64;
    let has = |flag| mapping.flags.contains(flag);
    if has(MappingFlags::NO_RESERVE) {
        flags |= libc::MAP_NORESERVE as u64;
    }
    let number = match &mapping.kind {
        MappingKind::Special(_) => return Ok(()),
        MappingKind::Anonymous => {
            let kind = if has(MappingFlags::DROPPABLE) { MAP_DROPPABLE } else { libc::MAP_PRIVATE as u64 };
            let grows = if has(MappingFlags::GROWS_DOWN) { libc::MAP_GROWSDOWN as u64 } else { 0 };
            flags |= kind | grows | libc::MAP_ANONYMOUS as u64;
            -1
        }
        MappingKind::Private(file) => {
            flags |= libc::MAP_PRIVATE as u64;
            numbers(file, false)?
        }
        MappingKind::Shared(file) => {
            flags |= libc::MAP_SHARED as u64;
            numbers(file, needs_writing(mapping))?
        }
    };
    let protection = u64::from(mapping.protection.bits());
    let arguments = [mapping.start, length, protection, flags, signed(number.into()), mapping.offset];
    batch.call(libc::SYS_mmap, &arguments);
    for (flag, advice) in ADVICE {
        if has(flag) && !(flag == MappingFlags::NOT_DUMPED && has(MappingFlags::DROPPABLE)) {
            batch.call(libc::SYS_madvise, &[mapping.start, length, advice as u64]);
        }
    }
    if has(MappingFlags::LOCKED) {
        batch.call(libc::SYS_mlock, &[mapping.start, length]);
    }
    Ok(())
}

/// Properties that are given to a mapping by madvise(2).
const ADVICE: [(MappingFlags, i32); 8] = [
    (MappingFlags::WIPE_ON_FORK, libc::MADV_WIPEONFORK),
    (MappingFlags::NOT_ON_FORK, libc::MADV_DONTFORK),
    (MappingFlags::NOT_DUMPED, libc::MADV_DONTDUMP),
    (MappingFlags::HUGE_PAGES, libc::MADV_HUGEPAGE),
    (MappingFlags::NO_HUGE_PAGES, libc::MADV_NOHUGEPAGE),
    (MappingFlags::MERGEABLE, libc::MADV_MERGEABLE),
    (MappingFlags::SEQUENTIAL, libc::MADV_SEQUENTIAL),
    (MappingFlags::RANDOM, libc::MADV_RANDOM),
];

/// Stored pages by the way in which they get into a process.
#[derive(Debug, Default)]
struct Filling {
    /// Into fresh anonymous memory, one list for each mapping: filling may not reach from one
    /// into the next.
    fresh: Vec<(u64, Vec<(u64, Slot)>)>,
    /// Over what is there.
    copies: Vec<(u64, Slot)>,
    /// The same, where the process itself can't write.
    protected: Vec<(u64, Slot)>,
}

/// Sees to it that a process with fresh mappings gets all stored pages, now or when it touches
/// them, and starts watching writes: the process then differs from the image by nothing.
pub(crate) fn fill(
    puppet: &Puppet,
    image: &ProcessImage,
    space: &AddressSpaceImage,
    store: &Arc<PageStore>,
    watcher: &Watcher,
) -> Result<()> {
    let userfaultfd = watcher.userfaultfd();
    if let Some(paged) = watcher.space() {
        let owed = owed_pages::all_of(space, store);
        owed_pages::watch(puppet.pid, userfaultfd, &owed)?;
        paged.change(|all| *all = owed);
    }
    memory::watch_all(puppet.pid, userfaultfd, &space.mappings)?;
    let Filling { fresh, copies, protected } = sort_pages(space, watcher.space().is_some());
    for run in fresh.into_iter().flat_map(|(_, pages)| runs_of_pairs(pages.into_iter())) {
        let (segment, first) = store.locate(run.first).map_err(store_failed("find pages"))?;
        userfaultfd.copy(run.address, &segment, first, run.pages, true).map_err(kernel(puppet.pid, "fill memory"))?;
    }
    let runs = runs_of_pairs(copies.into_iter());
    store.copy_to(puppet.pid, &runs).map_err(kernel(puppet.pid, "fill memory"))?;
    write_protected(puppet, &protected, store)?;
    let protected = runs_of_pairs(protected.into_iter());
    protect(puppet, userfaultfd, runs.iter().chain(&protected))?;
    if let Some(paged) = watcher.space() {
        let filled = paged.fill_now(&space.hot.ranges(image));
        tracing::trace!(pid = ?puppet.pid, filled, "pages were copied ahead");
    }
    Ok(())
}

fn sort_pages(space: &AddressSpaceImage, paged: bool) -> Filling {
    let mut filling = Filling::default();
    let mut mappings = space.mappings.iter().peekable();
    for (number, chunk) in space.pages.chunks() {
        for page in bits(chunk.stored()) {
            let address = number * CHUNK_BYTES + (page * PAGE_BYTES) as u64;
            while mappings.next_if(|mapping| mapping.end <= address).is_some() {}
            let (Some(mapping), Some(slot)) = (mappings.peek(), chunk.slot(page)) else { continue };
            match (&mapping.kind, filling.fresh.last_mut()) {
                _ if paged && owed_pages::can_be_owed(mapping) => {}
                (MappingKind::Anonymous, Some((start, pages))) if *start == mapping.start => {
                    pages.push((address, slot))
                }
                (MappingKind::Anonymous, _) => filling.fresh.push((mapping.start, vec![(address, slot)])),
                _ if mapping.protection.contains(Protection::WRITE) => filling.copies.push((address, slot)),
                _ => filling.protected.push((address, slot)),
            }
        }
    }
    filling
}

/// Writes pages of mappings that the process itself can't write.
pub(crate) fn write_protected(puppet: &Puppet, pairs: &[(u64, Slot)], store: &Arc<PageStore>) -> Result<()> {
    for (address, slot) in pairs {
        let content = store.read(*slot).map_err(store_failed("read a page"))?;
        process_memory::write_forced(&puppet.memory, *address, &content)
            .map_err(kernel(puppet.pid, "fill protected memory"))?;
    }
    Ok(())
}

/// Marks pages as not written.
pub(crate) fn protect<'a>(
    puppet: &Puppet,
    watcher: &Userfaultfd,
    runs: impl Iterator<Item = &'a SlotRun>,
) -> Result<()> {
    for run in runs {
        let bytes = (run.pages * PAGE_BYTES) as u64;
        match watcher.write_protect(run.address, bytes, true) {
            // What isn't watched counts as written, which is right, only slower.
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(kernel(puppet.pid, "watch writes")(error)),
        }
    }
    Ok(())
}

/// Tells the kernel where code, data, heap, stack, arguments and environment are.
pub(crate) fn set_layout(batch: &mut Batch, layout: &MemoryLayout, program: i32) {
    let auxiliary = batch.data(&layout.auxiliary);
    let numbers = [
        layout.code.0,
        layout.code.1,
        layout.data.0,
        layout.data.1,
        layout.heap.0,
        layout.heap.1,
        layout.stack,
        layout.arguments.0,
        layout.arguments.1,
        layout.environment.0,
        layout.environment.1,
        auxiliary,
    ];
    let mut record = bytes_of_u64(&numbers);
    record.extend((layout.auxiliary.len() as u32).to_le_bytes());
    record.extend(program.to_le_bytes());
    let address = batch.data(&record);
    let length = record.len() as u64;
    batch.call(libc::SYS_prctl, &[libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, address, length, 0]);
}
