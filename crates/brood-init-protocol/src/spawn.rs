//! The request to start a tool call.

use crate::wire::{Reader, Writer};

/// Most supplementary groups of a tool call.
pub const GROUPS_MAX: usize = 32;

/// Body of [`Kind::Spawn`](crate::Kind::Spawn), without its texts.
///
/// Behind it come, each ended by a zero byte: the working directory, the list of directories to
/// look the command up in (as in `PATH`; empty when the command holds a slash), the arguments
/// (the first is the command) and the environment. Descriptor 0 is the call's control group;
/// without a terminal, descriptors 1 to 3 are its standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spawn {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Supplementary groups; the first `group_count` count.
    pub groups: [u32; GROUPS_MAX],
    /// How many supplementary groups there are.
    pub group_count: u32,
    /// File mode creation mask.
    pub umask: u32,
    /// A pseudo-terminal of this size, columns and rows, instead of passed streams.
    pub terminal: Option<(u16, u16)>,
    /// Number of arguments, at least one.
    pub argument_count: u32,
    /// Number of environment entries.
    pub environment_count: u32,
}

impl Spawn {
    /// Writes the fixed part; none when the buffer is too small.
    pub fn encode(&self, writer: &mut Writer<'_>) -> Option<()> {
        writer.u32(self.uid)?;
        writer.u32(self.gid)?;
        writer.u32(self.umask)?;
        writer.u32(u32::from(self.terminal.is_some()))?;
        let (columns, rows) = self.terminal.unwrap_or((0, 0));
        writer.u32(u32::from(columns) << 16 | u32::from(rows))?;
        writer.u32(self.argument_count)?;
        writer.u32(self.environment_count)?;
        writer.u32(self.group_count)?;
        for group in self.groups.get(..self.group_count as usize)? {
            writer.u32(*group)?;
        }
        Some(())
    }

    /// Reads the fixed part; the reader stands at the working directory then. None when it is
    /// malformed or a count is out of bounds.
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let uid = reader.u32()?;
        let gid = reader.u32()?;
        let umask = reader.u32()?;
        let has_terminal = reader.u32()? == 1;
        let size = reader.u32()?;
        let argument_count = reader.u32()?;
        let environment_count = reader.u32()?;
        let group_count = reader.u32()?;
        let mut groups = [0; GROUPS_MAX];
        for group in groups.get_mut(..group_count as usize)? {
            *group = reader.u32()?;
        }
        let terminal = has_terminal.then_some(((size >> 16) as u16, size as u16));
        let spawn = Self { uid, gid, groups, group_count, umask, terminal, argument_count, environment_count };
        (argument_count > 0).then_some(spawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_too_many_groups() {
        let mut groups = [0; GROUPS_MAX];
        groups[0] = 27;
        let spawn = Spawn {
            uid: 1000,
            gid: 1000,
            groups,
            group_count: 1,
            umask: 0o22,
            terminal: Some((80, 24)),
            argument_count: 2,
            environment_count: 0,
        };
        let mut buffer = [0; 512];
        let mut writer = Writer::new(&mut buffer);
        spawn.encode(&mut writer).unwrap();
        let length = writer.written();
        assert_eq!(Spawn::decode(&mut Reader::new(&buffer[..length])), Some(spawn));
        buffer[28] = 33;
        assert_eq!(Spawn::decode(&mut Reader::new(&buffer)), None);
    }
}
