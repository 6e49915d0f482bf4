//! The messages of envd's services, in both forms: each struct is a protocol buffer and JSON. The
//! alternatives of a `oneof` are optional fields, which is the same on the wire.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::wire::{base64_bytes, event_type, file_type, is_default, number_as_text, signal};
use crate::e2b::time::rfc3339;

macro_rules! message {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub(super) struct $name { $($(#[$field_meta])* pub(super) $field: $kind,)* }
    )*};
}

message! {
    Empty {}
    Selector {
        #[prost(uint32, optional, tag = "1")]
        pid: Option<u32>,
        #[prost(string, optional, tag = "2")]
        tag: Option<String>,
    }
    Size {
        #[prost(uint32, tag = "1")]
        cols: u32,
        #[prost(uint32, tag = "2")]
        rows: u32,
    }
    Pty {
        #[prost(message, optional, tag = "1")]
        size: Option<Size>,
    }
    ProcessConfig {
        #[prost(string, tag = "1")]
        cmd: String,
        #[prost(string, repeated, tag = "2")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
        #[prost(map = "string, string", tag = "3")]
        #[serde(skip_serializing_if = "HashMap::is_empty")]
        envs: HashMap<String, String>,
        #[prost(string, optional, tag = "4")]
        #[serde(skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
    }
    ProcessInfo {
        #[prost(message, optional, tag = "1")]
        config: Option<ProcessConfig>,
        #[prost(uint32, tag = "2")]
        pid: u32,
        #[prost(string, optional, tag = "3")]
        #[serde(skip_serializing_if = "Option::is_none")]
        tag: Option<String>,
    }
    ListResponse {
        #[prost(message, repeated, tag = "1")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcessInfo>,
    }
    StartRequest {
        #[prost(message, optional, tag = "1")]
        process: Option<ProcessConfig>,
        #[prost(message, optional, tag = "2")]
        pty: Option<Pty>,
        #[prost(string, optional, tag = "3")]
        tag: Option<String>,
        /// Older clients, which do not send it, expect an open input.
        #[prost(bool, optional, tag = "4")]
        stdin: Option<bool>,
    }
    UpdateRequest {
        #[prost(message, optional, tag = "1")]
        process: Option<Selector>,
        #[prost(message, optional, tag = "2")]
        pty: Option<Pty>,
    }
    StartEvent {
        #[prost(uint32, tag = "1")]
        pid: u32,
    }
    DataEvent {
        #[prost(bytes = "bytes", optional, tag = "1")]
        #[serde(with = "base64_bytes", skip_serializing_if = "Option::is_none")]
        stdout: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "2")]
        #[serde(with = "base64_bytes", skip_serializing_if = "Option::is_none")]
        stderr: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "3")]
        #[serde(with = "base64_bytes", skip_serializing_if = "Option::is_none")]
        pty: Option<Bytes>,
    }
    EndEvent {
        #[prost(sint32, tag = "1")]
        #[serde(skip_serializing_if = "is_default")]
        exit_code: i32,
        #[prost(bool, tag = "2")]
        #[serde(skip_serializing_if = "is_default")]
        exited: bool,
        #[prost(string, tag = "3")]
        status: String,
        #[prost(string, optional, tag = "4")]
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }
    ProcessEvent {
        #[prost(message, optional, tag = "1")]
        #[serde(skip_serializing_if = "Option::is_none")]
        start: Option<StartEvent>,
        #[prost(message, optional, tag = "2")]
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<DataEvent>,
        #[prost(message, optional, tag = "3")]
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<EndEvent>,
        #[prost(message, optional, tag = "4")]
        #[serde(skip_serializing_if = "Option::is_none")]
        keepalive: Option<Empty>,
    }
    /// Answer of Start and of Connect.
    ProcessResponse {
        #[prost(message, optional, tag = "1")]
        event: Option<ProcessEvent>,
    }
    ProcessInput {
        #[prost(bytes = "bytes", optional, tag = "1")]
        #[serde(with = "base64_bytes")]
        stdin: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "2")]
        #[serde(with = "base64_bytes")]
        pty: Option<Bytes>,
    }
    SendInputRequest {
        #[prost(message, optional, tag = "1")]
        process: Option<Selector>,
        #[prost(message, optional, tag = "2")]
        input: Option<ProcessInput>,
    }
    StreamStart {
        #[prost(message, optional, tag = "1")]
        process: Option<Selector>,
    }
    StreamData {
        #[prost(message, optional, tag = "2")]
        input: Option<ProcessInput>,
    }
    StreamInputRequest {
        #[prost(message, optional, tag = "1")]
        start: Option<StreamStart>,
        #[prost(message, optional, tag = "2")]
        data: Option<StreamData>,
        #[prost(message, optional, tag = "3")]
        keepalive: Option<Empty>,
    }
    SendSignalRequest {
        #[prost(message, optional, tag = "1")]
        process: Option<Selector>,
        #[prost(int32, tag = "2")]
        #[serde(deserialize_with = "signal")]
        signal: i32,
    }
    /// Request of Connect and of CloseStdin.
    SelectRequest {
        #[prost(message, optional, tag = "1")]
        process: Option<Selector>,
    }
    /// Request of Stat, MakeDir and Remove.
    PathRequest {
        #[prost(string, tag = "1")]
        path: String,
    }
    MoveRequest {
        #[prost(string, tag = "1")]
        source: String,
        #[prost(string, tag = "2")]
        destination: String,
    }
    ListDirRequest {
        #[prost(string, tag = "1")]
        path: String,
        #[prost(uint32, tag = "2")]
        depth: u32,
    }
    /// Request of WatchDir and of CreateWatcher.
    WatchRequest {
        #[prost(string, tag = "1")]
        path: String,
        #[prost(bool, tag = "2")]
        recursive: bool,
        #[prost(bool, tag = "3")]
        #[serde(alias = "include_entry")]
        include_entry: bool,
    }
    /// Request of GetWatcherEvents and RemoveWatcher, answer of CreateWatcher.
    Watcher {
        #[prost(string, tag = "1")]
        #[serde(alias = "watcher_id")]
        watcher_id: String,
    }
}

