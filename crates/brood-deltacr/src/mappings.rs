//! The mappings of a process: read, checked for what can't be captured, and told apart.

use brood_kernel::injection::EngineArea;
use brood_kernel::maps::{self, Mapping, MappingFlags};

use crate::address_space::{MappedFile, MappingImage, MappingKind, ObjectIdentity};
use crate::error::{RefusalKind, Result, kernel};
use crate::refusal::refuse;
use crate::tree::StoppedProcess;

/// Suffix of paths whose file has no name any more.
pub(crate) const DELETED: &str = " (deleted)";

/// What was read of a process' mappings, to find out cheaply whether they changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownMappings {
    raw: Vec<Mapping>,
    images: std::sync::Arc<[MappingImage]>,
}

/// Lists the mappings of a process without the engine's own. Advice given to a whole mapping
/// (`madvise`) is looked up again only if any mapping was made, changed or removed.
pub(crate) fn survey(
    process: &StoppedProcess,
    area: Option<EngineArea>,
    known: &mut KnownMappings,
    buffer: &mut Vec<u8>,
) -> Result<std::sync::Arc<[MappingImage]>> {
    let raw = maps::read(process.pid, buffer).map_err(kernel(process.pid, "read mappings"))?;
    if known.raw != raw || raw.is_empty() {
        let flagged = maps::read_with_flags(process.pid, buffer).map_err(kernel(process.pid, "read mapping flags"))?;
        let mut images = Vec::with_capacity(flagged.len());
        for (mapping, flags) in flagged {
            for part in outside_area(mapping, area) {
                images.push(describe(process, part, flags)?);
            }
        }
        *known = KnownMappings { raw, images: images.into() };
    }
    Ok(std::sync::Arc::clone(&known.images))
}

/// Lists the mappings of a process that is to get those of an image. What was there at the last
/// look is taken to have the same properties; what only has to go needs none. All are looked up
/// if a mapping that the image also has a part of is new or another.
pub(crate) fn survey_for_reset(
    process: &StoppedProcess,
    known: &mut KnownMappings,
    wanted: &[MappingImage],
    buffer: &mut Vec<u8>,
) -> Result<std::sync::Arc<[MappingImage]>> {
    let raw = maps::read(process.pid, buffer).map_err(kernel(process.pid, "read mappings"))?;
    if raw == known.raw {
        return Ok(std::sync::Arc::clone(&known.images));
    }
    let mut images = Vec::with_capacity(raw.len());
    let mut old = known.raw.iter().peekable();
    for mapping in &raw {
        while old.next_if(|other| other.start < mapping.start).is_some() {}
        let is_known = old.peek() == Some(&mapping);
        for part in outside_area(mapping.clone(), process.area) {
            let index = known.images.partition_point(|image| image.start < part.start);
            let image = known.images.get(index).filter(|image| is_known && image.start == part.start);
            let position = wanted.partition_point(|image| image.end <= part.start);
            let overlaps = wanted.get(position).is_some_and(|image| image.start < part.end);
            match image {
                Some(image) => images.push(image.clone()),
                None if overlaps => return survey(process, process.area, known, buffer),
                None => images.push(describe(process, part, MappingFlags::empty())?),
            }
        }
    }
    Ok(images.into())
}

/// The parts of a mapping that don't belong to the engine area.
fn outside_area(mapping: Mapping, area: Option<EngineArea>) -> Vec<Mapping> {
    let Some(area) = area.filter(|area| mapping.start < area.end() && area.start < mapping.end) else {
        return if &*mapping.name == "[vsyscall]" { Vec::new() } else { vec![mapping] };
    };
    let before = Mapping { end: area.start.max(mapping.start), ..mapping.clone() };
    let after = Mapping { start: area.end().min(mapping.end), ..mapping };
    [before, after].into_iter().filter(|part| part.start < part.end).collect()
}

