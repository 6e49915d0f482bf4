//! Records of POSIX extended headers: `LENGTH KEY=VALUE\n`.

use super::Timestamp;

/// Prefix of the records that hold extended attributes.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

/// The records of one extended header, in order. A later record of the same key wins.
#[derive(Debug, Clone, Default)]
pub(super) struct PaxRecords(Vec<(Vec<u8>, Vec<u8>)>);

impl PaxRecords {
    /// Splits by the stated lengths, because values (attributes above all) may hold line breaks and zero bytes.
    /// `None` if a length does not fit.
    pub(super) fn parse(mut data: &[u8]) -> Option<Self> {
        let mut records = Vec::new();
        while !data.is_empty() {
            let space = data.iter().take(20).position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
            let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            data = &data[length..];
        }
        Some(Self(records))
    }

    pub(super) fn merge(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// The value of `key`. An empty value means "as if absent".
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|(name, _)| name == key.as_bytes());
        found.map(|(_, value)| value.as_slice()).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    /// A decimal number of seconds, possibly negative, with up to nine digits behind the point counted.
    pub(super) fn timestamp(&self, key: &str) -> Option<Timestamp> {
        let text = std::str::from_utf8(self.get(key)?).ok()?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let mut seconds: i64 = whole.parse().ok()?;
        let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
        let mut nanoseconds: u32 = digits.parse().ok()?;
        // -1.25 is a quarter second before -1: the fraction counts away from zero in text, upwards in the kernel.
        if whole.starts_with('-') && nanoseconds > 0 {
            seconds = seconds.checked_sub(1)?;
            nanoseconds = 1_000_000_000 - nanoseconds;
        }
        Some(Timestamp { seconds, nanoseconds })
    }

    pub(super) fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = |(key, value): &(Vec<u8>, Vec<u8>)| Some((key.strip_prefix(XATTR_PREFIX)?.to_vec(), value.clone()));
        self.0.iter().filter_map(named).collect()
    }

    /// All records in order, for keys that occur repeatedly.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        super::super::writer::push_record(&mut out, key.as_bytes(), value);
        out
    }

    #[test]
    fn values_may_hold_line_breaks_and_zero_bytes() {
        let mut data = record("SCHILY.xattr.user.x", b"a\nb\0=c\n");
        data.extend(record("path", b"first"));
        data.extend(record("path", b"second"));
        let records = PaxRecords::parse(&data).unwrap();
        assert_eq!(records.xattrs(), [(b"user.x".to_vec(), b"a\nb\0=c\n".to_vec())]);
        assert_eq!(records.get("path"), Some(&b"second"[..]));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for data in
            [&b"5 a=b"[..], b"99 a=b\n", b"0 a=b\n", b"3 a=b\n", b"x a=b\n", b"6 ab\n", b"18446744073709551615 a=b\n"]
        {
            assert!(PaxRecords::parse(data).is_none(), "{data:?} was accepted");
        }
    }

    #[test]
    fn timestamps_before_1970_count_upwards() {
        let at = |text: &str| PaxRecords::parse(&record("mtime", text.as_bytes())).unwrap().timestamp("mtime");
        assert_eq!(at("12.5"), Some(Timestamp { seconds: 12, nanoseconds: 500_000_000 }));
        assert_eq!(at("-1.25"), Some(Timestamp { seconds: -2, nanoseconds: 750_000_000 }));
        assert_eq!(at("7.1234567899"), Some(Timestamp { seconds: 7, nanoseconds: 123_456_789 }));
        assert_eq!(at("nonsense"), None);
    }
}