/// A moment.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

impl Timestamp {
    pub(super) fn of(time_ms: i64) -> Self {
        // The remainder is below a thousand.
        Self { seconds: time_ms.div_euclid(1000), nanos: (time_ms.rem_euclid(1000) as i32) * 1_000_000 }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time_ms = self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos) / 1_000_000);
        serializer.serialize_str(&rfc3339(u64::try_from(time_ms).unwrap_or(0)))
    }
}

macro_rules! answer {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, prost::Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub(super) struct $name { $($(#[$field_meta])* pub(super) $field: $kind,)* }
    )*};
}

answer! {
    EntryInfo {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(int32, tag = "2")]
        #[serde(rename = "type", serialize_with = "file_type")]
        kind: i32,
        #[prost(string, tag = "3")]
        path: String,
        #[prost(int64, tag = "4")]
        #[serde(serialize_with = "number_as_text")]
        size: i64,
        #[prost(uint32, tag = "5")]
        mode: u32,
        #[prost(string, tag = "6")]
        permissions: String,
        #[prost(string, tag = "7")]
        owner: String,
        #[prost(string, tag = "8")]
        group: String,
        #[prost(message, optional, tag = "9")]
        modified_time: Option<Timestamp>,
        #[prost(string, optional, tag = "10")]
        #[serde(skip_serializing_if = "Option::is_none")]
        symlink_target: Option<String>,
        #[prost(map = "string, string", tag = "11")]
        #[serde(skip_serializing_if = "HashMap::is_empty")]
        metadata: HashMap<String, String>,
        #[prost(bool, tag = "12")]
        #[serde(skip_serializing_if = "is_default")]
        is_symlink: bool,
    }
    /// Answer of Stat, MakeDir and Move.
    EntryResponse {
        #[prost(message, optional, tag = "1")]
        entry: Option<EntryInfo>,
    }
    ListDirResponse {
        #[prost(message, repeated, tag = "1")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        entries: Vec<EntryInfo>,
    }
    FilesystemEvent {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(int32, tag = "2")]
        #[serde(rename = "type", serialize_with = "event_type")]
        kind: i32,
        #[prost(message, optional, tag = "3")]
        #[serde(skip_serializing_if = "Option::is_none")]
        entry: Option<EntryInfo>,
    }
    WatchDirResponse {
        #[prost(message, optional, tag = "1")]
        #[serde(skip_serializing_if = "Option::is_none")]
        start: Option<Empty>,
        #[prost(message, optional, tag = "2")]
        #[serde(skip_serializing_if = "Option::is_none")]
        filesystem: Option<FilesystemEvent>,
        #[prost(message, optional, tag = "3")]
        #[serde(skip_serializing_if = "Option::is_none")]
        keepalive: Option<Empty>,
    }
    WatcherEvents {
        #[prost(message, repeated, tag = "1")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        events: Vec<FilesystemEvent>,
    }
}
