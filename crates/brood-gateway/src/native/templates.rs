//! Templates: listed, looked at, removed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_sandbox::ids::TemplateName;
use brood_sandbox::model::{HistoryEntry, TemplateInfo};

use super::NativeState;
use super::failure::{Failure, blocking};

pub(super) async fn list(State(state): State<NativeState>) -> Result<Json<Vec<TemplateInfo>>, Failure> {
    let engine = Arc::clone(state.engine());
    blocking(move || engine.templates()).await.map(Json)
}

pub(super) async fn inspect(
    State(state): State<NativeState>,
    Path(name): Path<String>,
) -> Result<Json<TemplateInfo>, Failure> {
    let name: TemplateName = name.parse()?;
    let engine = Arc::clone(state.engine());
    blocking(move || engine.template(&name)).await.map(Json)
}

pub(super) async fn history(
    State(state): State<NativeState>,
    Path(name): Path<String>,
) -> Result<Json<Vec<HistoryEntry>>, Failure> {
    let name: TemplateName = name.parse()?;
    let engine = Arc::clone(state.engine());
    blocking(move || engine.template_history(&name)).await.map(Json)
}

pub(super) async fn remove(State(state): State<NativeState>, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    let name: TemplateName = name.parse()?;
    let engine = Arc::clone(state.engine());
    blocking(move || engine.remove_template(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}
