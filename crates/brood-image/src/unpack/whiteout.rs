//! Marks that hide what lies in lower layers: from the names that OCI layers use to the form that overlayfs knows.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, XattrFlags};

use super::error::{IoContext as _, Refusal, UnpackError};
use super::path::EntryPath;
use super::tree::Directory;

/// Prefix of names that mark instead of naming.
pub(super) const PREFIX: &[u8] = b".wh.";
/// The name that makes its directory hide everything below.
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// Other names of this prefix are bookkeeping of long-gone aufs; they describe no content.
const BOOKKEEPING_PREFIX: &[u8] = b".wh..wh.";

/// What a name that begins with [`PREFIX`] means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Marker {
    /// The directory hides everything below it.
    Opaque,
    /// The sibling of this name is hidden.
    Whiteout(Vec<u8>),
    /// Nothing.
    Ignored,
}

/// The meaning of the last component `name` of `path`, if it is a mark.
pub(super) fn marker(name: &[u8], path: &EntryPath) -> Result<Option<Marker>, UnpackError> {
    let Some(hidden) = name.strip_prefix(PREFIX) else {
        return Ok(None);
    };
    if name == OPAQUE_NAME {
        return Ok(Some(Marker::Opaque));
    }
    if name.starts_with(BOOKKEEPING_PREFIX) {
        return Ok(Some(Marker::Ignored));
    }
    match hidden {
        b"" | b"." | b".." => Err(path.refuse(Refusal::WhiteoutName)),
        _ => Ok(Some(Marker::Whiteout(hidden.to_vec()))),
    }
}

/// Makes the character device 0/0 by which an overlay hides `path`.
pub(super) fn make(parent: &Directory, path: &EntryPath) -> Result<(), UnpackError> {
    let name = path.name().unwrap_or_default();
    rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0).at("make the whiteout", path)
}

/// Marks a directory as hiding everything below.
pub(super) fn set_opaque(directory: &OwnedFd, path: &EntryPath) -> Result<(), UnpackError> {
    rustix::fs::fsetxattr(directory, c"trusted.overlay.opaque", b"y", XattrFlags::empty()).at("mark as opaque", path)
}
