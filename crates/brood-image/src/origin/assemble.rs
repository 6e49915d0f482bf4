//! Unpacks the layers of an image, several at once where that helps.

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Context;
use super::manifest::{ImagePlan, LayerPlan};
use crate::digest::Digest;
use crate::layers::{ImageLayer, Promise};
use crate::progress::{Progress, ProgressItem, Stage};
use crate::unpack::UnpackError;
use crate::{ErrorKind, Image, ImageError};

/// Digits of a digest that a progress item shows.
const SHORT_DIGITS: usize = 12;

/// Where the stored bytes of layers come from.
pub(super) trait LayerBlobs: Sync {
    /// The archive of the layer number `index`, from its first byte.
    fn open(
        &self,
        index: usize,
        plan: &LayerPlan,
        progress: &dyn Progress,
    ) -> Result<Box<dyn Read + Send + '_>, ImageError>;

    /// The layer is unpacked, or could not be: its stored bytes may not be needed any more.
    fn done(&self, plan: &LayerPlan, failure: Option<ErrorKind>);
}

/// Brings all layers of `plan` into the store, `workers` at a time. The first failure stops the others.
pub(super) fn assemble(
    context: &Context<'_>,
    plan: ImagePlan,
    blobs: &dyn LayerBlobs,
    workers: usize,
) -> Result<Image, ImageError> {
    let progress = StopOnFailure { inner: context.progress, failed: AtomicBool::new(false) };
    let results: Vec<Mutex<Option<Result<ImageLayer, ImageError>>>> =
        plan.layers.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(layer) = plan.layers.get(index) else { return };
            let result = unpack_one(context, index, layer, blobs, &progress);
            progress.failed.fetch_or(result.is_err(), Ordering::Relaxed);
            *lock(&results[index]) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers.min(plan.layers.len()) {
            scope.spawn(work);
        }
        work();
    });

    let mut layers: Vec<ImageLayer> = Vec::with_capacity(results.len());
    let mut failure: Option<ImageError> = None;
    for result in results {
        match result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(Ok(layer)) => {
                // Overlayfs does not look for an opaque mark on the root of a layer: leave out what it hides.
                if layer.notes.opaque_root {
                    layers.clear();
                }
                layers.push(layer);
            }
            // Others only stopped because of the one that says why.
            Some(Err(error)) if failure.as_ref().is_none_or(|known| known.kind() == ErrorKind::Cancelled) => {
                failure = Some(error);
            }
            _ => {}
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(Image { layers, config: plan.config }),
    }
}

fn unpack_one(
    context: &Context<'_>,
    index: usize,
    plan: &LayerPlan,
    blobs: &dyn LayerBlobs,
    progress: &dyn Progress,
) -> Result<ImageLayer, ImageError> {
    let name = short(&plan.diff_id);
    let what = format!("layer {} ({name})", index + 1);
    if let Some(layer) = context.store.get(&plan.diff_id).map_err(context.unpack_error(&*what))? {
        return Ok(layer);
    }
    let source = blobs.open(index, plan, progress)?;
    let promise = Promise {
        blob: plan.blob.map(|(digest, _)| digest),
        diff_id: Some(plan.diff_id),
        blob_bytes: plan.blob.map(|(_, bytes)| bytes),
    };
    let item = ProgressItem { stage: Stage::Unpack, name };
    let result = context.store.unpack(source, &promise, &item, progress);
    blobs.done(plan, result.as_ref().err().map(UnpackError::kind));
    result.map_err(context.unpack_error(what))
}

/// A digest as people compare them.
pub(super) fn short(digest: &Digest) -> String {
    digest.hex()[..SHORT_DIGITS].to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Passes everything on, and cancels once a layer failed.
struct StopOnFailure<'a> {
    inner: &'a dyn Progress,
    failed: AtomicBool,
}

impl Progress for StopOnFailure<'_> {
    fn started(&self, item: &ProgressItem, total_bytes: Option<u64>) {
        self.inner.started(item, total_bytes);
    }

    fn advanced(&self, item: &ProgressItem, bytes: u64) {
        self.inner.advanced(item, bytes);
    }

    fn message(&self, item: &ProgressItem, line: &str) {
        self.inner.message(item, line);
    }

    fn finished(&self, item: &ProgressItem) {
        self.inner.finished(item);
    }

    fn is_cancelled(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.inner.is_cancelled()
    }
}
