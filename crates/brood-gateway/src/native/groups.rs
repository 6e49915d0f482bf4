//! Groups of sandboxes, and what sandboxes looked up.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_api::types::CreateGroup;
use brood_sandbox::model::{GroupInfo, LookUp};

use super::NativeState;
use super::failure::{Failure, Input, blocking};
use super::sandboxes::find;

pub(super) async fn list(State(state): State<NativeState>) -> Json<Vec<GroupInfo>> {
    Json(state.engine().groups())
}

pub(super) async fn create(
    State(state): State<NativeState>,
    Input(CreateGroup { name }): Input<CreateGroup>,
) -> Result<(StatusCode, Json<GroupInfo>), Failure> {
    let engine = Arc::clone(state.engine());
    let group = blocking(move || engine.create_group(&name)).await?;
    Ok((StatusCode::CREATED, Json(group)))
}

pub(super) async fn remove(State(state): State<NativeState>, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    let engine = Arc::clone(state.engine());
    blocking(move || engine.remove_group(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn look_ups(
    State(state): State<NativeState>,
    Path(id): Path<String>,
) -> Result<Json<Vec<LookUp>>, Failure> {
    Ok(Json(find(state.engine(), &id)?.look_ups()?))
}
