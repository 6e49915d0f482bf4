//! What every root needs and no image may bring: device nodes and mount
//! points above the image, empty standard directories below it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat};

use crate::error::{Named, Result};
use crate::id::LayerId;
use crate::layer::{Layer, LayerStack};
use crate::store::Store;

/// Raised when what the layers contain changes, so that an old store gets new
/// ones.
const VERSION: u32 = 2;

/// Group `tty` of every Linux distribution.
const TTY_GROUP: u32 = 5;

/// Device nodes: name, major, minor, group inside.
const DEVICES: &[(&str, u32, u32, u32)] = &[
    ("null", 1, 3, 0),
    ("zero", 1, 5, 0),
    ("full", 1, 7, 0),
    ("random", 1, 8, 0),
    ("urandom", 1, 9, 0),
    ("tty", 5, 0, TTY_GROUP),
];

/// Links in `/dev`: name, target.
const LINKS: &[(&str, &str)] = &[
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Directories of the layer above the image: path, mode.
const MOUNT_POINTS: &[(&str, u32)] =
    &[("dev", 0o755), ("dev/pts", 0o755), ("dev/shm", 0o1777), ("dev/mqueue", 0o1777), ("proc", 0o555), ("sys", 0o555)];

/// Directories of the layer below the image: path, mode. Where the image has
/// something of that name, the image's counts.
const SKELETON: &[(&str, u32)] = &[
    ("etc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/lib", 0o755),
    ("usr/lib/brood", 0o755),
    ("usr/lib/brood/python", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
];

/// Files of the layer below the image: path, content. Programs inside find them where their
/// environment points there.
const FILES: &[(&str, &str)] = &[
    ("usr/lib/brood/python/brood_reseed.py", include_str!("system_layer/brood_reseed.py")),
    ("usr/lib/brood/python/sitecustomize.py", include_str!("system_layer/sitecustomize.py")),
];

/// The two layers that enclose those of an image.
#[derive(Clone, Debug)]
pub struct SystemLayers {
    /// Above the image: `/dev` with everything in it (what the image has there
    /// is hidden), and the mount points `/proc` and `/sys`, which thus are
    /// real directories whatever the image says.
    pub above: Layer,
    /// Below the image: the directories that a root needs, empty but for a few files of ours.
    pub below: Layer,
}

impl SystemLayers {
    /// The layers from `store`, made when missing. Needs real root, because of
    /// the device nodes.
    ///
    /// # Errors
    /// As file operations.
    pub fn open(store: &Store) -> Result<Self> {
        Ok(Self { above: layer(store, "above", fill_above)?, below: layer(store, "below", fill_below)? })
    }

    /// The stack of an image, `layers` topmost first, complete with what every
    /// root needs.
    #[must_use]
    pub fn enclose(&self, layers: impl IntoIterator<Item = Layer>) -> LayerStack {
        let above = std::iter::once(self.above.clone());
        let below = std::iter::once(self.below.clone());
        LayerStack::new(above.chain(layers).chain(below))
    }
}

fn layer(store: &Store, name: &str, fill: fn(&Path, u32) -> Result<()>) -> Result<Layer> {
    let base = store.id_base();
    let id: LayerId = format!("system-{name}-{VERSION}-{base}").parse().expect("letters, digits and dashes make an id");
    if let Ok(layer) = store.layer(&id) {
        return Ok(layer);
    }
    let staging = store.stage()?;
    fill(staging.path(), base)?;
    staging.publish(id)
}

fn fill_above(root: &Path, base: u32) -> Result<()> {
    make_directories(root, base, MOUNT_POINTS)?;
    let dev = root.join("dev");
    rustix::fs::setxattr(&dev, "trusted.overlay.opaque", b"y", XattrFlags::empty()).named("mark as opaque", &dev)?;
    for &(name, major, minor, group) in DEVICES {
        let path = dev.join(name);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), makedev(major, minor))
            .named("make device", &path)?;
        own(&path, base, base + group, 0o666)?;
    }
    for &(name, target) in LINKS {
        let path = dev.join(name);
        symlink(target, &path).named("make symbolic link", &path)?;
        std::os::unix::fs::lchown(&path, Some(base), Some(base)).named("set owner of", &path)?;
    }
    Ok(())
}

fn fill_below(root: &Path, base: u32) -> Result<()> {
    make_directories(root, base, SKELETON)?;
    for &(name, content) in FILES {
        let path = root.join(name);
        fs::write(&path, content).named("write", &path)?;
        own(&path, base, base, 0o644)?;
    }
    Ok(())
}

fn make_directories(root: &Path, base: u32, directories: &[(&str, u32)]) -> Result<()> {
    for &(name, mode) in directories {
        let path = root.join(name);
        fs::create_dir(&path).named("make directory", &path)?;
        own(&path, base, base, mode)?;
    }
    Ok(())
}

/// Sets owner, then mode: a change of owner would clear setuid bits.
fn own(path: &Path, user: u32, group: u32, mode: u32) -> Result<()> {
    chown(path, Some(user), Some(group)).named("set owner of", path)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).named("set mode of", path)
}
