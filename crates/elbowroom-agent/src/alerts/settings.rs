//! `[alerts]` and `[[receivers]]` of the configuration: where alerts go, and how often.

use crate::http_client::shown_address;
use anyhow::{Context, Result, bail, ensure};
use elbowroom_govern::alert::outbox::NotificationLimit;
use elbowroom_types::alert::{Alert, AlertKind};
use elbowroom_types::finding::Severity;
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::path::Path;
use ureq::http::Uri;

/// Most receivers: each has a thread of its own.
const MAX_RECEIVERS: usize = 16;

/// How often people are told, and by what besides receivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertSettings {
    /// An addressee is told of the same condition at most once in this time.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub quiet: Micros,
    /// An addressee is told of at most this many conditions in that time, the worst first.
    pub burst: usize,
    /// Entries with fields in systemd's journal, besides the log.
    pub journald: bool,
}

impl Default for AlertSettings {
    fn default() -> Self {
        let NotificationLimit { quiet, burst } = NotificationLimit::default();
        Self { quiet, burst, journald: false }
    }
}

impl AlertSettings {
    /// As an outbox has it.
    pub(crate) const fn outbox_rule(&self) -> NotificationLimit {
        NotificationLimit { quiet: self.quiet, burst: self.burst }
    }

    /// Refuses what would tell no addressee anything.
    pub(crate) fn validate(&self) -> Result<()> {
        ensure!(
            (Micros::secs(1)..=Micros::secs(86_400)).contains(&self.quiet),
            "alerts.quiet: \"{}\" is not between \"1s\" and \"1d\"",
            self.quiet
        );
        ensure!(
            (1..=10_000).contains(&self.burst),
            "alerts.burst: {} is not between 1 and 10000: with 0 an addressee would hear of no alert",
            self.burst
        );
        Ok(())
    }
}

/// What a webhook is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookFormat {
    /// One alert, as a program gets it.
    #[default]
    Elbowroom,
    /// All alerts that last, as Prometheus posts them to `POST /api/v2/alerts` of an Alertmanager.
    Alertmanager,
}

/// One entry: a program to start, or an address to post to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiverSettings {
    /// Program and arguments; the alert is JSON on its standard input, and words in its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
    /// `http://` or `https://` address that the same JSON is posted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// What the address is posted.
    #[serde(skip_serializing_if = "is_default")]
    pub format: WebhookFormat,
    /// Only these kinds; empty for all.
    pub kinds: Vec<AlertKind>,
    /// Only what is at least so bad.
    pub severity: Severity,
    /// How often an Alertmanager is told again of what lasts; it forgets what it has not heard of for four times as long.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub resend: Micros,
    /// Where a person who is told can look, for example the dashboard: Alertmanager's `generatorURL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// How long a program may run, or an answer may take.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub timeout: Micros,
}

impl Default for ReceiverSettings {
    fn default() -> Self {
        Self {
            exec: Vec::new(),
            webhook: None,
            format: WebhookFormat::default(),
            kinds: Vec::new(),
            severity: Severity::Info,
            resend: Micros::secs(60),
            link: None,
            timeout: Micros::secs(10),
        }
    }
}

fn is_default(format: &WebhookFormat) -> bool {
    *format == WebhookFormat::default()
}

impl ReceiverSettings {
    /// Whether it is to be told of an alert.
    pub(crate) fn accepts(&self, alert: &Alert) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&alert.kind)) && alert.severity >= self.severity
    }

    /// What it is called in logs and metrics: the program, or the address without what may be secret in it.
    pub fn name(&self) -> String {
        match (&self.exec[..], &self.webhook) {
            ([program, ..], _) => program.clone(),
            (_, Some(url)) => shown_address(url),
            _ => String::new(),
        }
    }
}

/// Refuses receivers that can never work.
pub(crate) fn validate(receivers: &[ReceiverSettings]) -> Result<()> {
    ensure!(
        receivers.len() <= MAX_RECEIVERS,
        "receivers: {} of them: at most {MAX_RECEIVERS}",
        receivers.len()
    );
    for (n, receiver) in receivers.iter().enumerate() {
        validate_one(receiver).with_context(|| format!("receivers, entry {}", n + 1))?;
    }
    Ok(())
}

fn validate_one(receiver: &ReceiverSettings) -> Result<()> {
    ensure!(
        receiver.timeout >= Micros::millis(100),
        "timeout: \"{}\" is too short: at least \"100ms\"",
        receiver.timeout
    );
    ensure!(
        receiver.resend >= Micros::secs(1),
        "resend: \"{}\" is too short: at least \"1s\"",
        receiver.resend
    );
    match (&receiver.exec[..], &receiver.webhook) {
        ([program, ..], None) => {
            ensure!(
                receiver.format == WebhookFormat::Elbowroom,
                "format: only what is posted has one: give webhook"
            );
            ensure!(
                Path::new(program).is_absolute(),
                "exec: {program:?} is no absolute path: write for example [\"/usr/local/bin/scale-disk\"]"
            );
        }
        ([], Some(url)) => {
            let uri: Uri = url.parse().map_err(|e| anyhow::anyhow!("webhook: not an address: {e}"))?;
            ensure!(
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some(),
                "webhook: write an address that begins with http:// or https://"
            );
        }
        ([], None) => bail!("it has neither exec nor webhook: give one of them"),
        (_, Some(_)) => bail!("both exec and webhook: make two entries of it"),
    }
    Ok(())
}
