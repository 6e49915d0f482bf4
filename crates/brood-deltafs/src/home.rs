//! One place for layers and uppers: the store itself, or a limited space.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::upper::make_private_directory;

/// A directory with `layers`, `uppers`, `staging` and `trash` in it, all on
/// one file system, so that everything moves between them by one rename.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// The home at `path`; what is missing in it is made.
    pub(crate) fn make(path: PathBuf) -> Result<Self> {
        let home = Self(path);
        for path in [home.layers(), home.uppers(), home.staging(), home.trash()] {
            if !path.exists() {
                make_private_directory(&path)?;
            }
        }
        Ok(home)
    }

    /// The home that a layer's or upper's directory is in.
    pub(crate) fn of(path: &Path) -> Self {
        let home = path.parent().and_then(Path::parent).expect("layers and uppers are two levels below a home");
        Self(home.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.0.join("layers")
    }

    pub(crate) fn uppers(&self) -> PathBuf {
        self.0.join("uppers")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.0.join("staging")
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.0.join("trash")
    }
}
