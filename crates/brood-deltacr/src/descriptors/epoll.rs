//! Sets of watched descriptors (epoll). The set is made by the engine, its entries are added
//! in the process: the kernel knows them by the process' own descriptor numbers.

use brood_kernel::injection::Batch;

use crate::proc_files::DescriptorInformation;

/// A watched descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedDescriptor {
    /// Its number when it was added.
    pub descriptor: i32,
    /// `EPOLL*`.
    pub events: u32,
    /// What the program wants back.
    pub data: u64,
}

/// A set of watched descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpollSet {
    /// Its entries.
    pub watched: Vec<WatchedDescriptor>,
}

impl EpollSet {
    pub(crate) fn capture(information: &DescriptorInformation) -> Option<Self> {
        let entry = |value: &str| {
            let mut words = value.split_ascii_whitespace();
            let descriptor = words.next()?.parse().ok()?;
            let mut hexadecimal = |key: &str| {
                let rest: Vec<&str> = words.by_ref().take(2).collect();
                let [name, value] = rest.as_slice() else { return None };
                (*name == key).then(|| u64::from_str_radix(value, 16).ok())?
            };
            let events = u32::try_from(hexadecimal("events:")?).ok()?;
            Some(WatchedDescriptor { descriptor, events, data: hexadecimal("data:")? })
        };
        let lines = information.lines.iter().filter(|(key, _)| key == "tfd");
        Some(Self { watched: lines.map(|(_, value)| entry(value)).collect::<Option<_>>()? })
    }

    /// Adds the entries to the set at `descriptor` of the process that the batch runs in.
    pub(crate) fn fill(&self, batch: &mut Batch, descriptor: i32) {
        let number = |descriptor: i32| u64::from(descriptor.unsigned_abs());
        for watched in &self.watched {
            let mut record = watched.events.to_le_bytes().to_vec();
            record.extend(watched.data.to_le_bytes());
            let record = batch.data(&record);
            let add = libc::EPOLL_CTL_ADD as u64;
            batch.call(libc::SYS_epoll_ctl, &[number(descriptor), add, number(watched.descriptor), record]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_understood() {
        let line = "       17 events:       19 data:  ffff00000011  pos:0 ino:10b7 sdev:9";
        let information =
            DescriptorInformation { position: 0, flags: 2, lines: vec![("tfd".into(), line.trim().into())] };
        let set = EpollSet::capture(&information).unwrap();
        assert_eq!(set.watched, [WatchedDescriptor { descriptor: 17, events: 0x19, data: 0xffff_0000_0011 }]);
        let broken = DescriptorInformation { lines: vec![("tfd".into(), "x".into())], ..information };
        assert_eq!(EpollSet::capture(&broken), None);
    }
}
