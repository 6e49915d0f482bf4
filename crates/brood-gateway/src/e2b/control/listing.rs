//! Lists of sandboxes, with filters and pages, and one sandbox alone.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::Query;
use super::lifecycle::{find, find_paused};
use super::views::{Detail, Listed, State as Stands};
use crate::e2b::E2bState;
use crate::e2b::failure::Failure;
use crate::e2b::time::{parse_rfc3339, rfc3339};

/// Most entries on a page, and how many there are when the client does not say.
pub(super) const PAGE_MAX: usize = 100;
pub(super) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
const TOTAL_RUNNING: HeaderName = HeaderName::from_static("x-total-running");

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filters {
    metadata: Option<String>,
    state: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
}

/// `GET /v2/sandboxes`.
pub(super) async fn list(
    State(state): State<E2bState>,
    Query(filters): Query<Filters>,
) -> Result<(HeaderMap, Json<Vec<Listed>>), Failure> {
    let ascending = match filters.order.as_deref() {
        None | Some("desc" | "") => false,
        Some("asc") => true,
        Some(_) => return Err(Failure::invalid("order must be asc or desc")),
    };
    let mut found = matching(&state, &filters)?;
    let running = found.iter().filter(|listed| listed.state == Stands::Running).count();
    found.sort_by(|a, b| position(a).cmp(&position(b)));
    if !ascending {
        found.reverse();
    }
    let (page, next) = page(found, &filters, ascending)?;
    let mut headers = HeaderMap::new();
    headers.insert(TOTAL_RUNNING, HeaderValue::from(running));
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        headers.insert(NEXT_TOKEN, next);
    }
    Ok((headers, Json(page)))
}

/// `GET /sandboxes`, of older clients: all that run, without pages.
pub(super) async fn list_running(
    State(state): State<E2bState>,
    Query(filters): Query<Filters>,
) -> Result<Json<Vec<Listed>>, Failure> {
    let filters = Filters { state: Some("running".to_owned()), ..filters };
    let mut found = matching(&state, &filters)?;
    found.sort_by(|a, b| position(b).cmp(&position(a)));
    Ok(Json(found))
}

pub(super) async fn inspect(State(state): State<E2bState>, Path(id): Path<String>) -> Result<Json<Detail>, Failure> {
    match find(&state, &id) {
        Ok(sandbox) => Ok(Json(Detail::of_live(&state, &sandbox))),
        Err(failure) => Ok(Json(Detail::of_paused(&state, &find_paused(&state, &id).ok_or(failure)?))),
    }
}

fn matching(state: &E2bState, filters: &Filters) -> Result<Vec<Listed>, Failure> {
    let metadata = filters.metadata.as_deref().map(metadata_filter).unwrap_or_default();
    let states = states(filters.state.as_deref())?;
    let after = match filters.started_after.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(parse_rfc3339(text).ok_or_else(|| Failure::invalid("startedAfter is no RFC 3339 time"))?),
        None => None,
    };
    let live = state.engine().sandboxes();
    let paused = state.engine().paused();
    let all = live.iter().map(|sandbox| Listed::of_live(state, sandbox));
    let all = all.chain(paused.iter().map(|info| Listed::of_paused(state, info)));
    let fits = |listed: &Listed| {
        states.contains(&listed.state)
            && after.is_none_or(|after| listed.started_ms >= after)
            && filters.template.as_deref().is_none_or(|template| is_template(&listed.template_id, template))
            && metadata.iter().all(|(key, value)| listed.metadata.get(key) == Some(value))
    };
    Ok(all.filter(fits).collect())
}

/// Whether a sandbox's template is the one asked for, whatever its tag.
fn is_template(template: &str, asked: &str) -> bool {
    template == asked || template.split(':').next() == Some(asked)
}

fn states(text: Option<&str>) -> Result<Vec<Stands>, Failure> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(vec![Stands::Running, Stands::Paused]) };
    let state = |word: &str| match word {
        "running" => Ok(Stands::Running),
        "paused" => Ok(Stands::Paused),
        _ => Err(Failure::invalid("state must be running, paused or both with a comma between")),
    };
    text.split(',').map(state).collect()
}

/// The pairs that must match. The clients encode them twice more than a query does.
fn metadata_filter(text: &str) -> BTreeMap<String, String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy();
    form_urlencoded::parse(decoded.as_bytes())
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect()
}

fn position(listed: &Listed) -> (u64, &str) {
    (listed.started_ms, &listed.sandbox_id)
}

/// One page of what was found, and the cursor of the next one.
fn page(found: Vec<Listed>, filters: &Filters, ascending: bool) -> Result<(Vec<Listed>, Option<String>), Failure> {
    let limit = filters.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failure::invalid(format!("limit must be 1 to {PAGE_MAX}")));
    }
    let start = match filters.next_token.as_deref().filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => {
            let (time, id) = read_cursor(token).ok_or_else(|| Failure::invalid("nextToken is not valid"))?;
            let is_before = |listed: &Listed| {
                let order = position(listed).cmp(&(time, id.as_str()));
                if ascending { order.is_le() } else { order.is_ge() }
            };
            found.partition_point(is_before)
        }
    };
    let more = found.len() > start + limit;
    let page: Vec<Listed> = found.into_iter().skip(start).take(limit).collect();
    let next = page.last().filter(|_| more).map(|last| cursor(last.started_ms, &last.sandbox_id));
    Ok((page, next))
}

fn cursor(time_ms: u64, id: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}__{id}", rfc3339(time_ms)))
}

fn read_cursor(token: &str) -> Option<(u64, String)> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (time, id) = text.split_once("__")?;
    Some((parse_rfc3339(time)?, id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_as_often_as_it_was_encoded() {
        // What the query decoding leaves of `metadata=k%252520y%3Dv%252526%25253D1`.
        let filter = metadata_filter("k%2520y=v%2526%253D1");
        assert_eq!(filter, BTreeMap::from([("k y".to_owned(), "v&=1".to_owned())]));
        let filter = metadata_filter("a=1&b=x%2By");
        assert_eq!(filter["a"], "1");
        assert_eq!(filter.len(), 2);
        assert!(metadata_filter("").is_empty());
    }

    #[test]
    fn cursors_come_back() {
        let token = cursor(1_796_077_607_123, "abc");
        assert_eq!(read_cursor(&token), Some((1_796_077_607_123, "abc".to_owned())));
        for bad in ["", "x", "!!!", &URL_SAFE_NO_PAD.encode("no time__x")] {
            assert_eq!(read_cursor(bad), None, "{bad}");
        }
    }

    #[test]
    fn states_are_one_text() {
        assert_eq!(states(Some("running,paused")).unwrap().len(), 2);
        assert_eq!(states(None).unwrap().len(), 2);
        states(Some("dead")).unwrap_err();
    }
}
