//! Reading, decompressing and hashing in one thread while the files are written in another.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Bytes in one buffer: large against the cost of handing it over.
const BUFFER_BYTES: usize = 256 << 10;
/// Buffers in flight: one being filled, one being emptied, and some to even out the pace.
const BUFFERS: usize = 6;

/// Runs `produce` in a thread, with a place to put its bytes, and `consume` in this one, with a reader of those bytes.
///
/// Whichever fails first stops the other. The reader fails where the producer failed, with the same error.
pub(crate) fn run<T, P: Send>(
    produce: impl FnOnce(&mut BufferSink) -> io::Result<P> + Send,
    consume: impl FnOnce(BufferReader) -> T,
) -> (Option<P>, T) {
    let (full_sender, full_receiver) = sync_channel(BUFFERS);
    let (empty_sender, empty_receiver) = channel();
    let mut sink = BufferSink { full: full_sender, empty: empty_receiver };
    let reader = BufferReader { full: full_receiver, empty: empty_sender, current: Vec::new(), position: 0 };
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || match produce(&mut sink) {
            Ok(product) => Some(product),
            Err(error) => {
                // Nobody listens any more if the consumer failed first: then its error counts.
                let _unheard = sink.full.send(Err(error)).is_err();
                None
            }
        });
        let consumed = consume(reader);
        let produced = producer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (produced, consumed)
    })
}

/// Where the producer puts its bytes.
pub(crate) struct BufferSink {
    full: SyncSender<io::Result<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
}

impl BufferSink {
    /// Passes all bytes of `source` on.
    pub(crate) fn pass(&mut self, source: &mut impl Read) -> io::Result<()> {
        loop {
            let mut buffer = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BUFFER_BYTES));
            buffer.clear();
            source.by_ref().take(BUFFER_BYTES as u64).read_to_end(&mut buffer)?;
            if buffer.is_empty() {
                return Ok(());
            }
            if self.full.send(Ok(buffer)).is_err() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

/// Reads what the producer put in.
pub(crate) struct BufferReader {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
    current: Vec<u8>,
    position: usize,
}

impl Read for BufferReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.position == self.current.len() {
            let Ok(next) = self.full.recv() else { return Ok(0) };
            let used = std::mem::replace(&mut self.current, next?);
            self.position = 0;
            // The producer may be done and gone.
            let _unwanted = self.empty.send(used).is_err();
        }
        let left = &self.current[self.position..];
        let count = left.len().min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        self.position += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_passes_in_order() {
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES + 17).map(|index| (index * 7 % 251) as u8).collect();
        let (produced, consumed) = run(
            |sink| sink.pass(&mut &bytes[..]).map(|()| "done"),
            |mut reader| {
                let mut out = Vec::new();
                reader.read_to_end(&mut out).map(|_| out)
            },
        );
        assert_eq!(produced, Some("done"));
        assert!(consumed.unwrap() == bytes);
    }

    #[test]
    fn either_side_may_fail() {
        let (produced, consumed) = run(
            |_| Err::<(), _>(io::Error::other("broken source")),
            |mut reader| reader.read(&mut [0]).map_err(|error| error.to_string()),
        );
        assert_eq!((produced, consumed), (None, Err("broken source".to_owned())));
        // A consumer that goes away stops an endless producer.
        let (produced, ()) = run(|sink| sink.pass(&mut io::repeat(1)), drop);
        assert_eq!(produced, None);
    }
}
