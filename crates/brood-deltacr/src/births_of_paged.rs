//! Finding the watchers of processes that were forked inside since their ancestor was restored.
//!
//! Such a child is served by the pager from its birth, through a userfaultfd of which nobody
//! knows to which process it belongs. It can only be told by trying: a page is mapped at an
//! address of its own in each process in question, and the userfaultfd that can watch it is that
//! process'.

use brood_kernel::userfaultfd::Watch;
use brood_pager::PagedSpace;

use crate::error::Result;
use crate::rollback::puppet_of;
use crate::tree::StoppedTree;
use crate::watcher::Watcher;

/// Where the pages for telling processes apart go, one behind the other: beyond the engine area.
const PROBES_ADDRESS: u64 = 0x7001_0000_0000;
const PROBE_BYTES: u64 = 4096;

/// Gives processes without a watcher the one that they were born with, if they were.
pub(crate) fn find(tree: &mut StoppedTree<'_>) -> Result<()> {
    let paged = tree.tree.members.values().filter_map(|member| member.watcher.as_ref().and_then(Watcher::space));
    let mut born: Vec<PagedSpace> = paged.flat_map(PagedSpace::children).collect();
    if born.is_empty() {
        return Ok(());
    }
    for (index, process) in tree.processes.iter().filter(|process| !process.is_zombie()).enumerate() {
        let member = tree.tree.members.entry(process.pid).or_default();
        if member.watcher.is_some() {
            continue;
        }
        let probe = PROBES_ADDRESS + index as u64 * PROBE_BYTES;
        let puppet = puppet_of(process)?;
        let mut batch = puppet.batch();
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        batch.call(libc::SYS_mmap, &[probe, PROBE_BYTES, libc::PROT_NONE as u64, flags, u64::MAX, 0]);
        puppet.run(&batch)?;
        let own = born.iter().position(|space| space.userfaultfd().register(probe, PROBE_BYTES, Watch::WRITES).is_ok());
        let mut batch = puppet.batch();
        batch.call(libc::SYS_munmap, &[probe, PROBE_BYTES]);
        puppet.run(&batch)?;
        member.watcher = own.map(|position| Watcher::Paged(born.swap_remove(position)));
    }
    Ok(())
}
