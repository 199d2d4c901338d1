//! `[otlp]` of the configuration: where metrics are pushed, and how often.

use anyhow::{Context, Result, anyhow, ensure};
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use ureq::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use ureq::http::{HeaderName, HeaderValue, Uri};

/// Where a collector takes metrics (OTLP specification, "OTLP/HTTP request").
const METRICS_PATH: &str = "/v1/metrics";

/// Whether and where metrics are pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSettings {
    /// `http://` or `https://` address of a collector, with or without `/v1/metrics`. Without one nothing is pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Time between two pushes.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub interval: Micros,
    /// Sent with each push, for example `authorization`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self { endpoint: None, interval: Micros::secs(15), headers: BTreeMap::new() }
    }
}

impl OtlpSettings {
    /// The address that is posted to.
    pub(super) fn url(&self) -> Option<String> {
        self.endpoint.as_deref().map(|endpoint| match endpoint.trim_end_matches('/') {
            full if full.ends_with(METRICS_PATH) => full.to_owned(),
            base => format!("{base}{METRICS_PATH}"),
        })
    }

    /// Refuses what can never be pushed. Errors show no address and no value of a header: both may be secret.
    pub(crate) fn validate(&self) -> Result<()> {
        ensure!(
            (Micros::secs(1)..=Micros::secs(3_600)).contains(&self.interval),
            "otlp.interval: \"{}\" is not between \"1s\" and \"1h\"",
            self.interval
        );
        if let Some(endpoint) = &self.endpoint {
            let uri: Option<Uri> = endpoint.parse().ok();
            ensure!(
                uri.is_some_and(|uri| is_collector(&uri)),
                "otlp.endpoint: write for example \"http://127.0.0.1:4318\": http:// or https://, host, port and path; what is secret \
                 belongs into otlp.headers"
            );
        }
        ensure!(
            self.endpoint.is_some() || self.headers.is_empty(),
            "otlp.headers: nothing is pushed: set otlp.endpoint too"
        );
        self.headers.iter().try_for_each(|(name, value)| validate_header(name, value)).context("otlp.headers")
    }
}

fn is_collector(uri: &Uri) -> bool {
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && !has_user
        && uri.query().is_none()
}

fn validate_header(name: &str, value: &str) -> Result<()> {
    let header: HeaderName = name.parse().map_err(|_| anyhow!("{name:?} is no name of a header"))?;
    ensure!(
        ![CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING].contains(&header),
        "{name} is the agent's to set: remove it"
    );
    let is_value = value.parse::<HeaderValue>().is_ok();
    ensure!(is_value, "the value of {name} has characters that no header may have, such as a newline");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_with_or_without_its_path() {
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/metrics"),
            ("https://a/api/v1/otlp", "https://a/api/v1/otlp/v1/metrics"),
            ("https://a/opentelemetry/v1/metrics", "https://a/opentelemetry/v1/metrics"),
        ] {
            let settings = OtlpSettings { endpoint: Some(endpoint.into()), ..OtlpSettings::default() };
            settings.validate().unwrap();
            assert_eq!(settings.url().as_deref(), Some(url));
        }
    }

    #[test]
    fn an_error_shows_no_secret() {
        for (endpoint, value) in
            [("http://user:secret@a", "b"), ("http://a?secret", "b"), ("http://a", "secret\n")]
        {
            let headers = BTreeMap::from([("authorization".to_owned(), value.to_owned())]);
            let settings =
                OtlpSettings { endpoint: Some(endpoint.into()), headers, ..OtlpSettings::default() };
            let error = format!("{:#}", settings.validate().unwrap_err());
            assert!(
                !error.contains("secret\n") && !error.contains("secret@") && !error.contains("?secret"),
                "{error}"
            );
        }
    }
}
