//! Little-endian numbers in kernel records: reading and building them.

/// The 32-bit number at an offset; zero beyond the end.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The 64-bit number at an offset; zero beyond the end.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..offset + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// 64-bit numbers as bytes.
pub(crate) fn bytes_of_u64(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// 32-bit numbers as bytes.
pub(crate) fn bytes_of_u32(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A signed number of the kernel's interface as an argument of a call.
pub(crate) fn signed(number: i64) -> u64 {
    number.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_ends_are_zero() {
        let bytes = bytes_of_u64(&[7, 9]);
        assert_eq!((u64_at(&bytes, 8), u32_at(&bytes, 0), u64_at(&bytes, 9)), (9, 7, 0));
        assert_eq!(bytes_of_u32(&[1, 2]).len(), 8);
        assert_eq!(signed(-1), u64::MAX);
    }
}
