//! What people write on a command line, read strictly: a typing error is refused, never guessed at.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use brood_sandbox::model::{NetworkAccess, PublishedPort};

/// Units of bytes; binary, as in every other tool that limits memory.
const SIZE_UNITS: [(&str, u64); 5] = [("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)];
/// Units of time in milliseconds.
const DURATION_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Bytes: `512M`, `2G`, `1.5GiB`, `4096`. Units are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let refuse = || format!("{text:?} is no size; write bytes, or a number with K, M, G or T such as 512M");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
    scaled(number, *factor).ok_or_else(refuse)
}

/// A time: `30s`, `5m`, `1h30m`, `250ms`, `1d`. A unit is needed, and it is more than zero.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refuse = || format!("{text:?} is no duration; write a number with ms, s, m, h or d such as 30s or 1h30m");
    let mut rest = text;
    let mut total_ms = 0u64;
    let mut last_factor = u64::MAX;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(refuse)?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, factor) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
        if *factor >= last_factor {
            return Err(refuse());
        }
        last_factor = *factor;
        let part_ms = scaled(number, *factor).ok_or_else(refuse)?;
        total_ms = total_ms.checked_add(part_ms).ok_or_else(refuse)?;
        rest = tail;
    }
    if total_ms == 0 {
        return Err(refuse());
    }
    Ok(Duration::from_millis(total_ms))
}

/// A plain decimal number times a unit, whole or with a fraction that still gives whole units.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / u128::from(scale);
    whole.checked_add(u64::try_from(fraction).ok()?)
}

/// Processors: a number above zero.
pub fn cpus(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|cpus| cpus.is_finite() && *cpus > 0.0)
        .ok_or_else(|| format!("{text:?} is no number of processors; write 1, 0.5 or the like"))
}

/// `NAME=VALUE`, or `NAME` alone for the value it has here.
pub fn environment(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => {
            let value = std::env::var(text)
                .map_err(|_| format!("{text:?} is not set here; write {text}=VALUE to give it a value"))?;
            (text, value)
        }
    };
    if name.is_empty() || name.contains('\0') || value.contains('\0') {
        return Err(format!("{text:?} is no NAME=VALUE"));
    }
    Ok((name.to_owned(), value))
}

/// `NAME=VALUE` of a label.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label; write NAME=VALUE")),
    }
}

/// `[[IP:]HOST:]PORT`: a port inside, and where the host publishes it.
pub fn published_port(text: &str) -> Result<PublishedPort, String> {
    let refuse = || format!("{text:?} is no published port; write HOST:PORT, IP:HOST:PORT or PORT");
    let text = text.strip_suffix("/tcp").unwrap_or(text);
    if text.ends_with("/udp") {
        return Err("ports are published for TCP only".to_owned());
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    host_port(host, Ipv4Addr::UNSPECIFIED.into(), port).ok_or_else(refuse)
}

/// `[ADDRESS:]LOCAL:REMOTE` of a forwarded port, `REMOTE` for the same number on both sides, or `:REMOTE`.
pub fn forwarded_port(text: &str) -> Result<PublishedPort, String> {
    let refuse = || format!("{text:?} is no forwarded port; write LOCAL:REMOTE, ADDRESS:LOCAL:REMOTE or :REMOTE");
    let (local, remote) = text.rsplit_once(':').unwrap_or((text, text));
    host_port(local, Ipv4Addr::LOCALHOST.into(), remote).ok_or_else(refuse)
}

/// `[address:]port`, where an empty port leaves the choice to the kernel. An IPv6 address stands in brackets.
fn host_port(host: &str, default: IpAddr, port: &str) -> Option<PublishedPort> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let port = number(port).filter(|port| *port != 0)?;
    let (address, local) = match host.rsplit_once(':') {
        Some((address, local)) => {
            let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']'));
            (bare.unwrap_or(address).parse().ok()?, local)
        }
        None => (default, host),
    };
    let local = if local.is_empty() { 0 } else { number(local).filter(|port| *port != 0)? };
    Some(PublishedPort { host: SocketAddr::new(address, local), port })
}

/// Signals by name or number.
pub fn signal(text: &str) -> Result<u8, String> {
    const NAMES: [(&str, u8); 16] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ABRT", 6),
        ("KILL", 9),
        ("USR1", 10),
        ("SEGV", 11),
        ("USR2", 12),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
        ("CHLD", 17),
        ("CONT", 18),
        ("STOP", 19),
        ("TSTP", 20),
        ("WINCH", 28),
    ];
    let refuse = || format!("{text:?} is no signal; write a name such as TERM or a number from 1 to 64");
    if let Ok(number) = text.parse::<u8>() {
        return if (1..=64).contains(&number) { Ok(number) } else { Err(refuse()) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number).ok_or_else(refuse)
}

