//! Mounting a stack.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use brood_kernel::mount::{MountError, Overlay, OverlayUpper};
use rustix::mount::MountAttrFlags;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::error::{Result, StoreError};
use crate::layer::{DEPTH_MAX, Layer, LayerStack};
use crate::upper::Upper;

/// Options of every mount, whatever the kernel was built to prefer.
///
/// - `redirect_dir=on`: renaming a directory of a lower layer works, where it
///   would be EXDEV otherwise, which many programs do not expect. Safe,
///   because nothing in a sandbox or an image can set `trusted.*` attributes.
/// - `index=off`: an index lives in the work directory, which no freeze can
///   take along.
/// - `metacopy=off`: every layer holds whole files, so each can be read,
///   squashed and exported by itself.
/// - `xino=on`: one device number and constant inode numbers also where the
///   layers are on several file systems.
const OPTIONS: &[(&str, Option<&str>)] =
    &[("redirect_dir", Some("on")), ("index", Some("off")), ("metacopy", Some("off")), ("xino", Some("on"))];

/// No sync when the mount or a file in it is synced or unmounted: durability
/// is the engine's own doing, when a checkpoint is made durable.
const VOLATILE: (&str, Option<&str>) = ("volatile", None);

/// A stack with an upper, mounted but attached nowhere. Closing it before it
/// is attached unmounts it.
#[derive(Debug)]
pub struct OverlayMount {
    mount: OwnedFd,
}

impl OverlayMount {
    /// Mounts `stack` with `upper` on top. An upper must not be mounted twice
    /// at the same time.
    ///
    /// Device nodes and setuid bits work in the mount: the former come from
    /// the system layer only, the latter mean users of the sandbox.
    ///
    /// # Errors
    /// [`StoreError::Depth`], or what the kernel says.
    pub fn mount(stack: &LayerStack, upper: &Upper) -> Result<Self> {
        let top = mountable(stack)?;
        let changes = upper.changes();
        let work = upper.make_work_directory()?;
        let options: Vec<_> = OPTIONS.iter().copied().chain([VOLATILE]).collect();
        let upper = OverlayUpper { upper: &changes, work: &work };
        mount(stack, top, Some(upper), &options)
    }

    /// Mounts `stack` alone, read-only. It needs two layers or more.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_read_only(stack: &LayerStack) -> Result<Self> {
        let top = mountable(stack)?;
        mount(stack, top, None, OPTIONS)
    }
}

fn mountable(stack: &LayerStack) -> Result<&Layer> {
    match stack.top() {
        Some(top) if stack.depth() <= DEPTH_MAX => Ok(top),
        _ => Err(StoreError::Depth { depth: stack.depth(), max: DEPTH_MAX }),
    }
}

fn mount(
    stack: &LayerStack,
    top: &Layer,
    upper: Option<OverlayUpper<'_>>,
    options: &[(&'static str, Option<&str>)],
) -> Result<OverlayMount> {
    let lowers: Vec<&Path> = stack.layers().iter().map(Layer::path).collect();
    let overlay = Overlay { lowers: &lowers, upper };
    let failed = |source| StoreError::Mount { top: top.id().clone(), source };
    let mount = without_resource_privilege(|| overlay.mount(options, MountAttrFlags::MOUNT_ATTR_NOATIME))
        .map_err(|errno| failed(MountError::from_errno("capset", "CAP_SYS_RESOURCE", errno)))?
        .map_err(failed)?;
    Ok(OverlayMount { mount })
}

/// Runs `body` with CAP_SYS_RESOURCE switched off in this thread. An overlay
/// writes to its upper with the credentials of the thread that mounted it, and
/// that capability would let every sandbox pass disk quotas and use up the
/// blocks that the host's file system keeps for root.
fn without_resource_privilege<T>(body: impl FnOnce() -> T) -> rustix::io::Result<T> {
    let before = capabilities(None)?;
    if !before.effective.contains(CapabilitySet::SYS_RESOURCE) {
        return Ok(body());
    }
    let effective = before.effective - CapabilitySet::SYS_RESOURCE;
    set_capabilities(None, CapabilitySets { effective, ..before })?;
    let result = body();
    set_capabilities(None, before)?;
    Ok(result)
}

impl AsFd for OverlayMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }
}

impl From<OverlayMount> for OwnedFd {
    fn from(overlay: OverlayMount) -> Self {
        overlay.mount
    }
}
