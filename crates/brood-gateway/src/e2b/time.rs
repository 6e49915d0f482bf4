//! Times as the clients write them: RFC 3339 in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: i64 = 86_400;

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-30T22:26:47.123Z`.
pub(super) fn rfc3339(time_ms: u64) -> String {
    let time_ms = i64::try_from(time_ms).unwrap_or(i64::MAX);
    let (seconds, millis) = (time_ms.div_euclid(1000), time_ms.rem_euclid(1000));
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Reads such a time, with any offset and number of decimals; milliseconds since 1970.
pub(super) fn parse_rfc3339(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok().filter(|n| *n >= 0);
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let fits = separators.iter().all(|(at, byte)| text.as_bytes().get(*at) == Some(byte));
    if !fits || !matches!(text.as_bytes().get(10)?, b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    if !in_range {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut millis = 0;
    if let Some(decimals) = rest.strip_prefix('.') {
        let end = decimals.find(|c: char| !c.is_ascii_digit()).unwrap_or(decimals.len());
        let mut padded: String = decimals[..end].chars().take(3).collect();
        while padded.len() < 3 {
            padded.push('0');
        }
        millis = padded.parse::<i64>().ok()?;
        rest = &decimals[end..];
    }
    let days = days_from_civil(year, month, day);
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset_seconds(rest)?;
    u64::try_from(seconds * 1000 + millis).ok()
}

fn offset_seconds(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let number = |text: &str| text.parse::<i64>().ok().filter(|n| (0..60).contains(n));
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

/// Year, month and day of a day counted from 1970 (algorithm of H. Hinnant, `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(1_709_164_800_000), "2024-02-29T00:00:00.000Z");
        for time_ms in [0, 951_782_399_999, 1_709_164_800_000, 1_796_077_607_123, 4_102_444_799_001] {
            assert_eq!(parse_rfc3339(&rfc3339(time_ms)), Some(time_ms));
        }
        assert_eq!(parse_rfc3339("1970-01-01T01:00:00.5+01:00"), Some(500));
        assert_eq!(parse_rfc3339("2026-11-30T22:26:47.123456+00:00"), parse_rfc3339("2026-11-30T22:26:47.123Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-11-30",
            "2026-13-01T00:00:00Z",
            "2026-11-30T25:00:00Z",
            "2026-11-30T22:26:47",
            "2026-11-30T22:26:47é",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
