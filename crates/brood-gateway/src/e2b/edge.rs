//! What is done for every request: an id, a line in the access log, a count; and the bound on how
//! often a key may ask.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::E2bState;
use super::tokens::random_hex;

/// Header of the id, which a client may choose.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Requests to the control plane that a key may send at once, and how many more each second: far
/// above what a fleet of agents needs, far below what would keep others from being served.
const BURST: f64 = 400.0;
const REQUESTS_PER_S: f64 = 200.0;

/// Where a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plane {
    Control,
    Envd,
    Interpreter,
    Port,
}

const PLANES: [(Plane, &str); 4] =
    [(Plane::Control, "control"), (Plane::Envd, "envd"), (Plane::Interpreter, "interpreter"), (Plane::Port, "port")];
/// Classes of status codes, 1xx to 5xx.
const CLASSES: usize = 5;

/// Counts of requests since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    answered: [[AtomicU64; CLASSES]; PLANES.len()],
    head_us: [AtomicU64; PLANES.len()],
    buckets: Mutex<HashMap<String, Bucket>>,
}

/// What a key may still send.
#[derive(Debug)]
struct Bucket {
    left: f64,
    seen: Instant,
}

impl Counts {
    fn count(&self, plane: Plane, status: StatusCode, took: Duration) {
        let of_plane = PLANES.iter().position(|(known, _)| *known == plane).unwrap_or(0);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.answered[of_plane][class].fetch_add(1, Ordering::Relaxed);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.head_us[of_plane].fetch_add(took_us, Ordering::Relaxed);
    }

    /// Takes one request off what the key may send.
    pub(super) fn may_send(&self, key: &str) -> bool {
        let now = Instant::now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let full = || Bucket { left: BURST, seen: now };
        let bucket = buckets.entry(key.to_owned()).or_insert_with(full);
        bucket.left = (bucket.left + now.duration_since(bucket.seen).as_secs_f64() * REQUESTS_PER_S).min(BURST);
        bucket.seen = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    /// All counts in the text form of Prometheus.
    pub(super) fn text(&self, state: &E2bState) -> String {
        let mut text = String::new();
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            text.push_str(&std::fmt::format(arguments));
            text.push('\n');
        };
        line(format_args!("# HELP brood_gateway_requests_total Requests answered, by plane and class of status."));
        line(format_args!("# TYPE brood_gateway_requests_total counter"));
        for (at, (_, plane)) in PLANES.iter().enumerate() {
            for class in 0..CLASSES {
                let count = self.answered[at][class].load(Ordering::Relaxed);
                let class = class + 1;
                line(format_args!("brood_gateway_requests_total{{plane=\"{plane}\",status=\"{class}xx\"}} {count}"));
            }
        }
        line(format_args!("# HELP brood_gateway_head_seconds_total Time until the head of the answer was there."));
        line(format_args!("# TYPE brood_gateway_head_seconds_total counter"));
        for (at, (_, plane)) in PLANES.iter().enumerate() {
            let seconds = Duration::from_micros(self.head_us[at].load(Ordering::Relaxed)).as_secs_f64();
            line(format_args!("brood_gateway_head_seconds_total{{plane=\"{plane}\"}} {seconds}"));
        }
        line(format_args!("# HELP brood_sandboxes Sandboxes, by state."));
        line(format_args!("# TYPE brood_sandboxes gauge"));
        line(format_args!("brood_sandboxes{{state=\"running\"}} {}", state.engine().sandboxes().len()));
        line(format_args!("brood_sandboxes{{state=\"paused\"}} {}", state.engine().paused().len()));
        text
    }
}

/// A request while it is being answered.
#[derive(Debug)]
pub(super) struct Seen {
    id: String,
    method: axum::http::Method,
    path: String,
    started: Instant,
}

impl Seen {
    pub(super) fn of(request: &axum::extract::Request) -> Self {
        let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let given = given.filter(|id| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()));
        Self {
            id: given.map_or_else(|| random_hex(16), str::to_owned),
            method: request.method().clone(),
            // Never the query, which may hold signatures and tokens.
            path: request.uri().path().chars().take(200).collect(),
            started: Instant::now(),
        }
    }

    /// To be called when the answer's head is there.
    pub(super) fn answered(self, state: &E2bState, plane: Plane, status: StatusCode, headers: &mut HeaderMap) {
        let took = self.started.elapsed();
        state.counts().count(plane, status, took);
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert(REQUEST_ID, id);
        }
        let (plane, took_us) =
            (PLANES.iter().find(|(known, _)| *known == plane).map_or("", |(_, name)| name), took.as_micros());
        tracing::info!(target: "brood_gateway::access", id = self.id, method = %self.method, path = self.path, plane, status = status.as_u16(), took_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_asks_too_often_is_held_back_alone() {
        let counts = Counts::default();
        let sent = (0..1000).filter(|_| counts.may_send("eager")).count();
        assert!((400..900).contains(&sent), "{sent}");
        assert!(counts.may_send("other"));
    }
}
