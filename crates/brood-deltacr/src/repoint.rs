//! Re-pointing a stopped tree to other files at the same paths, after the file layer below it
//! was frozen or exchanged.
//!
//! Open files, working and root directories and shared mappings of files are opened again
//! beneath the new root, with the flags and offsets that they have. Private mappings stay: their
//! content is that of immutable layers.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

use crate::address_space::{MappedFile, MappingImage, MappingKind};
use crate::capture::link;
use crate::descriptors::table::FileSurvey;
use crate::descriptors::{DescriptorImage, Externals, OpenFileImage, OpenFileKind};
use crate::error::{Error, Result};
use crate::mappings;
use crate::page_store::PageStore;
use crate::puppet::Puppet;
use crate::rebuild::{add_mapping, needs_writing};
use crate::rollback::puppet_of;
use crate::root::SandboxRoot;
use crate::tree::{StoppedProcess, StoppedTree};

/// Room that one call takes in a batch at most.
const CALL_ROOM: usize = 900;

/// What was re-pointed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepointStatistics {
    /// Open files, each once however many descriptors refer to it.
    pub files: usize,
    /// Shared mappings.
    pub mappings: usize,
}

impl StoppedTree<'_> {
    /// Opens everything that the tree has of its files again beneath `root`. To be called between
    /// stopping and resuming, when the new files are in place at the paths of the old ones.
    ///
    /// # Errors
    /// If a file isn't there; processes before it in the tree have been re-pointed then.
    pub fn repoint_files(&mut self, root: &SandboxRoot, externals: &dyn Externals) -> Result<RepointStatistics> {
        self.prepare_areas()?;
        let store = PageStore::new();
        let mut survey = FileSurvey::new(externals, &store);
        survey.tolerate();
        let mut tables: Vec<Vec<DescriptorImage>> = Vec::new();
        for process in &self.processes {
            tables.push(if process.is_zombie() { Vec::new() } else { survey.add_process(process)? });
        }
        let files = survey.finish(&self.processes)?.files;
        let opened = reopen_all(&files, root)?;
        let mut statistics = RepointStatistics { files: opened.len(), mappings: 0 };
        for (process, table) in self.processes.iter().zip(&tables).filter(|(process, _)| !process.is_zombie()) {
            let puppet = puppet_of(process)?;
            repoint_descriptors(&puppet, table, &opened)?;
            repoint_directories(&puppet, process, root)?;
            let member = self.tree.members.entry(process.pid).or_default();
            let mappings = mappings::survey(process, process.area, &mut member.known, &mut Vec::new())?;
            statistics.mappings += repoint_mappings(&puppet, &mappings, root)?;
        }
        Ok(statistics)
    }
}

/// Opens the files with a path again, by their place in the list.
fn reopen_all(files: &[OpenFileImage], root: &SandboxRoot) -> Result<BTreeMap<usize, OwnedFd>> {
    let mut opened = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        // What can't be opened by path (and would be refused by a capture) is left as it is.
        if let OpenFileKind::Path(path) = &file.kind
            && !path.path.is_empty()
        {
            let again = file.reopen_path(root).map_err(|source| Error::File { path: path.path.to_string(), source })?;
            opened.insert(index, again);
        }
    }
    Ok(opened)
}

fn repoint_descriptors(puppet: &Puppet, table: &[DescriptorImage], opened: &BTreeMap<usize, OwnedFd>) -> Result<()> {
    let mut wanted: Vec<usize> = table.iter().map(|descriptor| descriptor.file.0).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted.retain(|index| opened.contains_key(index));
    let files: Vec<BorrowedFd<'_>> = wanted.iter().filter_map(|index| Some(opened.get(index)?.as_fd())).collect();
    if files.is_empty() {
        return Ok(());
    }
    let numbers: BTreeMap<usize, i32> = wanted.into_iter().zip(puppet.give(&files)?).collect();
    let mut batch = puppet.batch();
    for descriptor in table {
        let Some(from) = numbers.get(&descriptor.file.0) else { continue };
        puppet.run_if_full(&mut batch, CALL_ROOM)?;
        let flags = if descriptor.close_on_exec { libc::O_CLOEXEC as u64 } else { 0 };
        let [from, to] = [*from, descriptor.number].map(|number| u64::from(number.unsigned_abs()));
        batch.call(libc::SYS_dup3, &[from, to, flags]);
    }
    for number in numbers.values() {
        puppet.run_if_full(&mut batch, CALL_ROOM)?;
        batch.call(libc::SYS_close, &[u64::from(number.unsigned_abs())]);
    }
    puppet.run(&batch)?;
    Ok(())
}

fn repoint_directories(puppet: &Puppet, process: &StoppedProcess, root: &SandboxRoot) -> Result<()> {
    let open = |path: &str| {
        let opened = root.open(path, OFlags::RDONLY | OFlags::DIRECTORY);
        opened.map_err(|source| Error::File { path: path.to_owned(), source })
    };
    let (root_directory, working_directory) = (open(&link(process, "root")?)?, open(&link(process, "cwd")?)?);
    let numbers = puppet.give(&[root_directory.as_fd(), working_directory.as_fd()])?;
    let mut batch = puppet.batch();
    let number = |index: usize| u64::from(numbers.get(index).copied().unwrap_or(-1).unsigned_abs());
    if &*link(process, "root")? != "/" {
        batch.call(libc::SYS_fchdir, &[number(0)]);
        let here = batch.text(b".");
        batch.call(libc::SYS_chroot, &[here]);
    }
    batch.call(libc::SYS_fchdir, &[number(1)]);
    batch.call(libc::SYS_close, &[number(0)]);
    batch.call(libc::SYS_close, &[number(1)]);
    puppet.run(&batch)?;
    Ok(())
}

fn repoint_mappings(puppet: &Puppet, mappings: &[MappingImage], root: &SandboxRoot) -> Result<usize> {
    let mut count = 0;
    for mapping in mappings {
        let MappingKind::Shared(MappedFile::Path(path)) = &mapping.kind else { continue };
        let flags = if needs_writing(mapping) { OFlags::RDWR } else { OFlags::RDONLY };
        let file = root.open(path, flags).map_err(|source| Error::File { path: path.to_string(), source })?;
        let numbers = puppet.give(&[file.as_fd()])?;
        let number = numbers.first().copied().unwrap_or(-1);
        let mut batch = puppet.batch();
        add_mapping(&mut batch, mapping, &|_, _| Ok(number))?;
        batch.call(libc::SYS_close, &[u64::from(number.unsigned_abs())]);
        puppet.run(&batch)?;
        count += 1;
    }
    Ok(count)
}