/// `SOURCE:DESTINATION` of a copy step.
pub fn copy_step(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once(':') {
        Some((source, destination)) if !source.is_empty() && destination.starts_with('/') => {
            Ok((source.to_owned(), destination.to_owned()))
        }
        _ => Err(format!("{text:?} is no copy; write SOURCE:DESTINATION with an absolute destination")),
    }
}

/// One end of `brood cp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEnd {
    /// A path of this machine.
    Local(String),
    /// A path inside a sandbox.
    Inside {
        /// The sandbox's id or a beginning of it.
        sandbox: String,
        /// The absolute path.
        path: String,
    },
    /// A tar archive on standard input or output.
    Stream,
}

/// `ID:PATH`, `PATH` or `-`. A path with a colon is written with a slash before it: `./a:b`.
pub fn copy_end(text: &str) -> Result<CopyEnd, String> {
    match text.split_once(':') {
        _ if text == "-" => Ok(CopyEnd::Stream),
        _ if text.is_empty() => Err("a path is empty".to_owned()),
        Some((sandbox, path)) if !sandbox.contains('/') && !sandbox.is_empty() => {
            if !path.starts_with('/') {
                return Err(format!("{path:?} in {text:?} is not absolute; write {sandbox}:/{path}"));
            }
            Ok(CopyEnd::Inside { sandbox: sandbox.to_owned(), path: path.to_owned() })
        }
        _ => Ok(CopyEnd::Local(text.to_owned())),
    }
}

/// What a sandbox may reach that no rule names.
pub fn network_access(text: &str) -> Result<NetworkAccess, String> {
    match text {
        "none" => Ok(NetworkAccess::None),
        "all" => Ok(NetworkAccess::All),
        _ => Err("use none or all".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_are_read_as_docker_does() {
        let published = |text: &str| published_port(text).map(|port| (port.host.to_string(), port.port));
        assert_eq!(published("8080:80").unwrap(), ("0.0.0.0:8080".to_owned(), 80));
        assert_eq!(published("127.0.0.1:8080:80/tcp").unwrap(), ("127.0.0.1:8080".to_owned(), 80));
        assert_eq!(published("127.0.0.1::80").unwrap(), ("127.0.0.1:0".to_owned(), 80));
        assert_eq!(published("[::1]:8080:80").unwrap(), ("[::1]:8080".to_owned(), 80));
        assert_eq!(published("80").unwrap(), ("0.0.0.0:0".to_owned(), 80));
        for wrong in ["", ":", "0", "80:0", "x:80", "8080:80/udp", "70000:1", "+1:80", "host:80:80"] {
            published(wrong).unwrap_err();
        }
    }

    #[test]
    fn forwarded_ports_are_local_unless_said_otherwise() {
        let forwarded = |text: &str| forwarded_port(text).map(|port| (port.host.to_string(), port.port));
        assert_eq!(forwarded("8080:80").unwrap(), ("127.0.0.1:8080".to_owned(), 80));
        assert_eq!(forwarded("80").unwrap(), ("127.0.0.1:80".to_owned(), 80));
        assert_eq!(forwarded(":80").unwrap(), ("127.0.0.1:0".to_owned(), 80));
        assert_eq!(forwarded("0.0.0.0:8080:80").unwrap(), ("0.0.0.0:8080".to_owned(), 80));
        forwarded("80:").unwrap_err();
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("10kb", 10 << 10),
            ("7B", 7),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "M", "-1", "1 G", "512 MB", "1e3", "1.5.2G", "0x10", "12Q", "99999999999999999999", "1G2M", "١"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in
            [("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("1d", 86_400_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0s", "30", "s", "-5s", "5 m", "1m1m", "1s1h", "5x", "1e9s", "999999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals() {
        assert_eq!(signal("TERM"), Ok(15));
        assert_eq!(signal("SIGkill"), Ok(9));
        assert_eq!(signal("34"), Ok(34));
        for text in ["0", "65", "", "SIG", "BOGUS", "-9"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ends_of_a_copy() {
        assert_eq!(copy_end("-"), Ok(CopyEnd::Stream));
        assert_eq!(copy_end("./a:b"), Ok(CopyEnd::Local("./a:b".into())));
        assert_eq!(copy_end("file"), Ok(CopyEnd::Local("file".into())));
        assert_eq!(copy_end("abc:/x"), Ok(CopyEnd::Inside { sandbox: "abc".into(), path: "/x".into() }));
        assert!(copy_end("abc:x").unwrap_err().contains("abc:/x"));
        copy_end("").unwrap_err();
    }

    #[test]
    fn pairs() {
        assert_eq!(environment("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(environment("A="), Ok(("A".into(), String::new())));
        environment("=x").unwrap_err();
        assert!(environment("BROOD_SURELY_NOT_SET").unwrap_err().contains("not set"));
        label("x").unwrap_err();
        assert_eq!(copy_step("a:b:/c"), Ok(("a:b".into(), "/c".into())));
        copy_step("a:c").unwrap_err();
    }

    #[test]
    fn processors() {
        assert_eq!(cpus("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "two"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }
}
