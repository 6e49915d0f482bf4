//! Unpacks what comes out of a sandbox.
//!
//! The archive's names, links and modes were chosen by whoever works inside. Every path is resolved
//! beneath the destination by the kernel, links are made but never followed out, devices are refused,
//! and set-id bits are dropped.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use brood_kernel::beneath::{BeneathError, Root};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

/// Where the archive's one top entry goes.
#[derive(Debug)]
pub enum Placement {
    /// Beneath the directory, under its own name.
    Named,
    /// Beneath the directory, under this name.
    Renamed(OsString),
    /// Its content goes into the directory.
    ContentOnly,
}

/// Unpacks an archive into `directory`.
///
/// # Errors
/// When an entry is hostile or cannot be made; what came before it stays.
pub fn read(archive: &mut dyn Read, directory: &Path, placement: &Placement) -> io::Result<()> {
    let root = Root::open(directory).map_err(system)?;
    let mut archive = Archive::new(archive);
    // A directory that nobody may write is filled first and closed last.
    let mut closed_later = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let Some(path) = place(&entry.path_bytes(), placement)? else { continue };
        unpack(&root, &mut entry, &path, placement, &mut closed_later)?;
    }
    for (path, mode) in closed_later.into_iter().rev() {
        let directory = root.open_directory(&path).map_err(system)?;
        rustix::fs::fchmod(directory, mode)?;
    }
    Ok(())
}

/// The path beneath the destination, or none for the top entry itself when only its content is wanted.
fn place(name: &[u8], placement: &Placement) -> io::Result<Option<PathBuf>> {
    let mut parts = Vec::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir => {}
            _ => return Err(hostile(name, "its path leaves the archive")),
        }
    }
    match placement {
        Placement::Named => {}
        Placement::Renamed(name) => match parts.first_mut() {
            Some(first) => first.clone_from(name),
            None => parts.push(name.clone()),
        },
        Placement::ContentOnly => drop(parts.drain(..parts.len().min(1))),
    }
    Ok((!parts.is_empty()).then(|| parts.iter().collect()))
}

fn unpack(
    root: &Root,
    entry: &mut Entry<'_, impl Read>,
    path: &Path,
    placement: &Placement,
    closed_later: &mut Vec<(PathBuf, Mode)>,
) -> io::Result<()> {
    let name = entry.path_bytes().into_owned();
    let mode = Mode::from_raw_mode(entry.header().mode()? & 0o777);
    match entry.header().entry_type() {
        EntryType::Directory => {
            root.make_directories(path, Mode::RWXU).map_err(system)?;
            closed_later.push((path.to_owned(), mode));
        }
        EntryType::Regular | EntryType::Continuous => {
            clear(root, path)?;
            let mut file = File::from(root.create_file(path, mode).map_err(system)?);
            io::copy(entry, &mut file)?;
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().ok_or_else(|| hostile(&name, "a link to nothing"))?;
            clear(root, path)?;
            root.make_symlink(OsStr::from_bytes(&target), path).map_err(system)?;
        }
        EntryType::Link => {
            let target = entry.link_name_bytes().ok_or_else(|| hostile(&name, "a link to nothing"))?;
            let target = place(&target, placement)?.ok_or_else(|| hostile(&name, "a link to the archive itself"))?;
            clear(root, path)?;
            link(root, &target, path)?;
        }
        EntryType::Fifo | EntryType::Char | EntryType::Block => {
            eprintln!("brood: {} is a pipe or device and was left out", String::from_utf8_lossy(&name));
        }
        // Headers that only describe others.
        _ => {}
    }
    Ok(())
}

fn link(root: &Root, target: &Path, path: &Path) -> io::Result<()> {
    let (from, from_name) = root.parent(target).map_err(system)?;
    let (to, to_name) = root.parent(path).map_err(system)?;
    // Without AT_SYMLINK_FOLLOW the link itself is linked, wherever it points to.
    Ok(rustix::fs::linkat(from, from_name, to, to_name, AtFlags::empty())?)
}

/// Removes what an entry replaces: a file or a link, but never a directory.
fn clear(root: &Root, path: &Path) -> io::Result<()> {
    match root.remove_file(path) {
        Err(error) if !error.is_not_found() => Err(system(error)),
        _ => Ok(()),
    }
}

