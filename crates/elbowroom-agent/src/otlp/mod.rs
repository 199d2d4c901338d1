//! Pushes what `/metrics` says to a collector, by OTLP over HTTP.
//!
//! Problem: a collector may be away, slow, or overloaded, and a node must not notice.
//!
//! Approach: a thread of the policy process asks the owner for a snapshot, as the black box does, and posts it. A push that fails is
//! forgotten, for the next one carries all values again. So there is one request at a time, no queue and no retry; an answer is read
//! within time and size (`docs/decisions/0049-otlp.md`).

mod encode;
pub(crate) mod settings;

use crate::http_client::{self, shown_address};
use anyhow::Result;
use elbowroom_client::api::{AgentSnapshot, OtlpStatus};
use elbowroom_client::metrics::metrics_page;
use elbowroom_client::output::one_line;
use elbowroom_linux::{bounded, timer};
use encode::PushOrigin;
use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use settings::OtlpSettings;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::http::StatusCode;
use ureq::http::header::RETRY_AFTER;

/// How long a push may take.
const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest pause that a collector may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// The most bytes of an answer: it is empty, or one sentence.
const MAX_ANSWER: u64 = 64 << 10;
/// Most characters of that sentence that are told.
const MAX_REASON: usize = 200;

/// `google.rpc.Status`, the body of a refusal, which `opentelemetry-proto` does not have.
#[derive(Clone, PartialEq, Message)]
struct PushRefusal {
    #[prost(string, tag = "2")]
    message: String,
}

/// Why a collector did not take a push.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("{0}")]
    NoAnswer(#[from] ureq::Error),
    #[error("its answer: {0}")]
    Answer(#[from] std::io::Error),
    #[error("it answered {status}{}", reason_suffix(reason))]
    Refused { status: StatusCode, reason: String, retry_after: Option<Duration> },
    #[error("it dropped {points} of the values{}", reason_suffix(reason))]
    Partial { points: i64, reason: String },
}

/// What became of pushes, for the owner to tell.
pub(crate) struct PushCounts {
    collector: String,
    pushed: AtomicU64,
    failed: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl PushCounts {
    /// As the API tells it.
    pub(crate) fn status(&self) -> OtlpStatus {
        OtlpStatus {
            collector: self.collector.clone(),
            pushed: self.pushed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            problem: self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Counts a push, and logs the first that fails and the first that works again.
    fn record(&self, problem: Option<String>) {
        let count = if problem.is_none() { &self.pushed } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let mut last = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*last, &problem) {
            (None, Some(because)) => {
                tracing::warn!(collector = self.collector, because, "metrics are not pushed; trying again");
            }
            (Some(_), None) => tracing::info!(collector = self.collector, "metrics are pushed again"),
            _ => {}
        }
        *last = problem;
    }
}

/// Starts the thread, where the configuration has an endpoint.
pub(crate) fn spawn(
    settings: &OtlpSettings,
    snapshot: impl Fn() -> Result<AgentSnapshot> + Send + 'static,
) -> Option<Arc<PushCounts>> {
    let url = settings.url()?;
    let counts = Arc::new(PushCounts {
        collector: shown_address(&url),
        pushed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        problem: Mutex::new(None),
    });
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let origin = PushOrigin { host, started_unix_ms: timer::unix_ms() };
    let (settings, told) = (settings.clone(), counts.clone());
    std::thread::Builder::new()
        .name("otlp".into())
        .spawn(move || {
            let interval = Duration::from_micros(settings.interval.get());
            loop {
                let began = Instant::now();
                let outcome = snapshot().and_then(|snapshot| {
                    let families = metrics_page(&snapshot).families();
                    let body = compress(&origin.request(families, timer::unix_ms()).encode_to_vec());
                    Ok(push(&url, &settings, &body)?)
                });
                let asked = outcome.as_ref().err().and_then(asked_pause).unwrap_or_default();
                told.record(outcome.err().map(|error| one_line(&error)));
                std::thread::sleep(interval.saturating_sub(began.elapsed()).max(asked));
            }
        })
        .expect("threads can be created at start");
    Some(counts)
}

/// Posts one request.
fn push(url: &str, settings: &OtlpSettings, body: &[u8]) -> Result<(), PushError> {
    const FORMAT: [(&str, &str); 2] =
        [("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
    let headers = settings.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut answer = http_client::post(url, FORMAT.into_iter().chain(headers), body, PUSH_TIMEOUT)?;
    let (status, retry_after) = (answer.status(), answer.headers().get(RETRY_AFTER));
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let said = bounded::bytes(answer.body_mut().as_reader(), MAX_ANSWER)?;
    if !status.is_success() {
        let reason = PushRefusal::decode(&said[..]).map(|refusal| refusal.message).unwrap_or_default();
        let retry_after = retry_after.map(Duration::from_secs);
        return Err(PushError::Refused { status, reason: shorten(&reason), retry_after });
    }
    let partial =
        ExportMetricsServiceResponse::decode(&said[..]).ok().and_then(|response| response.partial_success);
    match partial {
        Some(partial) if partial.rejected_data_points > 0 => Err(PushError::Partial {
            points: partial.rejected_data_points,
            reason: shorten(&partial.error_message),
        }),
        _ => Ok(()),
    }
}

/// The pause that a collector asks for, within bounds.
fn asked_pause(error: &anyhow::Error) -> Option<Duration> {
    match error.downcast_ref() {
        Some(PushError::Refused { retry_after, .. }) => retry_after.map(|asked| asked.min(MAX_RETRY_AFTER)),
        _ => None,
    }
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).expect("writing to memory does not fail");
    gzip.finish().expect("writing to memory does not fail")
}

fn shorten(reason: &str) -> String {
    reason.chars().take(MAX_REASON).collect()
}

fn reason_suffix(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

#[cfg(test)]
mod tests;
