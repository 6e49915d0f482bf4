//! The mappings of a process: fast parsers for `/proc/PID/maps` and the flags in `smaps`.

use std::io::Read;

use bitflags::bitflags;
use rustix::io::{Errno, Result};
use rustix::process::Pid;

bitflags! {
    /// Access that a mapping allows, with the numbers of mmap(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Protection: u32 {
        /// Pages can be read.
        const READ = 1;
        /// Pages can be written.
        const WRITE = 2;
        /// Pages can be executed.
        const EXECUTE = 4;
    }
}

bitflags! {
    /// What `smaps` tells of a mapping beside its protection (`VmFlags`), as far as a copy of
    /// the mapping must have it too.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MappingFlags: u32 {
        /// `gd`: grows down, a stack.
        const GROWS_DOWN = 1 << 0;
        /// `nr`: no memory is reserved for it.
        const NO_RESERVE = 1 << 1;
        /// `lo`: locked in memory.
        const LOCKED = 1 << 2;
        /// `wf`: a forked child sees zeros.
        const WIPE_ON_FORK = 1 << 3;
        /// `dc`: a forked child doesn't have it.
        const NOT_ON_FORK = 1 << 4;
        /// `dd`: left out of core dumps.
        const NOT_DUMPED = 1 << 5;
        /// `hg`: huge pages are asked for.
        const HUGE_PAGES = 1 << 6;
        /// `nh`: huge pages are not wanted.
        const NO_HUGE_PAGES = 1 << 7;
        /// `mg`: may be merged with equal pages.
        const MERGEABLE = 1 << 8;
        /// `sl`: sealed against changes.
        const SEALED = 1 << 9;
        /// `dp`: the kernel may drop its pages at any time.
        const DROPPABLE = 1 << 10;
        /// `ht`: a huge-page file.
        const HUGE_FILE = 1 << 11;
        /// `pf` or `mm`: pages of a device, not of memory.
        const DEVICE = 1 << 12;
        /// `sr`: sequential reads are expected.
        const SEQUENTIAL = 1 << 13;
        /// `rr`: random reads are expected.
        const RANDOM = 1 << 14;
        /// `um`, `uw` or `ui`: registered with a userfaultfd.
        const USERFAULTFD = 1 << 15;
        /// `ss`: a shadow stack.
        const SHADOW_STACK = 1 << 16;
        /// `io`: memory of a device.
        const INPUT_OUTPUT = 1 << 17;
    }
}

impl MappingFlags {
    fn from_code(code: &str) -> Self {
        match code {
            "gd" => Self::GROWS_DOWN,
            "nr" => Self::NO_RESERVE,
            "lo" => Self::LOCKED,
            "wf" => Self::WIPE_ON_FORK,
            "dc" => Self::NOT_ON_FORK,
            "dd" => Self::NOT_DUMPED,
            "hg" => Self::HUGE_PAGES,
            "nh" => Self::NO_HUGE_PAGES,
            "mg" => Self::MERGEABLE,
            "sl" => Self::SEALED,
            "dp" => Self::DROPPABLE,
            "ht" => Self::HUGE_FILE,
            "pf" | "mm" => Self::DEVICE,
            "sr" => Self::SEQUENTIAL,
            "rr" => Self::RANDOM,
            "um" | "uw" | "ui" => Self::USERFAULTFD,
            "ss" => Self::SHADOW_STACK,
            "io" => Self::INPUT_OUTPUT,
            _ => Self::empty(),
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Access allowed.
    pub protection: Protection,
    /// Writes reach the file and other processes.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device; zeros for anonymous memory.
    pub device: (u32, u32),
    /// The file's inode number; zero for anonymous memory.
    pub inode: u64,
    /// Path as the kernel writes it (newlines escaped, ` (deleted)` behind deleted files), or a
    /// name such as `[heap]`, or nothing.
    pub name: Box<str>,
}

impl Mapping {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Private memory without a file: heap, stack and the like.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.inode == 0 && !self.shared && !self.is_special()
    }

    /// One of the kernel's own mappings (vdso, its data, vsyscall).
    #[must_use]
    pub fn is_special(&self) -> bool {
        matches!(&*self.name, "[vdso]" | "[vsyscall]" | "[uprobes]") || self.name.starts_with("[vvar")
    }
}

/// Reads a whole `/proc` file, whatever size it reports.
///
/// # Errors
/// ENOENT if the process is gone, EACCES without access to it.
pub fn read_proc_file(path: &str, buffer: &mut Vec<u8>) -> Result<()> {
    let convert = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut file = std::fs::File::open(path).map_err(convert)?;
    buffer.clear();
    loop {
        let filled = buffer.len();
        if buffer.capacity() - filled < 8 * 1024 {
            buffer.reserve(buffer.capacity().max(32 * 1024));
        }
        buffer.resize(buffer.capacity(), 0);
        let count = match file.read(&mut buffer[filled..]) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(convert(error)),
        };
        buffer.truncate(filled + count);
        if count == 0 {
            return Ok(());
        }
    }
}

/// Lists the mappings of a process in address order.
///
/// # Errors
/// As for [`read_proc_file`]; EINVAL for a line that isn't understood.
pub fn read(pid: Pid, buffer: &mut Vec<u8>) -> Result<Vec<Mapping>> {
    read_proc_file(&format!("/proc/{}/maps", pid.as_raw_nonzero()), buffer)?;
    parse(buffer)
}

