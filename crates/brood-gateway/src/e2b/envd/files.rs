//! Files as a whole: `GET` and `POST /files`.

use std::collections::{BTreeMap, HashSet};
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use brood_sandbox::files::EntryKind;
use bytes::Bytes;
use futures::Stream;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::entries::METADATA_PREFIX;
use super::transfer::{self, TransferError};
use super::user::{Acting, named};
use super::{Envd, FileQuery};
use crate::e2b::connect::{Code, RpcError};
use crate::e2b::failure::Failure;

/// Files of one request.
const FILES_MAX: usize = 10_000;
/// Bounds on the metadata of a file, as envd has them.
const METADATA_KEY_BYTES_MAX: usize = 246;
const METADATA_BYTES_MAX: usize = 4096;
/// Mode of new files: 0666 without what the usual umask takes away.
const FILE_MODE: u32 = 0o644;

/// A file that was written.
#[derive(Debug, Serialize)]
struct Written {
    path: String,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

fn refused(error: RpcError) -> Failure {
    let status = match error.code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
        Code::InvalidArgument | Code::AlreadyExists => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Failure::new(status, error.message)
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let status = match error {
            TransferError::Source(_) | TransferError::File(_) => StatusCode::BAD_REQUEST,
            TransferError::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        };
        Self::new(status, error.to_string())
    }
}

/// The user: of the query, else of the header, else the template's.
async fn acting(envd: &Envd, query: &FileQuery, headers: &HeaderMap) -> Result<Arc<Acting>, Failure> {
    let (envd, name) = (envd.clone(), query.username.clone().or_else(|| named(headers)));
    let found = tokio::task::spawn_blocking(move || Acting::of(&envd, name.as_deref())).await;
    match found {
        Ok(found) => found.map(Arc::new).map_err(refused),
        Err(error) => Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

pub(super) async fn download(envd: Envd, request: Request) -> Response {
    let (query, head) = (FileQuery::of(&request), request.method() == Method::HEAD);
    let headers = request.headers().clone();
    match read(&envd, &query, &headers, head).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn read(envd: &Envd, query: &FileQuery, headers: &HeaderMap, head: bool) -> Result<Response, Failure> {
    let acting = acting(envd, query, headers).await?;
    let path = acting.path(query.path.as_deref().unwrap_or("")).map_err(refused)?;
    let opened = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || {
            let entry = acting.files.stat_followed(&path)?;
            if entry.kind == EntryKind::Directory {
                return Err(RpcError::invalid(format!("path {} is a directory", path.display())));
            }
            Ok((acting.files.open_read(&path)?, entry))
        })
    };
    let opened = opened.await.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let (mut file, entry) = opened.map_err(refused)?;
    // The file may have grown since it was looked at.
    let size = file.metadata().map_or(entry.size, |status| status.len());
    let modified = UNIX_EPOCH + Duration::from_millis(u64::try_from(entry.modified_ms).unwrap_or(0));
    let range = match range(headers, size) {
        Ok(range) => range,
        Err(()) => return Ok(unsatisfiable(size)),
    };
    if range.is_none() && not_modified(headers, modified) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    let gzip = range.is_none() && size > 0 && encoding(headers)?;
    let mut response = Response::new(Body::empty());
    describe(response.headers_mut(), &path, modified);
    let (start, length) = range.map_or((0, size), |(first, last)| (first, last - first + 1));
    if let Some((first, last)) = range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        insert_text(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes {first}-{last}/{size}"));
    }
    if gzip {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    } else {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if !head && length > 0 {
        file.seek(SeekFrom::Start(start))
            .map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        *response.body_mut() = transfer::send(file, length, gzip);
    }
    Ok(response)
}

fn insert_text(headers: &mut HeaderMap, name: header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

fn describe(headers: &mut HeaderMap, path: &Path, modified: std::time::SystemTime) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC);
    insert_text(headers, header::CONTENT_DISPOSITION, &format!("inline; filename*=utf-8''{encoded}"));
    insert_text(headers, header::LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(&name)));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
}

fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("txt" | "log" | "md" | "py" | "rs" | "sh" | "toml" | "yaml" | "yml") => "text/plain; charset=utf-8",
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("csv") => "text/csv; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("xml") => "text/xml; charset=utf-8",
        Some("pdf") => "application/pdf",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some("webp") => "image/webp",
        Some("zip") => "application/zip",
        Some("gz" | "tgz") => "application/gzip",
        Some("tar") => "application/x-tar",
        _ => "application/octet-stream",
    }
}

