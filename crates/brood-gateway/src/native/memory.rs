//! Squeezing sandboxes and bringing their pages back.
//!
//! Only the thread that stopped a task may work on it: each request is one call of the engine inside [`blocking`].

use axum::Json;
use axum::extract::{Path, State};
use brood_sandbox::memory::{RestoreInfo, SqueezeInfo};

use super::failure::{Failure, blocking};
use super::{NativeState, sandboxes};

pub(super) async fn squeeze(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<SqueezeInfo>, Failure> {
    let sandbox = sandboxes::find(state.engine(), &id)?;
    blocking(move || sandbox.squeeze()).await.map(Json)
}

pub(super) async fn restore_pages(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<RestoreInfo>, Failure> {
    let sandbox = sandboxes::find(state.engine(), &id)?;
    blocking(move || sandbox.restore_pages()).await.map(Json)
}
