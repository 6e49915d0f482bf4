//! Uppers: the writable side of a mount.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Named, Result};
use crate::home::Home;
use crate::id::{UpperId, random_name};
use crate::usage::Taken;

/// Name of the directory with the changes, inside the upper's own.
pub(crate) const CHANGES: &str = "upper";

/// A directory that takes the changes of one sandbox, with the scratch space
/// that the kernel needs beside it. Dropping the value deletes nothing.
#[derive(Debug)]
pub struct Upper {
    pub(crate) id: UpperId,
    /// Holds `upper` and one `work.*` for each mount.
    pub(crate) directory: PathBuf,
    /// What the changes occupied when somebody last asked.
    pub(crate) usage: Mutex<Option<Taken>>,
}

impl PartialEq for Upper {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Upper {}

impl Upper {
    /// Makes an empty upper in `home` whose root looks like `root`: the root
    /// of an overlay takes owner and mode from its upper.
    pub(crate) fn create(home: &Home, root: &Path) -> Result<Self> {
        let id = UpperId::random().named("name for an upper in", home.path())?;
        let half_made = home.staging().join(id.as_str());
        make_private_directory(&half_made)?;
        let changes = half_made.join(CHANGES);
        make_private_directory(&changes)?;
        copy_root(root, &changes)?;
        let directory = home.uppers().join(id.as_str());
        fs::rename(&half_made, &directory).named("rename", &half_made)?;
        Ok(Self::new(id, directory))
    }

    /// The upper `id` in `directory`, whether it is there or not.
    pub(crate) fn new(id: UpperId, directory: PathBuf) -> Self {
        Self { id, directory, usage: Mutex::default() }
    }

    pub(crate) fn home(&self) -> Home {
        Home::of(&self.directory)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &UpperId {
        &self.id
    }

    /// The directory with the changes, in the form an overlay gives them.
    #[must_use]
    pub fn changes(&self) -> PathBuf {
        self.directory.join(CHANGES)
    }

    /// A new work directory for one mount. A work directory that a mount has
    /// used before costs milliseconds to clean, and one that was volatile
    /// cannot be used again at all.
    pub(crate) fn make_work_directory(&self) -> Result<PathBuf> {
        let name = random_name().named("name for a work directory in", &self.directory)?;
        let work = self.directory.join(format!("work.{name}"));
        make_private_directory(&work)?;
        Ok(work)
    }
}

/// Makes a directory that only the engine may enter.
pub(crate) fn make_private_directory(path: &Path) -> Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path).named("make directory", path)
}

/// Gives `to` owner, mode and times of the layer root `from`.
pub(crate) fn copy_root(from: &Path, to: &Path) -> Result<()> {
    let root = fs::metadata(from).named("status of", from)?;
    std::os::unix::fs::chown(to, Some(root.uid()), Some(root.gid())).named("set owner of", to)?;
    fs::set_permissions(to, root.permissions()).named("set mode of", to)?;
    let times = root.accessed().and_then(|accessed| {
        let times = fs::FileTimes::new().set_accessed(accessed).set_modified(root.modified()?);
        fs::File::open(to)?.set_times(times)
    });
    times.named("set times of", to)
}
