//! Which container a cgroup is: its engine, identifier, name, pod and labels, and what it claims.

use crate::claim::Claim;
use crate::glob;
use crate::label::ContainerLabels;
use crate::lookup::{ContainerNames, short_id};
use serde::{Deserialize, Serialize};

/// The program that made a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ContainerEngine {
    /// dockerd.
    Docker,
    /// containerd: `ctr`, nerdctl, CRI.
    Containerd,
    /// Podman.
    Podman,
    /// CRI-O.
    Crio,
    /// LXC, and Incus and LXD, which start containers through it.
    Lxc,
    /// systemd-nspawn.
    Nspawn,
    /// `elbowroom run`.
    Elbowroom,
    /// A cgroup the configuration names.
    Plain,
}

/// Most characters of a name that are kept; longer ones are cut.
pub const MAX_NAME_LEN: usize = 128;

/// A container, as far as files tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerIdentity {
    /// The engine's full identifier; the path for a plain cgroup.
    pub id: String,
    /// The name people use, where the engine keeps one.
    pub name: Option<String>,
    /// The engine that made it.
    pub engine: ContainerEngine,
    /// The Kubernetes pod around it.
    pub pod: Option<Pod>,
    /// What its maker asks of us.
    #[serde(default, skip_serializing_if = "ContainerLabels::is_empty")]
    pub labels: ContainerLabels,
}

impl ContainerEngine {
    /// Whether its container that is called `id` is in another one: see [`ContainerIdentity::is_nested`].
    pub fn is_nested(self, id: &str) -> bool {
        self != Self::Plain && id.starts_with('/')
    }
}

impl ContainerIdentity {
    /// Whether it is in another container, which has such come and go as it likes.
    pub fn is_nested(&self) -> bool {
        self.engine.is_nested(&self.id)
    }

    /// All that it is called, with its cgroup's path.
    pub fn names<'a>(&'a self, path: &'a str) -> ContainerNames<'a> {
        ContainerNames {
            id: &self.id,
            name: self.name.as_deref(),
            pod: self.pod.as_ref().map(Pod::label),
            path,
        }
    }
}

/// A Kubernetes pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pod {
    /// Its UID, with dashes.
    pub uid: String,
    /// Its name, where known.
    pub name: Option<String>,
    /// Its namespace, where known.
    pub namespace: Option<String>,
}

impl Pod {
    /// Its name, or its UID where the name is not known.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.uid)
    }
}

impl Claim {
    /// Whether this entry is about `container`.
    pub fn matches(&self, container: &ContainerIdentity) -> bool {
        glob::matches(&self.container, &container.id)
            || container.name.as_deref().is_some_and(|name| glob::matches(&self.container, name))
    }
}

/// The first entry that fits a container; the operator's word goes before its maker's. Where the operator says nothing of saving, the label
/// does: an entry about weights does not mean that a container which asked for it is not to be left alone.
pub fn claim_for(claims: &[Claim], container: &ContainerIdentity) -> Claim {
    let of_labels = container.labels.claim();
    let Some(claim) = claims.iter().find(|claim| claim.matches(container)) else { return of_labels };
    let mut claim = claim.clone();
    claim.memory.saving = claim.memory.saving.or(of_labels.memory.saving);
    claim
}

/// Whether a cgroup is the kubelet's, or below one: `kubepods`, `kubepods.slice`, `kubelet-kubepods-burstable.slice`.
pub fn is_of_kubernetes(path: &str) -> bool {
    path.split(['/', '-', '.']).any(|word| word == "kubepods")
}

/// The name people gave it, or the first letters of its identifier as engines print them.
pub fn display_name(container: &ContainerIdentity) -> String {
    container.name.clone().unwrap_or_else(|| short_id(&container.id))
}
