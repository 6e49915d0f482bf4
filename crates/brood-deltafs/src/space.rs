//! Spaces: what a sandbox with a disk limit writes in.
//!
//! A space holds the uppers of one sandbox and the layers frozen from them, so
//! that the limit counts all that the sandbox has written. Two mechanisms:
//!
//! - **Project quota**: the space is a directory with a project id on the
//!   store's own file system. Costs nothing; needs XFS or ext4 mounted with
//!   `prjquota`. EDQUOT or ENOSPC when full.
//! - **Image**: the space is an ext4 image of exactly the right size, sparse,
//!   mounted through a loop device. Works everywhere; a few milliseconds to
//!   make. ENOSPC when full, and `df` inside shows the limit.
//!
//! Sandboxes without a limit have no space and pay for none of this.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brood_kernel::{mount, quota};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::error::{Named, Result, StoreError};
use crate::ext4_image;
use crate::home::Home;
use crate::id::{SpaceId, random_name};
use crate::upper::make_private_directory;

/// Smallest limit: below, the file system's own needs dominate.
pub const LIMIT_BYTES_MIN: u64 = 16 << 20;

/// Largest limit: what ext4 can hold with its default block size.
pub const LIMIT_BYTES_MAX: u64 = 8 << 40;

/// First project id that is used. Ids below are left to the administrator's
/// own `/etc/projid`.
const PROJECT_FIRST: u32 = 0x4200_0000;

/// How many ids from there on are used.
const PROJECTS: u32 = 1 << 24;

/// Ids that are tried. With a thousand spaces on one file system the chance
/// that this many are taken is nil.
const PROJECT_ATTEMPTS_MAX: usize = 64;

/// Name of the image file, in a space's directory.
const IMAGE: &str = "image";
/// Name of the note with the project id, in a space's directory.
const PROJECT: &str = "project";
/// Name of the directory with the content, in a space's directory.
const CONTENT: &str = "content";

/// How this host limits what a sandbox writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitMechanism {
    /// Project quotas of the store's file system.
    ProjectQuota,
    /// One ext4 image for each limited sandbox.
    Image,
}

/// What `brood doctor` tells about disk limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSupport {
    /// What is used, if anything can be.
    pub mechanism: Option<LimitMechanism>,
    /// Why this and not something better; how to get that.
    pub reason: String,
}

/// What is written in a space, and how much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes allowed.
    pub bytes_max: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The disk space of one limited sandbox. Clones are the same space.
#[derive(Clone, Debug)]
pub struct Space(pub(crate) Arc<SpaceInner>);

#[derive(Debug)]
pub(crate) struct SpaceInner {
    id: SpaceId,
    /// `spaces/ID` in the store.
    directory: PathBuf,
    pub(crate) home: Home,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Project(u32),
    Image,
}

/// What the host offers for a store whose spaces are on the file system of the directory `spaces`.
#[must_use]
pub fn support(spaces: &Path) -> LimitSupport {
    let no_quota = match File::open(spaces) {
        Ok(directory) => quota::unavailable_reason(&directory),
        Err(_) => Some("the state directory cannot be opened"),
    };
    let Some(no_quota) = no_quota else {
        let reason = "project quotas of the state directory's file system".to_owned();
        return LimitSupport { mechanism: Some(LimitMechanism::ProjectQuota), reason };
    };
    match ext4_image::unavailable_reason() {
        None => LimitSupport {
            mechanism: Some(LimitMechanism::Image),
            reason: format!("an ext4 image for each limited sandbox, because {no_quota}"),
        },
        Some(no_image) => LimitSupport { mechanism: None, reason: format!("{no_quota}; and {no_image}") },
    }
}

impl Space {
    /// Makes a space below `spaces` with `mechanism`.
    pub(crate) fn create(spaces: &Path, bytes_max: u64, mechanism: LimitMechanism) -> Result<Self> {
        if !(LIMIT_BYTES_MIN..=LIMIT_BYTES_MAX).contains(&bytes_max) {
            return Err(StoreError::LimitRange { bytes: bytes_max, min: LIMIT_BYTES_MIN, max: LIMIT_BYTES_MAX });
        }
        let id = SpaceId::random().named("name for a space in", spaces)?;
        let directory = spaces.join(id.as_str());
        make_private_directory(&directory)?;
        let made = Self::fill(&directory, bytes_max, mechanism);
        made.and_then(|()| Self::open(directory.clone(), id)).inspect_err(|_error| {
            // Whatever of it is there; what cannot be undone goes at the next
            // start.
            drop(mount::detach(&directory.join(CONTENT)));
            drop(fs::remove_dir_all(&directory));
        })
    }

