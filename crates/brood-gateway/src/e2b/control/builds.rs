//! Building templates: registered, files uploaded, started, followed.

use std::collections::{HashMap, VecDeque};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use brood_sandbox::build::BuildProgress;
use brood_sandbox::ids::TemplateName;
use brood_sandbox::model::BuildRequest;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::plan::{Definition, Plan};
use super::templates::{Origin, resolve};
use super::{Answer, Input, Query};
use crate::e2b::E2bState;
use crate::e2b::failure::{Failure, blocking};
use crate::e2b::templates::{Build, TAG, Template, split_tag};
use crate::e2b::time::{now_ms, rfc3339};
use crate::e2b::tokens::{Purpose, random_hex, random_uuid};

/// Lines of a build's log that are kept: of a long one the beginning, which tells what went wrong first.
const LOG_LINES_MAX: usize = 20_000;
/// Builds remembered; the oldest go first.
const BUILDS_KEPT: usize = 256;
/// Largest archive of files of a COPY step.
const UPLOAD_BYTES_MAX: u64 = 8 << 30;
/// Images that stand for templates of this host, since clients start from them by default.
const BASE_IMAGES: [(&str, &str); 2] = [("e2bdev/base", "base"), ("e2bdev/code-interpreter", "code-interpreter-v1")];

/// A build, under way or over.
#[derive(Debug)]
struct Running {
    template_id: String,
    name: String,
    tags: Vec<String>,
    cpu_count: u32,
    memory_mb: u64,
    progress: Mutex<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Waiting,
    Building,
    Ready,
    Error,
}

#[derive(Debug)]
struct Progress {
    status: Status,
    lines: Vec<Value>,
    reason: Option<String>,
}

impl Running {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, level: &str, text: &str) {
        let mut progress = self.progress();
        if progress.lines.len() < LOG_LINES_MAX {
            progress.lines.push(json!({ "timestamp": rfc3339(now_ms()), "message": text, "level": level }));
        }
    }
}

/// What the engine tells goes into the log.
struct Told(Arc<Running>);

impl BuildProgress for Told {
    fn step(&self, index: usize, total: usize, text: &str, cached: bool) {
        let cached = if cached { "CACHED " } else { "" };
        self.0.log("info", &format!("{cached}[{index}/{total}] {text}"));
    }

    fn output(&self, text: &str) {
        text.lines().for_each(|line| self.0.log("debug", line));
    }

    fn transfer(&self, item: &str, done_bytes: u64, total_bytes: Option<u64>) {
        if total_bytes == Some(done_bytes) {
            self.0.log("debug", &format!("{item}: {done_bytes} bytes"));
        }
    }
}

/// The builds of this daemon.
#[derive(Debug, Default)]
pub(in crate::e2b) struct Builds {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    builds: HashMap<String, Arc<Running>>,
    /// Their ids, oldest first.
    order: VecDeque<String>,
}

