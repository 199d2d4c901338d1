//! `[[hooks]]` of the configuration: who is told of alerts.

use anyhow::{Context, Result, bail, ensure};
use elbowroom_core::govern::alert::Kind;
use elbowroom_core::unit::Micros;
use serde::{Deserialize, Serialize};
use std::path::Path;
use ureq::http::Uri;

/// Most hooks: each has a thread of its own.
const MOST: usize = 16;

/// One entry: a program to start, or an address to post to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Hook {
    /// Program and arguments; the alert is JSON on its standard input, and words in its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) exec: Vec<String>,
    /// `http://` or `https://` address that the same JSON is posted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) webhook: Option<String>,
    /// Only these kinds; empty for all.
    pub(crate) kinds: Vec<Kind>,
    /// How long a program may run, or an answer may take.
    #[serde(with = "elbowroom_core::unit::duration")]
    pub(crate) timeout: Micros,
}

impl Default for Hook {
    fn default() -> Self {
        Self { exec: Vec::new(), webhook: None, kinds: Vec::new(), timeout: Micros::secs(10) }
    }
}

impl Hook {
    /// What it is called in logs and metrics: the program, or the address without what may be secret in it.
    pub(crate) fn name(&self) -> String {
        match (&self.exec[..], &self.webhook) {
            ([program, ..], _) => program.clone(),
            (_, Some(url)) => {
                let uri: Option<Uri> = url.parse().ok();
                uri.as_ref()
                    .and_then(|uri| Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?.host())))
                    .unwrap_or_default()
            }
            _ => String::new(),
        }
    }
}

/// Refuses hooks that can never work.
pub(crate) fn validate(hooks: &[Hook]) -> Result<()> {
    ensure!(hooks.len() <= MOST, "hooks: {} of them: at most {MOST}", hooks.len());
    for (n, hook) in hooks.iter().enumerate() {
        validate_one(hook).with_context(|| format!("hooks, entry {}", n + 1))?;
    }
    Ok(())
}

fn validate_one(hook: &Hook) -> Result<()> {
    ensure!(
        hook.timeout >= Micros::millis(100),
        "timeout: \"{}\" is too short: at least \"100ms\"",
        hook.timeout
    );
    match (&hook.exec[..], &hook.webhook) {
        ([program, ..], None) => {
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
        ([], None) => bail!("it says neither what to start nor where to post: give exec or webhook"),
        (_, Some(_)) => bail!("both exec and webhook: make two entries of it"),
    }
    Ok(())
}