/// One range of bytes, first and last; several are answered with the whole.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else { return Ok(None) };
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-')) else {
        return Ok(None);
    };
    let range = match (first.trim(), last.trim()) {
        ("", suffix) => {
            let Ok(suffix) = suffix.parse::<u64>() else { return Ok(None) };
            (size.saturating_sub(suffix), size.saturating_sub(1))
        }
        (first, last) => {
            let Ok(first) = first.parse::<u64>() else { return Ok(None) };
            let last = if last.is_empty() { u64::MAX } else { last.parse().map_err(|_| ())? };
            (first, last.min(size.saturating_sub(1)))
        }
    };
    if range.0 >= size || range.0 > range.1 { Err(()) } else { Ok(Some(range)) }
}

fn unsatisfiable(size: u64) -> Response {
    let mut response = Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, "the file has no such range").into_response();
    insert_text(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
    response
}

fn not_modified(headers: &HeaderMap, modified: std::time::SystemTime) -> bool {
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let since = since.and_then(|text| httpdate::parse_http_date(text).ok());
    let seconds = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    since.is_some_and(|since| seconds(modified) <= seconds(since))
}

/// Whether the content goes compressed: only where gzip is the one encoding that the client asks
/// for. HTTP libraries offer several by themselves, and between programs of one host compression
/// costs more than it gains.
fn encoding(headers: &HeaderMap) -> Result<bool, Failure> {
    let text = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("");
    let offers: Vec<(&str, bool)> = text
        .split(',')
        .map(|offer| {
            let (name, quality) = offer.split_once(';').unwrap_or((offer, ""));
            let refused = quality.trim().strip_prefix("q=").is_some_and(|q| q.trim().parse::<f32>() == Ok(0.0));
            (name.trim(), !refused)
        })
        .filter(|(name, _)| !name.is_empty())
        .collect();
    let takes = |wanted: &str| offers.iter().find(|(name, _)| *name == wanted).map(|(_, takes)| *takes);
    let gzip = takes("gzip");
    let identity = takes("identity").or_else(|| takes("*").filter(|takes| !takes)).unwrap_or(true);
    match (identity, gzip.or_else(|| takes("*"))) {
        (true, _) => Ok(gzip == Some(true) && offers.len() == 1),
        (false, Some(true)) => Ok(true),
        (false, _) => Err(Failure::new(StatusCode::NOT_ACCEPTABLE, "none of the accepted encodings can be given")),
    }
}

pub(super) async fn upload(envd: Envd, request: Request) -> Response {
    let (query, headers) = (FileQuery::of(&request), request.headers().clone());
    match write(&envd, &query, &headers, request.into_body()).await {
        Ok(written) => axum::Json(written).into_response(),
        Err(failure) => failure.into_response(),
    }
}

async fn write(envd: &Envd, query: &FileQuery, headers: &HeaderMap, body: Body) -> Result<Vec<Written>, Failure> {
    let acting = acting(envd, query, headers).await?;
    let metadata = metadata(headers)?;
    let gzip = match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => return Err(Failure::invalid("the content may be compressed with gzip alone")),
    };
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/octet-stream" => {
            let path = query.path.as_deref().filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| Failure::invalid("path is required with application/octet-stream"))?;
            let content = Box::pin(body.into_data_stream());
            Ok(vec![receive(&acting, path, &metadata, gzip, content).await?])
        }
        "multipart/form-data" if !gzip => multipart(&acting, query, &metadata, kind, body).await,
        _ => Err(Failure::invalid("the content must be multipart/form-data or application/octet-stream")),
    }
}

async fn multipart(
    acting: &Arc<Acting>,
    query: &FileQuery,
    metadata: &BTreeMap<String, String>,
    kind: &str,
    body: Body,
) -> Result<Vec<Written>, Failure> {
    let malformed = |error: multer::Error| Failure::invalid(format!("the form is malformed: {error}"));
    let mut form = multer::Multipart::new(body.into_data_stream(), multer::parse_boundary(kind).map_err(malformed)?);
    let (mut written, mut seen): (Vec<Written>, HashSet<PathBuf>) = (Vec::new(), HashSet::new());
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        let disposition = field.headers().get(header::CONTENT_DISPOSITION).map(|value| value.as_bytes().to_vec());
        let disposition = String::from_utf8_lossy(&disposition.unwrap_or_default()).into_owned();
        if parameter(&disposition, "name").as_deref() != Some("file") {
            continue;
        }
        let own = parameter(&disposition, "filename");
        let path = query.path.clone().filter(|path| !path.is_empty()).or(own).unwrap_or_default();
        if path.is_empty() {
            return Err(Failure::invalid("a part has no filename, and the request no path"));
        }
        if !seen.insert(acting.path(&path).map_err(refused)?) || written.len() >= FILES_MAX {
            return Err(Failure::invalid(format!("{path} comes twice, or the form has more than {FILES_MAX} files")));
        }
        written.push(receive(acting, &path, metadata, false, Box::pin(field)).await?);
    }
    Ok(written)
}