    fn fill(directory: &Path, bytes_max: u64, mechanism: LimitMechanism) -> Result<()> {
        make_private_directory(&directory.join(CONTENT))?;
        match mechanism {
            LimitMechanism::ProjectQuota => set_project(directory, bytes_max),
            LimitMechanism::Image => ext4_image::make(&directory.join(IMAGE), bytes_max),
        }
    }

    /// Opens the space that an earlier process made in `directory`; an image
    /// is mounted unless it still is.
    pub(crate) fn open(directory: PathBuf, id: SpaceId) -> Result<Self> {
        let content = directory.join(CONTENT);
        let image = directory.join(IMAGE);
        let note = directory.join(PROJECT);
        let kind = if image.exists() {
            if !is_mount_point(&content)? {
                ext4_image::mount(&image, &content)
                    .map_err(|source| StoreError::MountSpace { id: id.clone(), source })?;
            }
            Kind::Image
        } else {
            let text = fs::read_to_string(&note).named("read", &note)?;
            Kind::Project(text.parse().map_err(|_bad| std::io::ErrorKind::InvalidData).named("read", &note)?)
        };
        let home = Home::make(content)?;
        Ok(Self(Arc::new(SpaceInner { id, directory, home, kind })))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &SpaceId {
        &self.0.id
    }

    /// What is written in it. Deleted things count until they are removed in
    /// the background.
    ///
    /// # Errors
    /// As `statvfs(3)` or `quotactl(2)`.
    pub fn usage(&self) -> Result<SpaceUsage> {
        let content = self.0.home.path();
        match self.0.kind {
            Kind::Project(project) => {
                let directory = File::open(content).named("open", content)?;
                let usage = quota::usage(directory.as_fd(), project).named("quota of", content)?;
                Ok(SpaceUsage { bytes: usage.bytes, bytes_max: usage.bytes_max, inodes: usage.inodes })
            }
            Kind::Image => {
                let status = rustix::fs::statvfs(content).named("status of", content)?;
                Ok(SpaceUsage {
                    bytes: (status.f_blocks - status.f_bfree) * status.f_frsize,
                    bytes_max: status.f_blocks * status.f_frsize,
                    inodes: status.f_files - status.f_ffree,
                })
            }
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Unmounts an image. What is still in use by a mount of a sandbox stays
    /// until that is gone.
    pub(crate) fn close(&self) {
        if matches!(self.0.kind, Kind::Image)
            && let Err(error) = mount::detach(self.0.home.path())
        {
            tracing::error!(space = %self.0.id, %error, "cannot unmount a space");
        }
    }

    /// Takes a quota away, so that its id is free when the content is removed.
    pub(crate) fn abandon(&self) {
        let Kind::Project(project) = self.0.kind else { return };
        let freed =
            File::open(self.0.home.path()).and_then(|directory| Ok(quota::set_limit(directory.as_fd(), project, 0)?));
        if let Err(error) = freed {
            tracing::error!(space = %self.0.id, %error, "cannot take the limit of a space away");
        }
    }
}

/// Gives the space in `directory` a project id that nothing else on the file
/// system has, and limits it. Other stores may be on that file system, so the
/// quota is what tells, not what is in this one.
fn set_project(directory: &Path, bytes_max: u64) -> Result<()> {
    let content = directory.join(CONTENT);
    let file = File::open(&content).named("open", &content)?;
    let project = free_project(&file, &content)?;
    quota::set_limit(file.as_fd(), project, bytes_max).named("limit", &content)?;
    let note = directory.join(PROJECT);
    fs::write(&note, project.to_string()).named("write", &note)?;
    quota::set_project(file.as_fd(), project).named("set project of", &content)
}

fn free_project(file: &File, content: &Path) -> Result<u32> {
    for _ in 0..PROJECT_ATTEMPTS_MAX {
        let random = random_name().named("project for", content)?;
        let random = random.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0);
        let project = PROJECT_FIRST + random % PROJECTS;
        let usage = quota::usage(file.as_fd(), project).named("quota of", content)?;
        if usage == quota::ProjectUsage::default() {
            return Ok(project);
        }
    }
    Err(std::io::Error::other("no free project id")).named("project for", content)
}

fn is_mount_point(path: &Path) -> Result<bool> {
    let status = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE).named("status of", path)?;
    Ok(status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