/// Parses the text of a `maps` file.
///
/// # Errors
/// EINVAL for a line that isn't understood.
pub fn parse(text: &[u8]) -> Result<Vec<Mapping>> {
    let mut mappings = Vec::with_capacity(text.len() / 80);
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        mappings.push(parse_line(line).ok_or(Errno::INVAL)?);
    }
    Ok(mappings)
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let start = hexadecimal(&mut rest, b'-')?;
    let end = hexadecimal(&mut rest, b' ')?;
    let (access, mut rest) = rest.split_at_checked(5)?;
    let mut protection = Protection::empty();
    protection.set(Protection::READ, access[0] == b'r');
    protection.set(Protection::WRITE, access[1] == b'w');
    protection.set(Protection::EXECUTE, access[2] == b'x');
    let shared = access[3] == b's';
    let offset = hexadecimal(&mut rest, b' ')?;
    let major = hexadecimal(&mut rest, b':')?;
    let minor = hexadecimal(&mut rest, b' ')?;
    let mut inode = 0_u64;
    while let Some((digit, tail)) = rest.split_first() {
        rest = tail;
        match digit {
            b'0'..=b'9' => inode = inode.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?,
            _ => break,
        }
    }
    let name = String::from_utf8_lossy(rest.trim_ascii_start());
    Some(Mapping {
        start,
        end: (end > start).then_some(end)?,
        protection,
        shared,
        offset,
        device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        name: name.into(),
    })
}

/// Takes a hexadecimal number and the delimiter behind it off the front.
fn hexadecimal(text: &mut &[u8], delimiter: u8) -> Option<u64> {
    let mut value = 0_u64;
    for (index, byte) in text.iter().enumerate() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ if *byte == delimiter && index > 0 => {
                *text = &text[index + 1..];
                return Some(value);
            }
            _ => return None,
        };
        value = value.checked_mul(16)? | u64::from(digit);
    }
    None
}

/// Lists the mappings of a process with their flags. Walks page tables: tens of nanoseconds
/// for each resident page, so not for every checkpoint.
///
/// # Errors
/// As for [`read`].
pub fn read_with_flags(pid: Pid, buffer: &mut Vec<u8>) -> Result<Vec<(Mapping, MappingFlags)>> {
    read_proc_file(&format!("/proc/{}/smaps", pid.as_raw_nonzero()), buffer)?;
    parse_with_flags(buffer)
}

fn parse_with_flags(text: &[u8]) -> Result<Vec<(Mapping, MappingFlags)>> {
    let mut found: Vec<(Mapping, MappingFlags)> = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Some(codes) = line.strip_prefix(b"VmFlags:") {
            let codes = std::str::from_utf8(codes).map_err(|_| Errno::INVAL)?;
            let (_, flags) = found.last_mut().ok_or(Errno::INVAL)?;
            *flags = codes.split_ascii_whitespace().map(MappingFlags::from_code).collect();
        } else if !line[0].is_ascii_uppercase() {
            let mapping = parse_line(line).ok_or(Errno::INVAL)?;
            found.push((mapping, MappingFlags::empty()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let text = b"7f00a000-7f00c000 r-xp 00001000 fe:01 9178 /usr/lib/a b (deleted)\n\
            555555559000-55555557a000 rw-p 00000000 00:00 0 [heap]\n\
            7ffff7fa0000-7ffff7fa1000 ---s 00000000 00:01 5\n";
        let mappings = parse(text).unwrap();
        assert_eq!(mappings.len(), 3);
        assert_eq!(mappings[0].start, 0x7f00_a000);
        assert_eq!(mappings[0].protection, Protection::READ | Protection::EXECUTE);
        assert_eq!(mappings[0].device, (0xfe, 1));
        assert_eq!((mappings[0].inode, mappings[0].offset), (9178, 0x1000));
        assert_eq!(&*mappings[0].name, "/usr/lib/a b (deleted)");
        assert!(mappings[1].is_anonymous());
        assert!(mappings[2].shared && mappings[2].protection.is_empty());
    }

    #[test]
    fn damaged_lines_are_errors_not_panics() {
        for text in [
            "x",
            "1-",
            "2000-1000 rw-p 0 00:00 0",
            "1000-2000 r",
            "1000-2000 rw-p zz 00:00 0 ",
            "1000-2000 rw-p 0 00:00 99999999999999999999999 a",
            "-1000 rw-p 0 0:0 0",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(Errno::INVAL), "{text}");
        }
    }

    #[test]
    fn both_files_agree_about_this_process() {
        let mut buffer = Vec::new();
        let pid = rustix::process::getpid();
        let stack = |name: &str| name == "[stack]";
        let maps = read(pid, &mut buffer).unwrap();
        assert!(maps.iter().any(|mapping| stack(&mapping.name)));
        let flagged = read_with_flags(pid, &mut buffer).unwrap();
        let (_, flags) = flagged.iter().find(|(mapping, _)| stack(&mapping.name)).unwrap();
        assert!(flags.contains(MappingFlags::GROWS_DOWN));
    }
}
