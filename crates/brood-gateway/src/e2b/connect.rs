//! The Connect protocol, as a server: JSON and binary messages, unary calls and streams.
//!
//! A stream is a sequence of frames `[flags][length, big endian][payload]` and ends with one whose
//! flags are 2, which holds the failure if there was one; the HTTP status of a stream is always 200.
//! Compression is neither offered nor taken. (connectrpc.com/docs/protocol)

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use brood_sandbox::error::{EngineError, ErrorKind};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message: input for a process comes in pieces, and all else is smaller.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Time for the end of a request to follow its only message.
const REQUEST_END_WAIT: Duration = Duration::from_secs(2);
const FLAG_COMPRESSED: u8 = 1;
const FLAG_END: u8 = 2;
const HEAD_BYTES: usize = 5;

/// What failed, in the words of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists | Self::Aborted => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unknown | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A call that failed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RpcError {
    pub(super) code: Code,
    pub(super) message: String,
}

impl RpcError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

impl From<EngineError> for RpcError {
    fn from(error: EngineError) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Conflict => Code::AlreadyExists,
            ErrorKind::Invalid | ErrorKind::NotExecutable | ErrorKind::CommandNotFound => Code::InvalidArgument,
            ErrorKind::Exhausted => Code::ResourceExhausted,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::Internal => Code::Internal,
        };
        Self::new(code, error.chain())
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        (self.code.status(), axum::Json(self)).into_response()
    }
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Json,
    Proto,
}

impl Codec {
    fn encode<M: prost::Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            // Plain data always becomes JSON.
            Self::Json => serde_json::to_vec(message).unwrap_or_default(),
            Self::Proto => message.encode_to_vec(),
        }
    }

    fn decode<M: prost::Message + Default + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, RpcError> {
        let malformed = |error: String| RpcError::invalid(format!("the message does not fit: {error}"));
        match self {
            Self::Json if bytes.trim_ascii().is_empty() => Ok(M::default()),
            Self::Json => serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string())),
            Self::Proto => M::decode(bytes).map_err(|error| malformed(error.to_string())),
        }
    }
}

/// The kinds of calls differ in their content types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unary,
    Stream,
}

fn codec(headers: &HeaderMap, kind: Kind) -> Option<Codec> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = text.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match (kind, essence.as_str()) {
        (Kind::Unary, "application/json") | (Kind::Stream, "application/connect+json") => Some(Codec::Json),
        (Kind::Unary, "application/proto") | (Kind::Stream, "application/connect+proto") => Some(Codec::Proto),
        _ => None,
    }
}

fn content_type(codec: Codec, kind: Kind) -> HeaderValue {
    HeaderValue::from_static(match (kind, codec) {
        (Kind::Unary, Codec::Json) => "application/json",
        (Kind::Unary, Codec::Proto) => "application/proto",
        (Kind::Stream, Codec::Json) => "application/connect+json",
        (Kind::Stream, Codec::Proto) => "application/connect+proto",
    })
}

fn with_type(body: Body, codec: Codec, kind: Kind) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type(codec, kind));
    response
}

fn is_compressed(headers: &HeaderMap, name: impl axum::http::header::AsHeaderName) -> bool {
    headers.get(name).is_some_and(|value| value != "identity")
}

/// Carries out a unary call.
pub(super) async fn unary<Q, A, F>(request: Request, call: impl FnOnce(HeaderMap, Q) -> F) -> Response
where
    Q: prost::Message + Default + DeserializeOwned,
    A: prost::Message + Serialize,
    F: Future<Output = Result<A, RpcError>>,
{
    let (parts, body) = request.into_parts();
    let Some(codec) = codec(&parts.headers, Kind::Unary) else {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    };
    if is_compressed(&parts.headers, CONTENT_ENCODING) {
        return RpcError::new(Code::Unimplemented, "compressed messages are not taken").into_response();
    }
    let bytes = match Limited::new(body, MESSAGE_BYTES_MAX).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the message is longer than {MESSAGE_BYTES_MAX} bytes");
            return RpcError::new(Code::ResourceExhausted, message).into_response();
        }
        Err(_) => return RpcError::invalid("the message breaks off").into_response(),
    };
    let answered = match codec.decode(&bytes) {
        Ok(message) => call(parts.headers, message).await,
        Err(error) => Err(error),
    };
    match answered {
        Ok(answer) => with_type(Body::from(codec.encode(&answer)), codec, Kind::Unary),
        Err(error) => error.into_response(),
    }
}

/// What a server's stream consists of.
#[derive(Debug)]
pub(super) enum Piece<M> {
    Message(M),
    /// The end, which nothing follows.
    End(Option<RpcError>),
}

/// Carries out a call that is answered by a stream. `call` gives the stream's pieces.
pub(super) async fn server_stream<Q, A, S, F>(request: Request, call: impl FnOnce(HeaderMap, Q) -> F) -> Response
where
    Q: prost::Message + Default + DeserializeOwned,
    A: prost::Message + Serialize + 'static,
    S: Stream<Item = Piece<A>> + Send + 'static,
    F: Future<Output = Result<S, RpcError>>,
{
    let (parts, body) = request.into_parts();
    let Some(codec) = codec(&parts.headers, Kind::Stream) else {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    };
    let mut frames = Frames::new(body);
    let message = match only_frame(&parts.headers, &mut frames).await {
        Ok(bytes) => codec.decode(&bytes),
        Err(error) => Err(error),
    };
    let started = match message {
        Ok(message) => call(parts.headers, message).await,
        Err(error) => Err(error),
    };
    match started {
        Ok(pieces) => {
            let frames = pieces.map(move |piece| Ok::<_, Infallible>(write_piece(codec, piece)));
            with_type(Body::from_stream(frames), codec, Kind::Stream)
        }
        Err(error) => with_type(Body::from(end_frame(Some(&error))), codec, Kind::Stream),
    }
}

