//! Reading and writing of little-endian fields in a caller's buffer, with every bound checked.

/// Reads fields one after the other; every method gives none past the end.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next two bytes as a number.
    pub fn u16(&mut self) -> Option<u16> {
        self.take(2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes)
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
    }

    /// The next eight bytes as a number.
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
    }

    /// A length of four bytes and that many bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// A text up to its zero byte, the zero included.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        self.take(end + 1)
    }
}

/// Writes fields one after the other; every method gives none when the buffer is full.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    written: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the beginning of `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, written: 0 }
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.written
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.written.checked_add(bytes.len())?;
        self.buffer.get_mut(self.written..end)?.copy_from_slice(bytes);
        self.written = end;
        Some(())
    }

    /// A number of four bytes.
    pub fn u32(&mut self, value: u32) -> Option<()> {
        self.put(&value.to_le_bytes())
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, value: u64) -> Option<()> {
        self.put(&value.to_le_bytes())
    }

    /// A length of four bytes and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.u32(u32::try_from(bytes.len()).ok()?)?;
        self.put(bytes)
    }

    /// A text and a zero byte; none when the text holds one.
    pub fn text(&mut self, text: &[u8]) -> Option<()> {
        let room = self.buffer.len() - self.written;
        if text.contains(&0) || room <= text.len() {
            return None;
        }
        self.put(text)?;
        self.put(&[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_past_the_end() {
        let mut reader = Reader::new(&[1, 0, 5, 0, 0, 0, b'a']);
        assert_eq!(reader.u16(), Some(1));
        assert_eq!(reader.bytes(), None);
        assert_eq!(Reader::new(b"no end").text(), None);
        assert_eq!(Reader::new(b"a\0b").text(), Some(&b"a\0"[..]));
    }

    #[test]
    fn nothing_is_written_past_the_end() {
        let mut buffer = [0; 6];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(writer.u32(7), Some(()));
        assert_eq!(writer.u32(8), None);
        assert_eq!(writer.text(b"ab"), None);
        assert_eq!(writer.text(b"a\0"), None);
        assert_eq!(writer.text(b"c"), Some(()));
        assert_eq!(writer.written(), 6);
    }
}
