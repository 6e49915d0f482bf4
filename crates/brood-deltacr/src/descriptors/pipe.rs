//! Pipes between processes of the tree, with what waits in them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};

use crate::address_space::ObjectIdentity;

/// One end of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipeEnd {
    /// The pipe.
    pub pipe: ObjectIdentity,
}

/// A pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeImage {
    /// What waits to be read.
    pub content: Vec<u8>,
    /// Size of its buffer in bytes.
    pub capacity: usize,
}

/// A pipe made again, in the engine until all holders have their ends.
#[derive(Debug)]
pub(crate) struct MadePipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl PipeImage {
    /// Copies what waits in a pipe, leaving it there. `reader` is the process' own end.
    pub(crate) fn capture(reader: BorrowedFd<'_>) -> Result<Self, Errno> {
        let capacity = fcntl_getpipe_size(reader)?;
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The copy takes as many buffers as the original, however little each holds.
        let _size = fcntl_setpipe_size(&into, capacity)?;
        let copied = match tee(reader, &into, capacity, SpliceFlags::NONBLOCK) {
            Ok(copied) => copied,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error),
        };
        let mut content = vec![0; copied];
        let mut filled = 0;
        while filled < copied {
            filled += rustix::io::read(&out, &mut content[filled..])?;
        }
        Ok(Self { content, capacity })
    }

    /// Makes the pipe again with its content.
    pub(crate) fn make(&self) -> Result<MadePipe, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let _size = fcntl_setpipe_size(&writer, self.capacity)?;
        write_all(writer.as_fd(), &self.content)?;
        Ok(MadePipe { reader, writer })
    }
}

fn write_all(writer: BorrowedFd<'_>, mut content: &[u8]) -> Result<(), Errno> {
    while !content.is_empty() {
        let written = rustix::io::write(writer, content)?;
        content = &content[written..];
    }
    Ok(())
}

/// Whether nobody at all holds the other side of a pipe end.
pub(crate) fn other_side_is_closed(end: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut descriptor = [PollFd::new(&end, PollFlags::empty())];
    poll(&mut descriptor, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(descriptor[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

impl PipeEnd {
    pub(crate) fn reopen(self, pipes: &BTreeMap<ObjectIdentity, MadePipe>, flags: u32) -> Result<OwnedFd, Errno> {
        let pipe = pipes.get(&self.pipe).ok_or(Errno::NOENT)?;
        let access = OFlags::from_bits_retain(flags) & OFlags::RWMODE;
        let end = if access == OFlags::RDONLY { &pipe.reader } else { &pipe.writer };
        // Opening anew gives an open file of its own, with its own flags, on the same pipe.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(end));
        rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, rustix::fs::Mode::empty())
            .and_then(|file| rustix::fs::fcntl_setfl(&file, OFlags::empty()).map(|()| file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_copied_and_stays_and_comes_back() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&writer, b"first").unwrap();
        rustix::io::write(&writer, b" second").unwrap();
        let image = PipeImage::capture(reader.as_fd()).unwrap();
        assert_eq!(image.content, b"first second");
        let mut buffer = [0; 64];
        let count = rustix::io::read(&reader, &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"first second");
        let made = image.make().unwrap();
        let count = rustix::io::read(&made.reader, &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"first second");
    }

    #[test]
    fn a_closed_other_side_is_noticed() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        assert!(!other_side_is_closed(reader.as_fd()).unwrap());
        assert!(!other_side_is_closed(writer.as_fd()).unwrap());
        drop(reader);
        assert!(other_side_is_closed(writer.as_fd()).unwrap());
    }
}
