//! `brood cp`: files in and out as tar streams, with the rules of `docker cp`.
//!
//! What comes out of a sandbox is hostile: it is unpacked by [`unpack`], which cannot be led out of
//! its destination.

mod pack;
mod unpack;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use brood_api::error::ErrorCode;
use brood_api::types::FileKind;
use brood_api::{ApiError, Client};
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::Context;
use crate::arguments::CopyArguments;
use crate::failure::Outcome;
use crate::parse::CopyEnd;

/// Pieces of an archive on their way between a thread and the connection.
const PIECES_AHEAD: usize = 16;
/// Bytes of one piece.
const PIECE_BYTES: usize = 256 << 10;

pub async fn run(context: &Context, arguments: CopyArguments) -> Outcome {
    let client = context.client().await?;
    match (arguments.source, arguments.destination) {
        (CopyEnd::Local(source), CopyEnd::Inside { sandbox, path }) => {
            copy_in(&client, Path::new(&source), &sandbox, &path).await?;
        }
        (CopyEnd::Stream, CopyEnd::Inside { sandbox, path }) => {
            send(&client, &sandbox, &path, |piece| io::copy(&mut io::stdin().lock(), piece).map(drop)).await?;
        }
        (CopyEnd::Inside { sandbox, path }, CopyEnd::Local(destination)) => {
            copy_out(&client, &sandbox, &path, Path::new(&destination)).await?;
        }
        (CopyEnd::Inside { sandbox, path }, CopyEnd::Stream) => {
            receive(&client, &sandbox, &path, |archive| io::copy(archive, &mut io::stdout().lock()).map(drop)).await?;
        }
        (CopyEnd::Inside { .. }, CopyEnd::Inside { .. }) => {
            bail!("one end must be on this machine; pipe between two sandboxes: brood cp A:/x - | brood cp - B:/y")
        }
        _ => bail!("one end must be inside a sandbox, written ID:/path"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy_in(client: &Client, source: &Path, sandbox: &str, path: &str) -> anyhow::Result<()> {
    let metadata = source.symlink_metadata().with_context(|| format!("cannot read {}", source.display()))?;
    // `dir/.` means the content of the directory, without the directory.
    let content_only = metadata.is_dir() && source.as_os_str().to_string_lossy().ends_with("/.");
    let target = target_inside(client, sandbox, path).await?;
    if target.is_file && metadata.is_dir() {
        bail!("{path} in {sandbox} is a file, and a directory cannot replace it");
    }
    let (directory, name) = match (target.directory, content_only) {
        (Some(directory), true) => (directory, PathBuf::new()),
        (Some(directory), false) => (directory, PathBuf::from(base_name(source)?)),
        (None, _) => split_inside(path)?,
    };
    let source = source.to_owned();
    send(client, sandbox, &directory, move |archive| pack::write(archive, &source, &name)).await
}

/// What is at the destination inside.
struct TargetInside {
    /// The directory that is there.
    directory: Option<String>,
    is_file: bool,
}

async fn target_inside(client: &Client, sandbox: &str, path: &str) -> anyhow::Result<TargetInside> {
    match client.stat(sandbox, path, true).await {
        Ok(entry) => {
            let directory = (entry.kind == FileKind::Directory).then(|| path.to_owned());
            Ok(TargetInside { is_file: directory.is_none(), directory })
        }
        Err(ApiError::Remote(body)) if body.code == ErrorCode::NotFound => {
            if path.ends_with('/') {
                bail!("{path} is no directory in {sandbox}; `brood exec {sandbox} -- mkdir -p {path}` makes it one");
            }
            let (parent, _) = split_inside(path)?;
            let entry = client.stat(sandbox, &parent, true).await?;
            if entry.kind != FileKind::Directory {
                bail!("{parent} in {sandbox} is no directory");
            }
            Ok(TargetInside { directory: None, is_file: false })
        }
        Err(error) => Err(error.into()),
    }
}

fn split_inside(path: &str) -> anyhow::Result<(String, PathBuf)> {
    let (directory, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", ""));
    if name.is_empty() || name == "." || name == ".." {
        bail!("{path} ends in no name that a file could have");
    }
    Ok((if directory.is_empty() { "/".to_owned() } else { directory.to_owned() }, name.into()))
}

fn base_name(path: &Path) -> anyhow::Result<std::ffi::OsString> {
    if let Some(name) = path.file_name() {
        return Ok(name.to_owned());
    }
    // `.` and `..` have the names of the directories that they stand for.
    let path = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    path.file_name().map(ToOwned::to_owned).with_context(|| format!("{} has no name of its own", path.display()))
}

async fn copy_out(client: &Client, sandbox: &str, path: &str, destination: &Path) -> anyhow::Result<()> {
    let content_only = path.ends_with("/.");
    let ends_in_slash = destination.as_os_str().to_string_lossy().ends_with('/');
    let (directory, name) = if destination.is_dir() {
        (destination.to_owned(), None)
    } else if ends_in_slash {
        bail!("{} is no directory; `mkdir -p` makes it one", destination.display());
    } else {
        let name = destination.file_name().with_context(|| format!("{} has no name", destination.display()))?;
        let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
        (parent.unwrap_or(Path::new(".")).to_owned(), Some(name.to_owned()))
    };
    let placement = match name {
        Some(name) => unpack::Placement::Renamed(name),
        None if content_only => unpack::Placement::ContentOnly,
        None => unpack::Placement::Named,
    };
    receive(client, sandbox, path, move |archive| unpack::read(archive, &directory, &placement)).await
}

/// Sends an archive that `write` makes in a thread of its own.
async fn send(
    client: &Client,
    sandbox: &str,
    directory: &str,
    write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
    let maker = tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { sender, piece: Vec::with_capacity(PIECE_BYTES) };
        let result = write(&mut pieces).and_then(|()| pieces.flush());
        if result.is_err() {
            // The body must break off: an archive that merely ends would count as whole.
            drop(pieces.sender.blocking_send(Err(io::ErrorKind::Interrupted.into())));
        }
        result
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    let sent = client.copy_in(sandbox, directory, StreamBody::new(stream).boxed()).await;
    match (sent, maker.await?) {
        // When the daemon refused, our end fails to write as a consequence only.
        (Err(error @ ApiError::Remote(_)), _) => Err(error.into()),
        (_, Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot read what is to be copied")
        }
        (sent, _) => Ok(sent?),
    }
}

/// Receives an archive that `read` takes in a thread of its own.
async fn receive(
    client: &Client,
    sandbox: &str,
    path: &str,
    read: impl FnOnce(&mut dyn Read) -> io::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let mut chunks = client.copy_out(sandbox, path).await?;
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
    let taker = tokio::task::spawn_blocking(move || {
        let mut arrived = Arrived { receiver, rest: Bytes::new() };
        let result = read(&mut arrived);
        if result.is_ok() {
            // What follows the end of the archive is padding, but a failure behind it counts.
            io::copy(&mut arrived, &mut io::sink())?;
        }
        result
    });
    loop {
        let piece = match chunks.next().await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => break,
            Err(error) => Err(io::Error::other(error)),
        };
        let last = piece.is_err();
        if sender.send(piece).await.is_err() || last {
            break;
        }
    }
    drop(sender);
    taker.await?.with_context(|| format!("cannot copy {path} out of {sandbox}"))
}

/// What an archive is written into.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What an archive is read from.
struct Arrived {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Arrived {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
