//! Who a thread is: user and group ids, capabilities, and what bounds them.

use brood_kernel::injection::{Batch, BatchResults, CallIndex, Output};

use crate::proc_files::{CapabilitySets, Status};
use crate::words::{bytes_of_u32, signed, u32_at};

/// Supplementary groups that are captured; more are refused.
pub(crate) const GROUPS_MAX: usize = 128;
/// Highest capability number plus one; larger ones are tried and ignored where unknown.
const CAPABILITIES: u32 = 41;
/// Version of the capability records, `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// `SECBIT_KEEP_CAPS`: a change of user ids keeps the permitted set.
const KEEP_CAPABILITIES: u64 = 1 << 4;

/// The credentials of a thread, as its user namespace sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Real, effective and saved user id.
    pub users: [u32; 3],
    /// Real, effective and saved group id.
    pub groups: [u32; 3],
    /// Supplementary groups.
    pub supplementary: Vec<u32>,
    /// Capability sets.
    pub capabilities: CapabilitySets,
    /// `SECBIT_*`.
    pub secure_bits: u32,
    /// Execution grants nothing.
    pub no_new_privileges: bool,
}

/// Questions about credentials in a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialsQuery {
    identities: Output,
    supplementary: Output,
    count: CallIndex,
    secure_bits: CallIndex,
}

impl CredentialsQuery {
    pub(crate) fn ask(batch: &mut Batch) -> Self {
        let identities = batch.output(24);
        let at = |index: u64| identities.address + index * 4;
        batch.call(libc::SYS_getresuid, &[at(0), at(1), at(2)]);
        batch.call(libc::SYS_getresgid, &[at(3), at(4), at(5)]);
        let supplementary = batch.output(GROUPS_MAX * 4);
        let count = batch.attempt(libc::SYS_getgroups, &[GROUPS_MAX as u64, supplementary.address]);
        let secure_bits = batch.call(libc::SYS_prctl, &[libc::PR_GET_SECUREBITS as u64]);
        Self { identities, supplementary, count, secure_bits }
    }

    /// `None` if there are too many groups.
    pub(crate) fn read(&self, results: &BatchResults, status: &Status) -> Option<Credentials> {
        let identity = |index: usize| u32_at(results.output(self.identities), index * 4);
        let count = usize::try_from(results.result(self.count).ok()?).ok()?;
        let groups = results.output(self.supplementary);
        Some(Credentials {
            users: [identity(0), identity(1), identity(2)],
            groups: [identity(3), identity(4), identity(5)],
            supplementary: (0..count).map(|index| u32_at(groups, index * 4)).collect(),
            capabilities: status.capabilities,
            secure_bits: results.result(self.secure_bits).ok().and_then(|bits| u32::try_from(bits).ok())?,
            no_new_privileges: status.no_new_privileges,
        })
    }
}

/// Gives a thread that still has all capabilities of its user namespace these credentials.
pub(crate) fn restore(batch: &mut Batch, credentials: &Credentials) {
    let capabilities = &credentials.capabilities;
    for capability in 0..CAPABILITIES {
        if capabilities.bounding & (1 << capability) == 0 {
            batch.attempt(libc::SYS_prctl, &[libc::PR_CAPBSET_DROP as u64, u64::from(capability)]);
        }
    }
    let groups = batch.data(&bytes_of_u32(&credentials.supplementary));
    batch.call(libc::SYS_setgroups, &[credentials.supplementary.len() as u64, groups]);
    let [real, effective, saved] = credentials.groups.map(u64::from);
    batch.call(libc::SYS_setresgid, &[real, effective, saved]);
    batch.call(libc::SYS_prctl, &[libc::PR_SET_SECUREBITS as u64, KEEP_CAPABILITIES]);
    let [real, effective, saved] = credentials.users.map(u64::from);
    batch.call(libc::SYS_setresuid, &[real, effective, saved]);
    // The effective set is empty after leaving user 0, and secure bits need a capability.
    set_capabilities(
        batch,
        capabilities.permitted | SETPCAP,
        capabilities.permitted | SETPCAP,
        capabilities.inheritable,
    );
    for capability in (0..CAPABILITIES).filter(|capability| capabilities.ambient & (1 << capability) != 0) {
        let raise = libc::PR_CAP_AMBIENT_RAISE as u64;
        batch.attempt(libc::SYS_prctl, &[libc::PR_CAP_AMBIENT as u64, raise, u64::from(capability)]);
    }
    batch.call(libc::SYS_prctl, &[libc::PR_SET_SECUREBITS as u64, u64::from(credentials.secure_bits)]);
    set_capabilities(batch, capabilities.permitted, capabilities.effective, capabilities.inheritable);
    if credentials.no_new_privileges {
        batch.call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1]);
    }
}

/// `CAP_SETPCAP`, needed to set secure bits.
const SETPCAP: u64 = 1 << 8;

fn set_capabilities(batch: &mut Batch, permitted: u64, effective: u64, inheritable: u64) {
    let header = batch.data(&bytes_of_u32(&[CAPABILITY_VERSION, 0]));
    let half = |set: u64, high: bool| (if high { set >> 32 } else { set & u64::from(u32::MAX) }) as u32;
    let record: Vec<u32> = [false, true]
        .iter()
        .flat_map(|high| [half(effective, *high), half(permitted, *high), half(inheritable, *high)])
        .collect();
    let data = batch.data(&bytes_of_u32(&record));
    batch.call(libc::SYS_capset, &[header, data]);
}

/// Makes a thread that has just entered a user namespace its user 0 with all capabilities.
pub(crate) fn become_namespace_root(batch: &mut Batch) {
    batch.call(libc::SYS_setgroups, &[0, 0]);
    batch.call(libc::SYS_setresgid, &[0, 0, 0]);
    batch.call(libc::SYS_setresuid, &[0, 0, 0]);
    batch.attempt(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, signed(0)]);
}
