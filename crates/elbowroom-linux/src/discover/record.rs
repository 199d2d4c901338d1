//! What an engine's files say of a container, whichever engine it is, and how that becomes a container.

use super::paths::is_id;
use super::state_file::StateStamp;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity, MAX_NAME_LEN, Pod};
use elbowroom_types::label::{self, ContainerLabels, LabelPolicy};
use elbowroom_types::visible::is_hidden;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;

/// A container that was found, and the file its names came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    /// The container.
    pub container: ContainerIdentity,
    /// The engine's state file about it, with the instant of its last change: a rename changes it.
    pub state: Option<(PathBuf, StateStamp)>,
}

/// What an engine's files say.
#[derive(Default)]
pub(super) struct EngineRecord {
    pub(super) name: Option<String>,
    pub(super) pod: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) sandbox: bool,
    pub(super) labels: ContainerLabels,
    pub(super) state: Option<(PathBuf, StateStamp)>,
}

impl EngineRecord {
    /// Of an engine that knows its containers by name, and keeps no labels.
    pub(super) fn named(name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::default() }
    }

    pub(super) fn into_found(
        self,
        engine: ContainerEngine,
        id: &str,
        uid: Option<String>,
    ) -> Option<FoundContainer> {
        if self.sandbox {
            return None;
        }
        let tidy = |text: Option<String>| text.and_then(|t| printable(&t, MAX_NAME_LEN));
        let pod = uid.or(self.uid.filter(|uid| is_id(uid))).map(|uid| Pod {
            uid,
            name: tidy(self.pod),
            namespace: tidy(self.namespace),
        });
        let container =
            ContainerIdentity { id: id.to_owned(), name: tidy(self.name), engine, pod, labels: self.labels };
        Some(FoundContainer { container, state: self.state })
    }
}

/// Labels as an engine keeps them, read by `policy`.
pub(super) fn parse_labels(labels: &HashMap<String, String>, policy: LabelPolicy) -> ContainerLabels {
    ContainerLabels::parse(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), policy)
}

/// The same of the container `name` of a pod, whose annotations the engine has put among its own: what is for another is left out.
pub(super) fn parse_pod_labels(
    labels: &HashMap<String, String>,
    name: Option<&str>,
    policy: LabelPolicy,
) -> ContainerLabels {
    let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    ContainerLabels::parse(label::for_container(labels, name.unwrap_or_default(), |_| true), policy)
}

/// The part of an OCI bundle's `config.json` that names things.
#[derive(Deserialize)]
pub(super) struct OciBundleConfig {
    #[serde(default)]
    pub(super) annotations: HashMap<String, String>,
}

/// `text` fit to print: characters that do not show ([`is_hidden`]) become U+FFFD, and it ends after `longest` characters.
pub(super) fn printable(text: &str, longest: usize) -> Option<String> {
    let text: String =
        text.chars().take(longest).map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect();
    (!text.is_empty()).then_some(text)
}