fn hostile(name: &[u8], reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{:?} is refused: {reason}", String::from_utf8_lossy(name)))
}

fn system(error: BeneathError) -> io::Error {
    let kind = io::Error::from(error.source).kind();
    let what = if error.source == Errno::ISDIR { "a directory is in the way of a file" } else { error.step };
    io::Error::new(kind, format!("{what} {}: {}", error.path.display(), error.source))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tar::{Builder, Header};

    use super::*;

    /// An archive whose names are written raw, as the `tar` crate itself would refuse to.
    fn archive(entries: &[(EntryType, &str, &str, u32)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, content, mode) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            let body: &[u8] = match kind {
                EntryType::Regular => content.as_bytes(),
                _ => {
                    header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
                    &[]
                }
            };
            header.set_size(body.len() as u64);
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(entries: &[(EntryType, &str, &str, u32)]) -> (tempfile::TempDir, io::Result<()>) {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("secret"), "untouched").unwrap();
        fs::create_dir(outer.path().join("in")).unwrap();
        let result = read(&mut &archive(entries)[..], &outer.path().join("in"), &Placement::Named);
        assert_eq!(fs::read_to_string(outer.path().join("secret")).unwrap(), "untouched");
        (outer, result)
    }

    #[test]
    fn paths_that_leave_are_refused() {
        for name in ["../secret", "a/../../secret", "/etc/brood-was-here"] {
            let (_, result) = unpacked(&[(EntryType::Regular, name, "x", 0o644)]);
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData, "{name}");
        }
        assert!(!Path::new("/etc/brood-was-here").exists());
    }

    #[test]
    fn links_are_not_followed_out() {
        for target in ["..", "/", "../../"] {
            let (outer, _) = unpacked(&[
                (EntryType::Symlink, "door", target, 0o777),
                (EntryType::Regular, "door/secret", "changed", 0o644),
            ]);
            assert!(!Path::new("/secret").exists());
            drop(outer);
        }
        let (outer, result) = unpacked(&[
            (EntryType::Symlink, "door", "../secret", 0o777),
            (EntryType::Regular, "door", "replaced", 0o644),
        ]);
        result.unwrap();
        assert_eq!(fs::read_to_string(outer.path().join("in/door")).unwrap(), "replaced");
    }

    #[test]
    fn hard_links_stay_inside() {
        for target in ["../secret", "/etc/passwd"] {
            let (_, result) = unpacked(&[(EntryType::Link, "x", target, 0o644)]);
            assert!(result.is_err(), "{target}");
        }
        let (outer, result) = unpacked(&[
            (EntryType::Symlink, "door", "../secret", 0o777),
            (EntryType::Link, "x", "door", 0o644),
            (EntryType::Regular, "x", "mine", 0o644),
        ]);
        result.unwrap();
        assert_eq!(fs::read_to_string(outer.path().join("in/x")).unwrap(), "mine");
    }

    #[test]
    fn set_id_bits_and_devices_are_dropped() {
        let (outer, result) = unpacked(&[
            (EntryType::Regular, "suid", "x", 0o6755),
            (EntryType::Char, "null", "", 0o666),
            (EntryType::Directory, "closed", "", 0o500),
            (EntryType::Regular, "closed/file", "x", 0o644),
        ]);
        result.unwrap();
        let mode = |name: &str| fs::metadata(outer.path().join("in").join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("suid"), 0o755);
        assert_eq!(mode("closed"), 0o500);
        assert!(!outer.path().join("in/null").exists());
        assert!(outer.path().join("in/closed/file").exists());
    }

    #[test]
    fn a_truncated_archive_fails() {
        let whole = archive(&[(EntryType::Regular, "a", &"x".repeat(90), 0o644)]);
        let directory = tempfile::tempdir().unwrap();
        assert!(read(&mut &whole[..540], directory.path(), &Placement::Named).is_err());
    }

    #[test]
    fn placements() {
        let placed = |placement| place(b"dir/file", &placement).unwrap().unwrap();
        assert_eq!(placed(Placement::Named), Path::new("dir/file"));
        assert_eq!(placed(Placement::Renamed("new".into())), Path::new("new/file"));
        assert_eq!(placed(Placement::ContentOnly), Path::new("file"));
        assert_eq!(place(b"dir/", &Placement::ContentOnly).unwrap(), None);
    }
}