async fn only_frame(headers: &HeaderMap, frames: &mut Frames) -> Result<Bytes, RpcError> {
    if is_compressed(headers, "connect-content-encoding") {
        return Err(RpcError::new(Code::Unimplemented, "compressed messages are not taken"));
    }
    let message = frames.next().await?.ok_or_else(|| RpcError::invalid("the request has no message"))?;
    // With the end of the request read, the connection can serve another one after this.
    if let Ok(Ok(Some(_))) = tokio::time::timeout(REQUEST_END_WAIT, frames.next()).await {
        return Err(RpcError::invalid("the request has more than one message"));
    }
    Ok(message)
}

/// Carries out a call whose request is a stream of messages.
pub(super) async fn client_stream<A, F>(request: Request, call: impl FnOnce(Incoming) -> F) -> Response
where
    A: prost::Message + Serialize,
    F: Future<Output = Result<A, RpcError>>,
{
    let (parts, body) = request.into_parts();
    let Some(codec) = codec(&parts.headers, Kind::Stream) else {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    };
    let frames = Frames::new(body);
    let body = match call(Incoming { frames, codec }).await {
        Ok(answer) => {
            let mut bytes = write_piece(codec, Piece::Message(answer)).to_vec();
            bytes.extend_from_slice(&end_frame(None));
            Body::from(bytes)
        }
        Err(error) => Body::from(end_frame(Some(&error))),
    };
    with_type(body, codec, Kind::Stream)
}

/// The messages of a client's stream.
#[derive(Debug)]
pub(super) struct Incoming {
    frames: Frames,
    codec: Codec,
}

impl Incoming {
    /// The next message; none at the end.
    pub(super) async fn next<M: prost::Message + Default + DeserializeOwned>(&mut self) -> Result<Option<M>, RpcError> {
        match self.frames.next().await? {
            Some(bytes) => self.codec.decode(&bytes).map(Some),
            None => Ok(None),
        }
    }
}

/// Reads frames out of a body.
#[derive(Debug)]
struct Frames {
    body: Body,
    buffer: BytesMut,
}

impl Frames {
    fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, RpcError> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer)? {
                return Ok(frame);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(_)) => return Err(RpcError::invalid("the stream breaks off")),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(RpcError::invalid("the stream ends within a message")),
            }
        }
    }
}

/// A whole frame, if there is one. The inner value is none for the client's end of its stream.
fn take_frame(buffer: &mut BytesMut) -> Result<Option<Option<Bytes>>, RpcError> {
    if buffer.len() < HEAD_BYTES {
        return Ok(None);
    }
    let flags = buffer[0];
    let length = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]) as usize;
    if flags & FLAG_COMPRESSED != 0 {
        return Err(RpcError::new(Code::Unimplemented, "compressed messages are not taken"));
    }
    if length > MESSAGE_BYTES_MAX {
        let message = format!("a message of {length} bytes is too long, {MESSAGE_BYTES_MAX} is the most");
        return Err(RpcError::new(Code::ResourceExhausted, message));
    }
    if buffer.len() < HEAD_BYTES + length {
        buffer.reserve(HEAD_BYTES + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(HEAD_BYTES);
    let payload = buffer.split_to(length).freeze();
    Ok(Some((flags & FLAG_END == 0).then_some(payload)))
}

fn frame(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + payload.len());
    bytes.put_u8(flags);
    // Our own messages are far below 4 GiB.
    bytes.put_u32(payload.len() as u32);
    bytes.put_slice(payload);
    bytes.freeze()
}

fn write_piece<M: prost::Message + Serialize>(codec: Codec, piece: Piece<M>) -> Bytes {
    match piece {
        Piece::Message(message) => frame(0, &codec.encode(&message)),
        Piece::End(error) => end_frame(error.as_ref()),
    }
}

fn end_frame(error: Option<&RpcError>) -> Bytes {
    let payload = match error {
        Some(error) => serde_json::json!({ "error": error }).to_string(),
        None => "{}".to_owned(),
    };
    frame(FLAG_END, payload.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_are_read_as_they_come() {
        let whole = [frame(0, b"one"), frame(0, b""), frame(FLAG_END, b"{}")].concat();
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            let mut seen = Vec::new();
            while let Some(frame) = take_frame(&mut buffer).unwrap() {
                seen.push(frame);
            }
            buffer.extend_from_slice(&whole[cut..]);
            while let Some(frame) = take_frame(&mut buffer).unwrap() {
                seen.push(frame);
            }
            assert_eq!(seen, [Some(Bytes::from_static(b"one")), Some(Bytes::new()), None], "cut at {cut}");
        }
    }

    #[test]
    fn what_is_compressed_or_too_long_is_refused() {
        let mut compressed = BytesMut::from(&frame(FLAG_COMPRESSED, b"x")[..]);
        assert_eq!(take_frame(&mut compressed).unwrap_err().code, Code::Unimplemented);
        let mut long = BytesMut::from(&[0, 0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(take_frame(&mut long).unwrap_err().code, Code::ResourceExhausted);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_frame(&mut buffer) {}
        }
    }
}