/// A parameter of a `Content-Disposition`, taken out of its quotes but else literally.
fn parameter(disposition: &str, wanted: &str) -> Option<String> {
    let mut rest = disposition.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, after) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), after)
            }
        };
        if name.trim_matches([' ', ';', '\t']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            // Only quote and backslash are ever escaped; other backslashes are part of a name.
            '\\' => match text[at + 1..].chars().next() {
                Some(escaped @ ('"' | '\\')) => {
                    value.push(escaped);
                    characters.next();
                }
                _ => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    None
}

async fn receive<E: std::fmt::Display>(
    acting: &Arc<Acting>,
    asked: &str,
    metadata: &BTreeMap<String, String>,
    gzip: bool,
    content: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<Written, Failure> {
    let path = acting.path(asked).map_err(refused)?;
    let open = {
        let (acting, path, metadata) = (Arc::clone(acting), path.clone(), metadata.clone());
        move || {
            if acting.files.stat_followed(&path).is_ok_and(|entry| entry.kind == EntryKind::Directory) {
                return Err(TransferError::File(format!("path is a directory: {}", path.display())));
            }
            let file = acting.files.create(&path, acting.owner(), FILE_MODE)?;
            acting.files.set_owner(&file, acting.owner())?;
            if let Err(error) = acting.files.set_attributes(&file, METADATA_PREFIX, &metadata) {
                tracing::debug!(%error, "a file system keeps no metadata");
            }
            Ok(file)
        }
    };
    transfer::receive(content, gzip, open).await?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Written { path: path.to_string_lossy().into_owned(), name, kind: "file", metadata: metadata.clone() })
}

/// What the client attaches to the files of a request.
fn metadata(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Failure> {
    let mut metadata = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix("x-metadata-") else { continue };
        let value = value.to_str().ok().filter(|text| text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        let value = value.ok_or_else(|| Failure::invalid(format!("metadata {key:?} must be printable ASCII")))?;
        bytes += key.len() + value.len();
        if key.is_empty() || key.len() > METADATA_KEY_BYTES_MAX || bytes > METADATA_BYTES_MAX {
            let message = format!("metadata takes at most {METADATA_BYTES_MAX} bytes, a key {METADATA_KEY_BYTES_MAX}");
            return Err(Failure::invalid(message));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn names_are_taken_literally() {
        let name = |text: &str| parameter(text, "filename").unwrap();
        assert_eq!(name(r#"form-data; name="file"; filename="/a/b c.txt""#), "/a/b c.txt");
        assert_eq!(name(r#"form-data; filename="a%22b\\c\d\"e"; name="file""#), r#"a%22b\c\d"e"#);
        assert_eq!(name("form-data; name=file; filename=/é/%41"), "/é/%41");
        assert_eq!(parameter(r#"form-data; name="file"; filename="open"#, "filename"), None);
        assert_eq!(parameter("form-data", "name"), None);
    }

    #[test]
    fn ranges_are_those_of_http() {
        let of = |text: &str| range(&with(header::RANGE, text), 10);
        assert_eq!(of("bytes=0-3"), Ok(Some((0, 3))));
        assert_eq!(of("bytes=5-"), Ok(Some((5, 9))));
        assert_eq!(of("bytes=-3"), Ok(Some((7, 9))));
        assert_eq!(of("bytes=-30"), Ok(Some((0, 9))));
        assert_eq!(of("bytes=2-99"), Ok(Some((2, 9))));
        assert_eq!(of("bytes=10-"), Err(()));
        assert_eq!(of("bytes=5-2"), Err(()));
        assert_eq!(of("lines=1-2"), Ok(None));
        assert_eq!(range(&with(header::RANGE, "bytes=0-"), 0), Err(()));
    }

    #[test]
    fn only_who_wants_gzip_alone_gets_it() {
        let of = |text: &str| encoding(&with(header::ACCEPT_ENCODING, text)).map_err(|failure| failure.status);
        assert_eq!(of("gzip"), Ok(true));
        assert_eq!(of("gzip, deflate, br"), Ok(false));
        assert_eq!(of("identity"), Ok(false));
        assert_eq!(of("gzip, identity;q=0"), Ok(true));
        assert_eq!(of("br, *;q=0"), Err(StatusCode::NOT_ACCEPTABLE));
    }

    #[test]
    fn metadata_is_bounded() {
        let headers = with("x-metadata-key".parse().unwrap(), "value");
        assert_eq!(metadata(&headers).unwrap(), BTreeMap::from([("key".to_owned(), "value".to_owned())]));
        metadata(&with("x-metadata-key".parse().unwrap(), &"v".repeat(5000))).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_readers(text in ".{0,80}") {
            let _name = parameter(&text, "filename");
            if let Ok(value) = HeaderValue::from_str(&text) {
                let headers = HeaderMap::from_iter([(header::RANGE, value.clone()), (header::ACCEPT_ENCODING, value)]);
                let _range = range(&headers, 10);
                let _encoding = encoding(&headers);
            }
        }
    }
}
