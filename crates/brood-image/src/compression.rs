//! Decompression of layer archives, recognised by content and not by name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;

use crate::options::Limits;
use crate::progress::Progress;
use crate::unpack::UnpackError;

/// Bytes read from the compressed side at once.
const BUFFER_BYTES: usize = 128 << 10;
/// Memory that an xz dictionary may take, in KiB. `xz -9` needs 64 MiB; the format allows 4 GiB.
const XZ_MEMORY_KIB_MAX: u32 = 256 << 10;

/// A reader of the plain bytes of `R`, whatever their compression.
pub(crate) enum Decompressor<R: Read> {
    Plain(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
    Xz(Box<XzReader<BufReader<R>>>),
}

impl<R: Read> Decompressor<R> {
    /// Looks at the first bytes and chooses the decoder.
    pub(crate) fn new(source: R) -> io::Result<Self> {
        let mut source = BufReader::with_capacity(BUFFER_BYTES, source);
        let start = source.fill_buf()?;
        Ok(match start {
            [0x1f, 0x8b, ..] => Self::Gzip(Box::new(MultiGzDecoder::new(source))),
            // An ordinary frame, or a skippable one as seekable variants put in front.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Self::Zstd(Box::new(zstd::Decoder::with_buffer(source)?))
            }
            [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                Self::Xz(Box::new(XzReader::new_mem_limit(source, true, XZ_MEMORY_KIB_MAX)))
            }
            [b'B', b'Z', b'h', ..] => {
                let text = "the archive is compressed by bzip2, which is not supported; compress it by zstd or gzip";
                return Err(io::Error::other(UnpackError::Corrupt(text.to_owned())));
            }
            _ => Self::Plain(source),
        })
    }

    pub(crate) fn format(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain",
            Self::Gzip(_) => "gzip",
            Self::Zstd(_) => "zstd",
            Self::Xz(_) => "xz",
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// The compressed side itself, of which some is buffered.
    pub(crate) fn source_mut(&mut self) -> &mut R {
        match self {
            Self::Plain(source) => source.get_mut(),
            Self::Gzip(decoder) => decoder.get_mut().get_mut(),
            Self::Zstd(decoder) => decoder.get_mut().get_mut(),
            Self::Xz(decoder) => decoder.inner_mut().get_mut(),
        }
    }

    /// The compressed side, with what is buffered of it.
    pub(crate) fn into_inner(self) -> BufReader<R> {
        match self {
            Self::Plain(source) => source,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
            Self::Xz(decoder) => decoder.into_inner(),
        }
    }
}

impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let format = self.format();
        let result = match self {
            Self::Plain(source) => return source.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
        };
        result.map_err(|error| name_format(format, error))
    }
}

/// Errors of the decoder get the format's name; those of the reader below it pass through as they are.
fn name_format(format: &'static str, error: io::Error) -> io::Error {
    let is_ours = error.get_ref().is_some_and(|inner| inner.is::<UnpackError>());
    if is_ours || error.kind() == io::ErrorKind::Interrupted {
        return error;
    }
    io::Error::other(UnpackError::Compression { format, source: error })
}

/// Stops an archive that grows beyond its limits while it is decompressed, and a caller's cancellation.
pub(crate) struct Guard<'a, R> {
    inner: R,
    limits: &'a Limits,
    progress: &'a dyn Progress,
    /// Size of the compressed side, if it is known.
    compressed_bytes: Option<u64>,
    passed: u64,
}

impl<'a, R> Guard<'a, R> {
    pub(crate) fn new(inner: R, limits: &'a Limits, progress: &'a dyn Progress, compressed_bytes: Option<u64>) -> Self {
        Self { inner, limits, progress, compressed_bytes, passed: 0 }
    }

    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    fn check(&self) -> Result<(), UnpackError> {
        if self.progress.is_cancelled() {
            return Err(UnpackError::Cancelled);
        }
        if self.passed > self.limits.layer_bytes_max {
            return Err(UnpackError::Limit { what: "uncompressed bytes", limit: self.limits.layer_bytes_max });
        }
        let is_bomb = self.compressed_bytes.is_some_and(|compressed| {
            self.passed > Limits::RATIO_GRACE_BYTES && self.passed / compressed.max(1) > self.limits.ratio_max
        });
        if is_bomb {
            return Err(UnpackError::Limit { what: "times its compressed size", limit: self.limits.ratio_max });
        }
        Ok(())
    }
}

impl<R: Read> Read for Guard<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.passed += count as u64;
        self.check().map_err(io::Error::other)?;
        Ok(count)
    }
}
