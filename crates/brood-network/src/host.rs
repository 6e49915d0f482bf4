//! What the host itself must be set to: forwarding.

use std::fs;
use std::io;
use std::path::Path;

const FORWARD_V4: &str = "/proc/sys/net/ipv4/ip_forward";
const FORWARD_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const ROUTER_ADVERTISEMENTS: &str = "/proc/sys/net/ipv6/conf";

/// A setting of the host that could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {path}")]
pub struct HostSettingError {
    action: &'static str,
    path: String,
    source: io::Error,
}

/// What was switched on because sandboxes need it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SwitchedOn {
    pub(crate) forwarding_v4: bool,
    pub(crate) forwarding_v6: bool,
}

impl SwitchedOn {
    /// Switches forwarding on where it is off.
    pub(crate) fn forwarding(with_v6: bool) -> Result<Self, HostSettingError> {
        let forwarding_v4 = switch_on(FORWARD_V4)?;
        let forwarding_v6 = with_v6 && {
            keep_router_advertisements()?;
            switch_on(FORWARD_V6)?
        };
        Ok(Self { forwarding_v4, forwarding_v6 })
    }

    /// Both, where either is.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            forwarding_v4: self.forwarding_v4 || other.forwarding_v4,
            forwarding_v6: self.forwarding_v6 || other.forwarding_v6,
        }
    }

    /// Switches off what was switched on.
    pub(crate) fn undo(self) -> Result<(), HostSettingError> {
        if self.forwarding_v4 {
            write(FORWARD_V4, "0")?;
        }
        if self.forwarding_v6 {
            write(FORWARD_V6, "0")?;
        }
        Ok(())
    }
}

/// A host that forwards ignores router advertisements, and with them loses its own default route, unless told otherwise.
fn keep_router_advertisements() -> Result<(), HostSettingError> {
    let error = |source| HostSettingError { action: "list", path: ROUTER_ADVERTISEMENTS.to_owned(), source };
    for entry in fs::read_dir(ROUTER_ADVERTISEMENTS).map_err(error)? {
        let path = entry.map_err(error)?.path().join("accept_ra");
        // An interface may go away meanwhile.
        if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1") {
            write(&path.to_string_lossy(), "2")?;
        }
    }
    Ok(())
}

/// Whether it was off.
fn switch_on(path: &str) -> Result<bool, HostSettingError> {
    let value = fs::read_to_string(path).map_err(|source| HostSettingError {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let was_off = value.trim() == "0";
    if was_off {
        write(path, "1")?;
    }
    Ok(was_off)
}

fn write(path: &str, value: &str) -> Result<(), HostSettingError> {
    fs::write(Path::new(path), value).map_err(|source| HostSettingError {
        action: "write",
        path: path.to_owned(),
        source,
    })
}
