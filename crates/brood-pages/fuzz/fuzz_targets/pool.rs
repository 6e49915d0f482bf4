//! Any sequence of operations on a pool whose entries are known by their content.
//!
//! `cargo fuzz run -s none pool` in `crates/brood-pages`.

#![no_main]

use brood_pages::EntryId;
use brood_pages::pool::{CohortId, MemoryRegion, Pool};
use libfuzzer_sys::fuzz_target;

/// A frame of the plain Zstandard codec (5); the pool doesn't decode it.
fn frame(length: usize, value: u8) -> Vec<u8> {
    let head = length as u16 | 5 << 12;
    let mut bytes = head.to_le_bytes().to_vec();
    bytes.extend(std::iter::repeat_n(value, length));
    bytes
}

fuzz_target!(|steps: &[u8]| {
    let mut pool = Pool::new(MemoryRegion::new(), 1 << 20);
    let mut held: Vec<(EntryId, u8, usize)> = Vec::new();
    for step in steps.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([step[2], step[3]]));
        match step[0] % 8 {
            0..=3 => {
                let length = at % 4000 + 1;
                if let Ok(id) = pool.store(CohortId(u64::from(step[0] % 2)), &frame(length, step[1])) {
                    held.push((id, step[1], length));
                }
            }
            4 | 5 if !held.is_empty() => {
                let (id, ..) = held.swap_remove(at % held.len());
                pool.release(id).expect("held");
            }
            6 => {
                // Without room to move into, moving fails and changes nothing.
                let moved = pool.compact(CohortId(u64::from(step[1] % 2)), at % 8);
                assert!(moved.is_ok() || pool.usage().resident_bytes > (1 << 20) - (1 << 16));
            }
            _ => {
                pool.trim().expect("memory regions don't fail");
            }
        }
    }
    let mut buffer = Vec::new();
    for (id, value, length) in held {
        let content = pool.read(id, &mut buffer).expect("held").content;
        assert!(content.len() == length && content.iter().all(|byte| *byte == value));
        pool.release(id).expect("held");
    }
    pool.trim().expect("memory regions don't fail");
    assert_eq!(pool.usage(), Default::default());
});