fn describe(process: &StoppedProcess, mapping: Mapping, flags: MappingFlags) -> Result<MappingImage> {
    let refused = |reason: &str| {
        let range = format!("{reason} at {:#x}-{:#x} {}", mapping.start, mapping.end, mapping.name);
        refuse(process, None, RefusalKind::Mapping, range)
    };
    if flags.contains(MappingFlags::SHADOW_STACK) {
        return Err(refused("shadow stack"));
    }
    if flags.contains(MappingFlags::HUGE_FILE) {
        return Err(refused("memory of a huge-page file"));
    }
    if flags.contains(MappingFlags::SEALED) {
        return Err(refused("sealed memory"));
    }
    let is_device = flags.intersects(MappingFlags::DEVICE | MappingFlags::INPUT_OUTPUT);
    let kind = if mapping.is_special() {
        MappingKind::Special(mapping.name.clone())
    } else if mapping.inode == 0 && is_device {
        return Err(refused("memory of a device"));
    } else if mapping.inode == 0 {
        MappingKind::Anonymous
    } else {
        let file = mapped_file(&mapping).map_err(refused)?;
        if mapping.shared { MappingKind::Shared(file) } else { MappingKind::Private(file) }
    };
    Ok(MappingImage {
        start: mapping.start,
        end: mapping.end,
        protection: mapping.protection,
        flags: flags.difference(MappingFlags::USERFAULTFD | MappingFlags::DEVICE | MappingFlags::INPUT_OUTPUT),
        offset: mapping.offset,
        kind,
    })
}

fn mapped_file(mapping: &Mapping) -> std::result::Result<MappedFile, &'static str> {
    let name = &*mapping.name;
    let is_memory = name.starts_with("/memfd:") || name == "/dev/zero (deleted)";
    if is_memory && name.ends_with(DELETED) {
        let (major, minor) = mapping.device;
        let device = rustix::fs::makedev(major, minor);
        return Ok(MappedFile::Memory(ObjectIdentity { device, inode: mapping.inode }));
    }
    if name.starts_with("/SYSV") {
        return Err("System V shared memory");
    }
    if name.ends_with(DELETED) {
        return Err("a deleted file");
    }
    if name.starts_with("anon_inode:") || name.starts_with("socket:") {
        return Err("a kernel object's memory");
    }
    if !name.starts_with('/') {
        return Err("a file without a path");
    }
    if name.contains('\\') || name.contains('\u{fffd}') {
        return Err("a file with an unusual name");
    }
    Ok(MappedFile::Path(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64) -> Mapping {
        let text = format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n");
        maps::parse(text.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn the_engine_area_is_cut_out_of_a_mapping_that_swallowed_it() {
        let area = EngineArea { start: 0x10_0000 };
        let parts = outside_area(mapping(0x0f_f000, area.end() + 0x1000), Some(area));
        let ranges: Vec<_> = parts.iter().map(|part| (part.start, part.end)).collect();
        assert_eq!(ranges, [(0x0f_f000, 0x10_0000), (area.end(), area.end() + 0x1000)]);
        assert!(outside_area(mapping(area.start, area.end()), Some(area)).is_empty());
        assert_eq!(outside_area(mapping(0x1000, 0x2000), Some(area)).len(), 1);
    }

    #[test]
    fn files_without_a_path_of_their_own_are_told_apart() {
        let file = |name: &str| {
            let text = format!("1000-2000 rw-s 00000000 00:01 77 {name}\n");
            mapped_file(&maps::parse(text.as_bytes()).unwrap()[0])
        };
        let memory = ObjectIdentity { device: rustix::fs::makedev(0, 1), inode: 77 };
        assert_eq!(file("/memfd:x (deleted)"), Ok(MappedFile::Memory(memory)));
        assert_eq!(file("/dev/zero (deleted)"), Ok(MappedFile::Memory(memory)));
        assert_eq!(file("/lib/x.so"), Ok(MappedFile::Path("/lib/x.so".into())));
        assert_eq!(file("/tmp/x (deleted)"), Err("a deleted file"));
        assert_eq!(file("/SYSV00000000 (deleted)"), Err("System V shared memory"));
        assert_eq!(file("anon_inode:[io_uring]"), Err("a kernel object's memory"));
    }
}
