//! A page of metrics.

use super::ProbeProblem;
use crate::probes::settings::{LOCALHOST, ProbeSettings};
use elbowroom_types::probe::ProbeRecord;
use std::time::Duration;

/// Longest page: exporters' are tens of kilobytes, those of big programs a few megabytes.
const MAX_PAGE_BYTES: u64 = 8 << 20;

/// Asks in the network namespace of the thread that uses it. It follows no redirect, and keeps no connection.
pub(super) fn http_agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .user_agent(concat!("elbowroom/", env!("CARGO_PKG_VERSION")))
        .max_redirects(0)
        .max_idle_connections(0)
        .proxy(None)
        .build()
        .into()
}

pub(super) fn poll(
    agent: &ureq::Agent,
    url: &str,
    probe: &ProbeSettings,
) -> Result<ProbeRecord, ProbeProblem> {
    let url = match url.strip_prefix("http://").and_then(|rest| rest.strip_prefix(LOCALHOST)) {
        Some(rest) => format!("http://127.0.0.1{rest}"),
        None => url.to_owned(),
    };
    let timeout = Some(Duration::from_micros(probe.timeout.get()));
    let mut answer =
        agent.get(url).config().timeout_global(timeout).build().call().map_err(|e| e.to_string())?;
    let bytes =
        answer.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_vec().map_err(|e| e.to_string())?;
    let base = ProbeRecord { kind: probe.kind, ..ProbeRecord::default() };
    probe.metrics.record(&String::from_utf8_lossy(&bytes), base).map_err(|e| e.to_string())
}
