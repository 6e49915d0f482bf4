//! Who pays for what in a pool of shared entries.

use std::collections::HashMap;

use super::{PageTable, Pool, PoolError, Region};

/// Divides the bytes of all frames that the tables name among the tables, exactly: an entry that is named `n` times counts
/// an `n`-th for each naming, with rounding settled so that the shares add up to the bytes of the distinct frames.
/// Give it all tables of a cohort (sandboxes' and checkpoints') at once. Reference pages that only other
/// entries name belong to the cohort as a whole and are not among the shares.
///
/// # Errors
/// [`PoolError`] of [`Pool::read`].
pub fn shares<R: Region>(pool: &Pool<R>, tables: &[&PageTable]) -> Result<Vec<u64>, PoolError> {
    let mut namings: HashMap<u32, (u64, u64)> = HashMap::new();
    for (_, entry) in tables.iter().flat_map(|table| table.iter()) {
        namings.entry(pool.present_name(entry)?.0).or_default().0 += 1;
    }
    let mut shares = Vec::with_capacity(tables.len());
    for table in tables {
        let mut share = 0;
        for (_, entry) in table.iter() {
            let name = pool.present_name(entry)?;
            let (count, given) = namings.get_mut(&name.0).expect("counted above");
            let bytes = pool.frame_bytes(name)? as u64;
            share += (*given + 1) * bytes / *count - *given * bytes / *count;
            *given += 1;
        }
        shares.push(share);
    }
    Ok(shares)
}
