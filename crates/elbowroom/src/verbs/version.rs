//! `elbowroom version`: this program, and the agent that runs.

use anyhow::Result;
use elbowroom_client::api::{ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{OutputArgs, is_permission_denied};
use serde::Serialize;
use std::path::Path;
use std::sync::LazyLock;

/// What `-V` says, and `--version` before the features. A release names the commit that it was made from (`packaging/release`).
pub(crate) const VERSION: &str = match option_env!("ELBOWROOM_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

/// What this program was built with; each is a feature of Cargo.
const FEATURES: &[(&str, bool)] = &[
    ("bpf", cfg!(feature = "bpf")),
    ("bpf-static", cfg!(feature = "bpf-static")),
    ("dashboard", cfg!(feature = "dashboard")),
];

#[derive(Serialize)]
struct VersionOutput {
    version: &'static str,
    /// The commit that a release was made from; absent in a build by hand.
    commit: Option<&'static str>,
    features: Vec<&'static str>,
    target: String,
    /// The version of the agent that answers; absent where none does, or only root may ask it.
    agent: Option<String>,
}

/// The commit of a version that names one: `0.1.0 (0123456789ab)`.
fn commit(version: &'static str) -> Option<&'static str> {
    version.split_once('(')?.1.strip_suffix(')')
}

/// The features that this program was built with.
fn features() -> Vec<&'static str> {
    FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}

/// What `--version` says after the name: version, commit and features, `0.1.0 (0123456789ab), features: bpf-static dashboard`.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{VERSION}, features: {}", joined(&features())));
    &TEXT
}

/// Features with a space between two.
fn joined(features: &[&str]) -> String {
    if features.is_empty() { "none".to_owned() } else { features.join(" ") }
}

/// Why no agent's version is known.
fn no_agent<T>(asked: &Result<T>) -> &'static str {
    match asked {
        Err(error) if is_permission_denied(error) => "not known: only root may ask",
        _ => "none answers",
    }
}

/// `elbowroom version`.
pub(crate) fn version(run_dir: &Path, output: OutputArgs) -> Result<String> {
    let agent =
        ControlClient::connect(run_dir).and_then(|mut client| client.request(&ControlRequest::Status));
    let answer = VersionOutput {
        version: env!("CARGO_PKG_VERSION"),
        commit: commit(VERSION),
        features: features(),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        agent: match &agent {
            Ok(ControlResponse::Status(status)) => Some(status.version.clone()),
            _ => None,
        },
    };
    output.answer(&answer, || {
        format!(
            "elbowroom {}\ncommit     {}\nfeatures   {}\ntarget     {}\nagent      {}\n",
            answer.version,
            answer.commit.unwrap_or("unknown: not built by packaging/release"),
            joined(&answer.features),
            answer.target,
            answer.agent.as_deref().unwrap_or_else(|| no_agent(&agent))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_may_not_be_asked_is_not_called_silent() {
        let failed = |kind: std::io::ErrorKind| no_agent::<()>(&Err(std::io::Error::from(kind).into()));
        assert_eq!(failed(std::io::ErrorKind::PermissionDenied), "not known: only root may ask");
        assert_eq!(failed(std::io::ErrorKind::ConnectionRefused), "none answers");
    }

    #[test]
    fn a_release_names_its_commit() {
        assert_eq!(commit("0.1.0 (0123456789ab)"), Some("0123456789ab"));
        assert_eq!(commit("0.1.0"), None);
    }
}
