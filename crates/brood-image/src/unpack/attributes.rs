//! Owner, mode and extended attributes: which are taken over from an archive, and in what form.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, Uid, XattrFlags};

use super::LayerNotes;
use super::error::{IoContext as _, Refusal, UnpackError};
use super::path::{EntryPath, printable};
use super::tree::Directory;
use crate::options::{IdShift, Limits};
use crate::tar_stream::{EntryKind, TarEntry};

/// Longest name of an extended attribute that the kernel takes, in bytes.
const XATTR_NAME_BYTES_MAX: usize = 255;
/// The file capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";
/// Bits that run a program as its owner.
const SET_ID_BITS: u32 = 0o6000;

/// Attributes of an entry after judgement, ready to be set.
#[derive(Debug)]
pub(super) struct Attributes {
    user: Uid,
    group: Gid,
    mode: Mode,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Shifts the owner and sorts the extended attributes: file capabilities are rewritten to count in the sandbox's user
    /// namespace, `user.` ones are kept, others left out and counted (they mean something to the host's security modules,
    /// or to overlayfs).
    pub(super) fn judge(
        entry: &TarEntry,
        path: &EntryPath,
        shift: IdShift,
        limits: &Limits,
        notes: &mut LayerNotes,
    ) -> Result<Self, UnpackError> {
        let (user, user_replaced) = shift.shift(entry.user);
        let (group, group_replaced) = shift.shift(entry.group);
        let mut mode = entry.mode;
        if user_replaced || group_replaced {
            notes.owners_replaced += 1;
            // Such a program was meant to run as somebody else.
            mode &= !SET_ID_BITS;
        }
        let mut xattrs = Vec::new();
        for (name, value) in &entry.xattrs {
            let is_sane = !name.is_empty() && name.len() <= XATTR_NAME_BYTES_MAX && !name.contains(&0);
            if !is_sane || value.len() > limits.xattr_bytes_max {
                let (name, limit) = (printable(name), limits.xattr_bytes_max);
                return Err(path.refuse(Refusal::Xattr { name, limit }));
            }
            match translate(entry.kind, name, value, shift) {
                Some(value) => xattrs.push((name.clone(), value)),
                None => notes.xattrs_skipped += 1,
            }
        }
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        Ok(Self { user, group, mode: Mode::from_raw_mode(mode), xattrs })
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets everything on an open file or directory. The order matters: a new owner clears set-id bits and capabilities.
    pub(super) fn apply_to(&self, file: &OwnedFd, path: &EntryPath) -> Result<(), UnpackError> {
        rustix::fs::fchown(file, Some(self.user), Some(self.group)).at("set the owner of", path)?;
        rustix::fs::fchmod(file, self.mode).at("set the mode of", path)?;
        for (name, value) in &self.xattrs {
            rustix::fs::fsetxattr(file, &**name, value, XattrFlags::empty())
                .at("set an extended attribute of", path)?;
        }
        Ok(())
    }

    /// Sets the owner of what cannot be opened: a link or fifo.
    pub(super) fn own_at(&self, parent: &Directory, name: &[u8], path: &EntryPath) -> Result<(), UnpackError> {
        let (user, group) = (Some(self.user), Some(self.group));
        rustix::fs::chownat(parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW).at("set the owner of", path)
    }
}

/// The value to set for the attribute `name`, or `None` if it is left out.
fn translate(kind: EntryKind, name: &[u8], value: &[u8], shift: IdShift) -> Option<Vec<u8>> {
    if name == CAPABILITY {
        return if kind == EntryKind::File { namespaced_capability(value, shift.base) } else { None };
    }
    let is_kept = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    // The kernel allows `user.` attributes on files and directories alone.
    let has_them = matches!(kind, EntryKind::File | EntryKind::Directory);
    (is_kept && has_them).then(|| value.to_vec())
}

/// Rewrites file capabilities to revision 3, which names the root user of the namespace that they count in
/// (capabilities(7), `struct vfs_ns_cap_data`). Revision 1 and unknown forms are left out, as is a revision 3 that was
/// made for another namespace than the image's own root.
fn namespaced_capability(value: &[u8], root: u32) -> Option<Vec<u8>> {
    const REVISION_MASK: u32 = 0xff00_0000;
    const REVISION_2: u32 = 0x0200_0000;
    const REVISION_3: u32 = 0x0300_0000;
    const REVISION_2_BYTES: usize = 20;
    const REVISION_3_BYTES: usize = 24;

    let magic = u32::from_le_bytes(value.first_chunk().copied()?);
    let flags = magic & !REVISION_MASK;
    match (magic & REVISION_MASK, value.len()) {
        (REVISION_2, REVISION_2_BYTES) => {}
        (REVISION_3, REVISION_3_BYTES) if value[REVISION_2_BYTES..] == [0; 4] => {}
        _ => return None,
    }
    let mut out = (REVISION_3 | flags).to_le_bytes().to_vec();
    out.extend_from_slice(&value[4..REVISION_2_BYTES]);
    out.extend_from_slice(&root.to_le_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bound_to_the_shifted_root() {
        let mut two = vec![1, 0, 0, 2];
        two.extend([0x11; 16]);
        let three = namespaced_capability(&two, 0x0102_0304).unwrap();
        assert_eq!(three[..4], [1, 0, 0, 3]);
        assert_eq!(three[4..20], [0x11; 16]);
        assert_eq!(three[20..], [4, 3, 2, 1]);
        assert_eq!(namespaced_capability(&[&two[..3], &[3], &two[4..], &[0; 4]].concat(), 0x0102_0304), Some(three));
        for wrong in [&b""[..], &[0, 0, 0, 2], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(namespaced_capability(wrong, 1), None);
        }
    }
}
