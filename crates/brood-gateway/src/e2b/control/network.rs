//! Network rules: from the clients' form to the engine's.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use brood_sandbox::model::{NetworkAccess, NetworkRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Input;
use super::lifecycle::find;
use crate::e2b::E2bState;
use crate::e2b::failure::{Failure, blocking};

/// Everything, as the clients write it.
const ALL_V4: &str = "0.0.0.0/0";
const ALL_V6: &str = "::/0";
/// Most rules in a list: each is compiled into the packet filter.
const RULES_MAX: usize = 1024;

/// The rules as clients give them, with create and with update.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Rules {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) egress_proxy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) https_ports: Option<Vec<u16>>,
    #[serde(rename = "allow_internet_access", skip_serializing)]
    pub(super) allow_internet_access: Option<bool>,
}

impl Rules {
    /// What the engine is asked for. `internet` is the simple switch beside the rules.
    pub(super) fn request(&self, internet: Option<bool>) -> Result<NetworkRequest, Failure> {
        self.refuse_unsupported()?;
        let allow = self.allow_out.clone().unwrap_or_default();
        let mut deny = self.deny_out.clone().unwrap_or_default();
        if allow.len() > RULES_MAX || deny.len() > RULES_MAX {
            return Err(Failure::invalid(format!("at most {RULES_MAX} rules of a kind")));
        }
        if let Some(name) = deny.iter().find(|rule| is_name(rule)) {
            return Err(Failure::invalid(format!("denyOut takes addresses and ranges, and {name:?} is neither")));
        }
        let everything = |rule: &String| rule == ALL_V4 || rule == ALL_V6;
        let closed = internet == Some(false) || deny.iter().any(everything);
        deny.retain(|rule| !everything(rule));
        let open = !closed || allow.iter().any(everything);
        if open {
            return Ok(NetworkRequest {
                access: NetworkAccess::All,
                allow: plain(allow),
                deny,
                ..NetworkRequest::default()
            });
        }
        Ok(NetworkRequest { access: NetworkAccess::None, allow: plain(allow), deny, ..NetworkRequest::default() })
    }

    /// What would be wrong to accept and then not do.
    fn refuse_unsupported(&self) -> Result<(), Failure> {
        let given = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()))
        };
        let refuse = |what: &str| Err(Failure::invalid(format!("network.{what} is not supported by this server")));
        if given(&self.rules) {
            return refuse("rules");
        }
        if given(&self.egress_proxy) {
            return refuse("egressProxy");
        }
        if self.dns_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
            return refuse("dnsServers");
        }
        Ok(())
    }
}

/// Rules without those that stand for everything, which the engine has a word for.
fn plain(rules: Vec<String>) -> Vec<String> {
    rules.into_iter().filter(|rule| rule != ALL_V4 && rule != ALL_V6).collect()
}

fn is_name(rule: &str) -> bool {
    rule.contains(|c: char| c.is_ascii_alphabetic()) && !rule.contains(':')
}

/// `PUT /sandboxes/{id}/network`: the new rules replace all earlier ones.
pub(super) async fn replace(
    State(state): State<E2bState>,
    Path(id): Path<String>,
    Input(rules): Input<Rules>,
) -> Result<StatusCode, Failure> {
    let request = rules.request(rules.allow_internet_access)?;
    let sandbox = find(&state, &id)?;
    let changed = std::sync::Arc::clone(&sandbox);
    blocking(move || changed.set_network(request)).await?;
    state.records().change(&sandbox, |record| {
        record.internet_access = rules.allow_internet_access;
        record.network = serde_json::to_value(&rules).ok();
    });
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        let texts = |rules: &[&str]| Some(rules.iter().map(|&rule| rule.to_owned()).collect());
        Rules { allow_out: texts(allow), deny_out: texts(deny), ..Rules::default() }
    }

    #[test]
    fn rules_become_the_engines() {
        let none = Rules::default().request(None).unwrap();
        assert_eq!(none.access, NetworkAccess::All);
        assert_eq!(Rules::default().request(Some(false)).unwrap().access, NetworkAccess::None);
        let some = rules(&["example.com", "1.1.1.1"], &["0.0.0.0/0"]).request(None).unwrap();
        assert_eq!((some.access, some.allow.len(), some.deny.len()), (NetworkAccess::None, 2, 0));
        let most = rules(&[], &["10.0.0.0/8"]).request(None).unwrap();
        assert_eq!((most.access, most.deny.len()), (NetworkAccess::All, 1));
        let again = rules(&["0.0.0.0/0"], &["0.0.0.0/0"]).request(None).unwrap();
        assert_eq!((again.access, again.allow.len()), (NetworkAccess::All, 0));
    }

    #[test]
    fn what_is_not_done_is_refused() {
        rules(&[], &["example.com"]).request(None).unwrap_err();
        let proxied = Rules { egress_proxy: Some(serde_json::json!({ "address": "a:1" })), ..Rules::default() };
        proxied.request(None).unwrap_err();
        let transformed = Rules { rules: Some(serde_json::json!({ "a.com": [] })), ..Rules::default() };
        transformed.request(None).unwrap_err();
        let empty = Rules { rules: Some(serde_json::json!({})), egress_proxy: Some(Value::Null), ..Rules::default() };
        empty.request(None).unwrap();
    }
}