impl Builds {
    fn add(&self, id: &str, build: Running) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.builds.insert(id.to_owned(), Arc::new(build));
        known.order.push_back(id.to_owned());
        if known.order.len() > BUILDS_KEPT
            && let Some(oldest) = known.order.pop_front()
        {
            known.builds.remove(&oldest);
        }
    }

    fn find(&self, template: &str, id: &str) -> Result<Arc<Running>, Failure> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let build = known.builds.get(id).filter(|build| build.template_id == template);
        build.cloned().ok_or_else(|| Failure::not_found("there is no such build"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Register {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
}

/// `POST /v3/templates`, and `/v2/templates` of older clients.
pub(super) async fn register(State(state): State<E2bState>, Input(asked): Input<Register>) -> Answer<Value> {
    let text = asked.name.or(asked.alias).unwrap_or_default().trim().to_ascii_lowercase();
    let text = text.rsplit_once('/').map_or(&*text, |(_namespace, name)| name);
    let (name, tag) = split_tag(text);
    let mut tags = vec![tag.to_owned()];
    tags.extend(asked.tags.unwrap_or_default());
    tags.dedup();
    check_names(name, &tags)?;
    let existing = state.templates().find(name);
    let template_id = existing.map_or_else(|| random_hex(20), |template| template.id);
    let build_id = random_uuid();
    let build = Running {
        template_id: template_id.clone(),
        name: name.to_owned(),
        tags: tags.clone(),
        cpu_count: asked.cpu_count.unwrap_or(2).clamp(1, 4096),
        memory_mb: asked.memory_mb.unwrap_or(1024).clamp(16, 1 << 24),
        progress: Mutex::new(Progress { status: Status::Waiting, lines: Vec::new(), reason: None }),
    };
    state.builds().add(&build_id, build);
    let answer = json!({
        "templateID": template_id, "buildID": build_id, "public": false,
        "names": [name], "tags": tags, "aliases": [name],
    });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

fn check_names(name: &str, tags: &[String]) -> Result<(), Failure> {
    for tag in tags {
        format!("{name}:{tag}").parse::<TemplateName>().map_err(|error| Failure::invalid(error.to_string()))?;
    }
    Ok(())
}

fn upload_path(state: &E2bState, hash: &str) -> Option<PathBuf> {
    let fits = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| state.settings().state_directory.join("uploads").join(hash))
}

/// `GET /templates/{id}/files/{hash}`: where the files of a COPY step are to be sent.
pub(super) async fn upload_link(
    State(state): State<E2bState>,
    Path((_template, hash)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Value> {
    let path = upload_path(&state, &hash).ok_or_else(|| Failure::invalid("the hash must be 64 hexadecimal digits"))?;
    let present = path.exists();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let forwarded = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = forwarded || state.settings().encrypted;
    let scheme = if secure { "https" } else { "http" };
    let token = state.tokens().of(Purpose::Upload, &hash);
    let url = format!("{scheme}://{host}/uploads/{hash}?token={token}");
    Ok((StatusCode::CREATED, Json(json!({ "present": present, "url": url, "headers": {} }))))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct UploadQuery {
    #[serde(default)]
    token: String,
}

/// `PUT /uploads/{hash}`: no key, since the token in the link is one.
pub(super) async fn upload(
    State(state): State<E2bState>,
    Path(hash): Path<String>,
    Query(query): Query<UploadQuery>,
    body: Body,
) -> Result<StatusCode, Failure> {
    if !state.tokens().fits(Purpose::Upload, &hash, &query.token) {
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "the upload link is not valid"));
    }
    let path = upload_path(&state, &hash).ok_or_else(|| Failure::invalid("the hash must be 64 hexadecimal digits"))?;
    let part = path.with_extension(random_hex(8));
    let kept = keep(&part, body).await;
    if kept.is_err() {
        // It may not even have been made.
        drop(tokio::fs::remove_file(&part).await);
    }
    kept?;
    tokio::fs::rename(&part, &path).await.map_err(|error| of_disk(&error))?;
    Ok(StatusCode::OK)
}

fn of_disk(error: &std::io::Error) -> Failure {
    let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
    let status = if full { StatusCode::INSUFFICIENT_STORAGE } else { StatusCode::INTERNAL_SERVER_ERROR };
    Failure::new(status, format!("the upload cannot be kept: {error}"))
}

async fn keep(path: &FilePath, body: Body) -> Result<(), Failure> {
    if let Some(directory) = path.parent() {
        tokio::fs::create_dir_all(directory).await.map_err(|error| of_disk(&error))?;
    }
    let mut file = tokio::fs::File::create(path).await.map_err(|error| of_disk(&error))?;
    let (mut pieces, mut bytes) = (body.into_data_stream(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Failure::invalid("the upload breaks off"))?;
        bytes += piece.len() as u64;
        if bytes > UPLOAD_BYTES_MAX {
            let message = format!("an upload takes at most {} GiB", UPLOAD_BYTES_MAX >> 30);
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        file.write_all(&piece).await.map_err(|error| of_disk(&error))?;
    }
    file.flush().await.map_err(|error| of_disk(&error))
}

/// `POST /v2/templates/{id}/builds/{build}`.
pub(super) async fn start(
    State(state): State<E2bState>,
    Path((template, build_id)): Path<(String, String)>,
    Input(definition): Input<Definition>,
) -> Result<StatusCode, Failure> {
    let build = state.builds().find(&template, &build_id)?;
    if definition.from_image_registry.as_ref().is_some_and(|registry| !registry.is_null()) {
        return Err(Failure::invalid("registries with credentials are not supported by this server"));
    }
    let source = source(&state, &definition)?;
    let plan = Plan::of(&definition, |hash| upload_path(&state, hash).filter(|path| path.exists()))?;
    {
        let mut progress = build.progress();
        if progress.status != Status::Waiting {
            return Err(Failure::conflict("this build was started before"));
        }
        progress.status = Status::Building;
    }
    let runner = state.clone();
    tokio::task::spawn_blocking(move || {
        let built = run(&runner, &build, &build_id, source, plan, &definition);
        let mut progress = build.progress();
        match built {
            Ok(()) => progress.status = Status::Ready,
            Err(failure) => {
                (progress.status, progress.reason) = (Status::Error, Some(failure.message));
            }
        }
    });
    Ok(StatusCode::ACCEPTED)
}

fn source(state: &E2bState, definition: &Definition) -> Result<String, Failure> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let template = |asked: &str| match resolve(state, asked)? {
        Origin::Template { name, .. } => Ok(format!("template:{name}")),
        Origin::Snapshot { .. } => Err(Failure::invalid("a template cannot be built from a snapshot")),
    };
    match (given(&definition.from_image), given(&definition.from_template)) {
        (None, Some(asked)) => template(&asked),
        (Some(image), None) => {
            let plain = image.split(':').next().unwrap_or("");
            match BASE_IMAGES.iter().find(|(name, _)| *name == plain) {
                Some((_, asked)) => template(asked),
                None => Ok(format!("docker://{image}")),
            }
        }
        _ => Err(Failure::invalid("exactly one of fromImage and fromTemplate is needed")),
    }
}

/// Two builds: the steps as root, then the template itself with its user and start command.
fn run(
    state: &E2bState,
    build: &Arc<Running>,
    build_id: &str,
    source: String,
    plan: Plan,
    definition: &Definition,
) -> Result<(), Failure> {
    let told = Told(Arc::clone(build));
    let name: TemplateName = format!("{}:{}", build.name, &build_id[..8]).parse().map_err(engine_name)?;
    let steps_name: TemplateName = format!("{}:{}-steps", build.name, &build_id[..8]).parse().map_err(engine_name)?;
    let request = |name: &TemplateName, source: String, user: Option<String>| BuildRequest {
        name: name.clone(),
        source,
        steps: Vec::new(),
        environment: plan.environment.clone(),
        working_directory: None,
        user,
        start_command: None,
        ready_command: None,
        no_cache: plan.no_cache,
    };
    let steps = BuildRequest { steps: plan.steps.clone(), ..request(&steps_name, source, Some("root".to_owned())) };
    state.engine().build_template(steps, &told)?;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
    let last = BuildRequest {
        working_directory: plan.working_directory.clone(),
        start_command: given(&definition.start_cmd),
        ready_command: given(&definition.ready_cmd),
        ..request(&name, format!("template:{steps_name}"), plan.user.clone())
    };
    let built = state.engine().build_template(last, &told);
    if let Err(error) = state.engine().remove_template(&steps_name) {
        tracing::warn!(template = %steps_name, error = error.chain(), "a template between two steps of a build stays");
    }
    built?;
    tag(state, build, build_id, name)
}

fn engine_name(error: brood_sandbox::ids::InvalidName) -> Failure {
    Failure::invalid(error.to_string())
}

fn tag(state: &E2bState, build: &Running, build_id: &str, name: TemplateName) -> Result<(), Failure> {
    let now = now_ms();
    let mut template = state.templates().find(&build.template_id).unwrap_or_else(|| Template {
        id: build.template_id.clone(),
        name: build.name.clone(),
        created_ms: now,
        updated_ms: now,
        tags: std::collections::BTreeMap::new(),
    });
    template.updated_ms = now;
    let done = Build {
        id: build_id.to_owned(),
        template: name,
        cpu_count: build.cpu_count,
        memory_mb: build.memory_mb,
        tagged_ms: now,
    };
    for tag in &build.tags {
        template.tags.insert(tag.clone(), done.clone());
    }
    // The first build of a name is what the bare name means, whatever its tag.
    template.tags.entry(TAG.to_owned()).or_insert(done);
    Ok(state.templates().put(state.engine(), template)?)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Follow {
    logs_offset: usize,
    limit: Option<usize>,
}

/// `GET /templates/{id}/builds/{build}/status`.
pub(super) async fn status(
    State(state): State<E2bState>,
    Path((template, build_id)): Path<(String, String)>,
    Query(follow): Query<Follow>,
) -> Result<Json<Value>, Failure> {
    let build = state.builds().find(&template, &build_id)?;
    let progress = build.progress();
    let lines = progress.lines.iter().skip(follow.logs_offset).take(follow.limit.unwrap_or(100).min(100));
    let mut answer = json!({
        "templateID": template, "buildID": build_id, "status": progress.status, "logs": [],
        "logEntries": lines.collect::<Vec<_>>(),
    });
    if let Some(reason) = &progress.reason {
        answer["reason"] = json!({ "message": reason });
    }
    Ok(Json(answer))
}

/// `GET /templates`, in its versions.
pub(super) async fn list(State(state): State<E2bState>) -> Json<Vec<Value>> {
    Json(state.templates().all().iter().map(|template| view(&state, template)).collect())
}

pub(super) async fn inspect(State(state): State<E2bState>, Path(id): Path<String>) -> Result<Json<Value>, Failure> {
    let template = state.templates().find(&id).ok_or_else(|| Failure::not_found("there is no such template"))?;
    Ok(Json(view(&state, &template)))
}

fn view(state: &E2bState, template: &Template) -> Value {
    let newest = template.tags.values().max_by_key(|build| build.tagged_ms);
    let sandboxes =
        newest.and_then(|build| state.engine().template(&build.template).ok()).map_or(0, |info| info.sandboxes);
    json!({
        "templateID": template.id,
        "buildID": newest.map_or("", |build| &build.id),
        "cpuCount": newest.map_or(0, |build| build.cpu_count),
        "memoryMB": newest.map_or(0, |build| build.memory_mb),
        "diskSizeMB": super::views::disk_bytes(state) >> 20,
        "public": false,
        "aliases": [template.name],
        "names": [template.name],
        "createdAt": rfc3339(template.created_ms),
        "updatedAt": rfc3339(template.updated_ms),
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": sandboxes,
        "buildCount": template.tags.len(),
        "envdVersion": crate::e2b::ENVD_VERSION,
        "buildStatus": "ready",
    })
}

/// `GET /templates/aliases/{alias}`: whether a name exists.
pub(super) async fn alias(State(state): State<E2bState>, Path(alias): Path<String>) -> Result<Json<Value>, Failure> {
    if let Some(template) = state.templates().find(&alias) {
        return Ok(Json(json!({ "templateID": template.id, "public": false })));
    }
    let origin = resolve(&state, &alias)?;
    Ok(Json(json!({ "templateID": origin.template(), "public": false })))
}

#[derive(Debug, Deserialize)]
pub(super) struct AssignTags {
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RemoveTags {
    name: String,
    tags: Vec<String>,
}

fn found(state: &E2bState, name: &str) -> Result<Template, Failure> {
    state.templates().find(name).ok_or_else(|| Failure::not_found(format!("there is no template {name:?}")))
}

pub(super) async fn assign_tags(State(state): State<E2bState>, Input(asked): Input<AssignTags>) -> Answer<Value> {
    let mut template = found(&state, &asked.target)?;
    check_names(&template.name, &asked.tags)?;
    let build = state.templates().build(&asked.target);
    let build = build.ok_or_else(|| Failure::not_found(format!("there is no tag {:?}", split_tag(&asked.target).1)))?;
    for tag in &asked.tags {
        template.tags.insert(tag.clone(), Build { tagged_ms: now_ms(), ..build.clone() });
    }
    let keeper = state.clone();
    blocking(move || keeper.templates().put(keeper.engine(), template)).await?;
    Ok((StatusCode::CREATED, Json(json!({ "tags": asked.tags, "buildID": build.id }))))
}

pub(super) async fn remove_tags(
    State(state): State<E2bState>,
    Input(asked): Input<RemoveTags>,
) -> Result<StatusCode, Failure> {
    let mut template = found(&state, &asked.name)?;
    for tag in &asked.tags {
        if template.tags.remove(tag).is_none() {
            return Err(Failure::not_found(format!("there is no tag {tag:?}")));
        }
    }
    blocking(move || state.templates().put(state.engine(), template)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn tags(State(state): State<E2bState>, Path(id): Path<String>) -> Result<Json<Vec<Value>>, Failure> {
    let template = found(&state, &id)?;
    let tags = template
        .tags
        .iter()
        .map(|(tag, build)| json!({ "tag": tag, "buildID": build.id, "createdAt": rfc3339(build.tagged_ms) }));
    Ok(Json(tags.collect()))
}
