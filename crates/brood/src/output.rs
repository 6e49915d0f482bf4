//! How things are shown: tables for people, JSON for programs.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

/// Characters of an id that are shown in tables: unique among a host's sandboxes in practice, and
/// accepted everywhere.
pub const ID_CHARACTERS_SHOWN: usize = 12;

/// Prints a value as JSON, indented on a terminal.
///
/// # Errors
/// When standard output is gone.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if rustix::termios::isatty(&stdout) {
        serde_json::to_writer_pretty(&mut stdout, value)?;
    } else {
        serde_json::to_writer(&mut stdout, value)?;
    }
    stdout.write_all(b"\n")
}

/// Prints one line.
///
/// # Errors
/// When standard output is gone.
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Prints a table.
///
/// # Errors
/// When standard output is gone.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    if rustix::termios::isatty(io::stdout()) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    let mut stdout = io::stdout().lock();
    for row in text.lines() {
        writeln!(stdout, "{}", row.trim_end())?;
    }
    Ok(())
}

/// Text from inside a sandbox without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Bytes for people: `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A time for people, by its two largest parts: `3m 20s`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long ago that was, or how long until then.
pub fn distance(time_ms: u64) -> String {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    span(Duration::from_millis(now_ms.abs_diff(time_ms)))
}

/// The time of day in UTC, to the millisecond: `2026-03-01T12:00:00.000Z`.
pub fn timestamp(time_ms: u64) -> String {
    let (days, day_ms) = (time_ms / 86_400_000, time_ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (day_ms / 3_600_000, day_ms / 60_000 % 60, day_ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", day_ms % 1000)
}

/// Year, month and day of a day counted from 1970, by counting years of 400-year cycles that begin
/// in March, so that the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const CYCLE_DAYS: u64 = 146_097;
    let shifted = days + DAYS_TO_1970;
    let (cycle, of_cycle) = (shifted / CYCLE_DAYS, shifted % CYCLE_DAYS);
    let year_of_cycle = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

/// The first characters of an id.
pub fn short(id: &str) -> String {
    id.chars().take(ID_CHARACTERS_SHOWN).collect()
}

/// `K=V` pairs in one cell.
pub fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(2 << 30), "2.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
        assert_eq!(span(Duration::from_millis(12)), "12ms");
        assert_eq!(span(Duration::from_secs(200)), "3m 20s");
        assert_eq!(span(Duration::from_secs(90_000)), "1d 1h");
    }

    #[test]
    fn dates() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(timestamp(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(timestamp(1_735_689_600_000), "2025-01-01T00:00:00.000Z");
    }

    #[test]
    fn terminals_are_not_steered_from_inside() {
        assert_eq!(printable("a\x1b[2Jb"), "a\u{fffd}[2Jb");
    }
}
